// Search in all chats about all books: Ctrl+K, a few words, Enter.
import { isOpen, mayOpen } from "./books.js";
import { byId, call, made, tell } from "./frame.js";

const WAIT_MS = 140;

let waiting = 0;
let asked = 0; // number of the newest request; older responses are dropped

export function openSearch() {
  const dialog = byId("search");
  if (dialog.open) return;
  dialog.showModal();
  byId("search-words").select();
  look();
}

async function look() {
  const words = byId("search-words").value.trim();
  const turn = ++asked;
  const told = words ? await call("/chats/search", { words }) : { found: [] };
  if (turn !== asked) return;
  byId("search-none").textContent = words && !told.found?.length ? "Nothing found in any chat." : "";
  byId("search-found").replaceChildren(...(told.found ?? []).map(entry));
}

function entry(hit) {
  const item = made("li");
  const button = made("button");
  button.type = "button";
  const words = made("span");
  words.append(...hit.parts.map(([text, found]) => (found ? made("mark", text) : text)));
  button.append(words, made("small", `${hit.book} · ${hit.title}`));
  button.addEventListener("click", () => show(hit));
  item.append(button);
  return item;
}

async function show(hit) {
  byId("search").close();
  if (!isOpen(hit.of) && (await mayOpen(hit.book)) !== "yes") return;
  const told = await call("/chats/open", { id: hit.chat, message: hit.message });
  if (told.cause) return tell(told);
  scrollTo(told.position, hit.role, 40);
}

// Scrolls to a message. Tries again if Gradio has not drawn the chat yet.
function scrollTo(position, role, tries) {
  const rows = document.querySelectorAll(role === "question" ? "#chat .user-row" : "#chat .bot-row");
  const row = rows[position];
  if (!row) return tries > 0 && setTimeout(() => scrollTo(position, role, tries - 1), 100);
  setTimeout(() => {
    const now = document.querySelectorAll(role === "question" ? "#chat .user-row" : "#chat .bot-row")[position] ?? row;
    now.scrollIntoView({ block: "center" });
    now.classList.add("found");
    setTimeout(() => now.classList.remove("found"), 2400);
  }, 350);
}

function move(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return typeOn(event);
  event.preventDefault();
  const stops = [byId("search-words"), ...byId("search-found").querySelectorAll("button")];
  const at = stops.indexOf(document.activeElement);
  stops[Math.max(0, Math.min(stops.length - 1, at + step))].focus();
}

// Moves the focus from a hit to the search field when the person types.
function typeOn(event) {
  if (event.target === byId("search-words") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key !== "Backspace" && event.key.length !== 1) return;
  byId("search-words").focus(); // the field receives this key
}

export function bindSearch() {
  byId("open-search").addEventListener("click", openSearch);
  byId("search-words").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(look, WAIT_MS);
  });
  byId("search-form").addEventListener("submit", (event) => {
    event.preventDefault();
    byId("search-found").querySelector("button")?.click();
  });
  byId("search").addEventListener("keydown", move);
  byId("search").addEventListener("click", (event) => event.target === byId("search") && byId("search").close());
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      openSearch();
    }
  });
}
