// Escape closes the topmost open part of the page and does nothing else. It never stops an answer or the reading of a
// book. Native dialogs close themselves. A form inside a part closes itself first: it has the attribute data-escape.

// names of the parts, the topmost first
const ORDER = ["menu", "race", "drawer", "find", "page", "contents", "notes", "editing", "aloud"];

/** @type {{ isOpen: () => boolean, close: () => void }[]} */
const parts = [];

/**
 * @param {string} name the part's name in ORDER.
 * @param {() => boolean} isOpen
 * @param {() => void} close
 */
export function closedByEscape(name, isOpen, close) {
  parts[ORDER.indexOf(name)] = { isOpen, close };
}

function onKey(event) {
  if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
  if (event.target.closest?.("[data-escape]")) return;
  const top = parts.find((part) => part?.isOpen());
  if (!top) return;
  event.preventDefault();
  event.stopPropagation();
  top.close();
}

// The capture phase comes before the listeners of all parts, so that a key closes one part only.
export function bindEscape() {
  document.addEventListener("keydown", onKey, true);
}
