// Keys in lists: arrow up and down move between entries, Home and End to the first and the last entry. Tab is
// unchanged.

const LISTS = "#books, #chats, #library, #suggestions, #documents, #offers";
const ENTRY = "button:not(.more)";

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
