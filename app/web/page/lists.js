// Lists: drawing them, and their keys. Arrow up and down move between entries, Home and End to the first and the last
// entry. Tab is unchanged.

const LISTS = "#books, #chats, #library, #suggestions, #documents, #offers";
const ENTRY = "button:not(.more)";

const drawn = new WeakMap(); // the item from which an entry was made, as JSON

// Draws a list. An entry whose item is unchanged keeps its element, because a click is lost if its element is replaced
// between pressing and releasing. ``name`` names an element that can have the focus, so that one that is made anew keeps it.
export function fillList(list, items, entry, name) {
  const focused = list.contains(document.activeElement) ? name(document.activeElement) : null;
  const before = new Map([...list.children].map((element) => [drawn.get(element), element]));
  const elements = items.map((item) => {
    const told = JSON.stringify(item);
    const element = before.get(told) ?? entry(item);
    drawn.set(element, told);
    return element;
  });
  const kept = new Set(elements);
  for (const element of [...list.children]) if (!kept.has(element)) element.remove();
  elements.forEach((element, at) => list.children[at] === element || list.insertBefore(element, list.children[at] ?? null));
  if (focused === null || list.contains(document.activeElement)) return;
  [...list.querySelectorAll("*")].find((one) => name(one) === focused)?.focus();
}

// Has an entry made anew when its list is drawn next, although its item is unchanged.
export const drawAgain = (element) => drawn.delete(element);

function move(event) {
  const list = event.target.closest?.(LISTS);
  if (!list || event.target.closest("input, textarea, select") || event.ctrlKey || event.altKey || event.metaKey) return;
  const entries = [...list.children].map((each) => each.querySelector(ENTRY)).filter((each) => each?.checkVisibility());
  const at = entries.findIndex((each) => each.parentElement.closest("li")?.contains(event.target));
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: entries.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  entries[Math.max(0, Math.min(entries.length - 1, to))]?.focus();
}

export function bindLists() {
  document.addEventListener("keydown", move);
}
