// Escape closes the topmost open part of the page and does nothing else. Of parts that stand beside each other it closes
// the one that has the focus. It never stops an answer or the reading of a book. Native dialogs close themselves. A form
// inside a part closes itself first: it has the attribute data-escape.

// names of the parts, the topmost first
const ORDER = ["menu", "race", "drawer", "find", "settings", "page", "contents", "notes", "editing", "aloud"];

// elements of the parts that stand beside each other
const BESIDE = { page: "page-panel", contents: "contents", notes: "notes" };

/** @type {{ name: string, isOpen: () => boolean, close: () => void }[]} */
const parts = [];

/**
 * @param {string} name the part's name in ORDER.
 * @param {() => boolean} isOpen
 * @param {() => void} close
 */
export function closedByEscape(name, isOpen, close) {
  parts[ORDER.indexOf(name)] = { name, isOpen, close };
}

const hasFocus = (part) => part.name in BESIDE && document.getElementById(BESIDE[part.name]).contains(document.activeElement);

function onKey(event) {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("[data-escape]")) return;
  const open = parts.filter((part) => part?.isOpen());
  const beside = open[0]?.name in BESIDE && open.find(hasFocus);
  const top = beside || open[0];
  if (!top) return;
  event.preventDefault();
  event.stopPropagation();
  top.close();
}

// The capture phase comes before the listeners of all parts, so that a key closes one part only.
export function bindEscape() {
  document.addEventListener("keydown", onKey, true);
}
