// The library: books with their covers, the chats of the open book, and the menus of both.
import { isOpen, mayOpen } from "./books.js";
import { confirmed } from "./confirm.js";
import { addToOpen, isShown, openTitle } from "./documents.js";
import { closedByEscape } from "./escape.js";
import { byId, made, post, tell } from "./frame.js";
import { drawAgain, fillList } from "./lists.js";

let open = ""; // id of the open book
let chat = ""; // id of the open chat
let menuOf = null; // the button that opened the menu

/** @param {View["book"]} book */
export function showOpenBook(book) {
  open = book.id ?? "";
  mark(byId("books"), open);
  mark(byId("library"), open);
}

/** @param {View["chat"]} shown */
export function showOpenChat(shown) {
  chat = shown.id;
  mark(byId("chats"), chat);
}

/** @param {View["books"]} books */
export function showBooks(books) {
  byId("trifold").dataset.library = books.length ? "some" : "none";
  for (const list of [byId("books"), byId("library")]) {
    if (!list.querySelector("input")) fill(list, books, bookEntry, open); // not while a book is being renamed
  }
}

/** @param {View["chats"]} chats */
export function showChats(chats) {
  byId("trifold").dataset.chats = chats.length ? "some" : "none";
  // not while a chat is being renamed
  if (!byId("chats").querySelector("input")) fill(byId("chats"), chats, chatEntry, chat);
}

/** @param {View["storage"]} trouble */
export function showStorage(trouble) {
  byId("storage").hidden = !trouble;
  byId("storage").textContent = trouble;
}

// Lists ---------------------------------------------------------------------------------------------------------------

function fill(list, items, entry, current) {
  fillList(list, items, entry, ({ dataset }) => `${dataset.id} ${dataset.more}`);
  mark(list, current);
}

function mark(list, current) {
  for (const button of list.querySelectorAll("button.open")) {
    if (button.dataset.id === current) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
}

function entryOf(id, title, more, ...parts) {
  const entry = made("li");
  const button = made("button", "", "open");
  button.type = "button";
  button.dataset.id = id;
  button.append(...parts);
  const dots = made("button", "⋯", "more");
  dots.type = "button";
  dots.dataset.id = id;
  dots.dataset.more = more;
  dots.dataset.title = title;
  dots.setAttribute("aria-label", `More about “${title}”`);
  dots.setAttribute("aria-haspopup", "menu");
  entry.append(button, dots);
  return entry;
}

function chatEntry(item) {
  return entryOf(item.id, item.title, "chat", made("span", item.title), made("small", item.line));
}

function bookEntry(item) {
  const words = made("span", "", "about");
  words.append(made("span", item.title, "title"));
  for (const [name, text] of [["author", item.author], ["file", item.file], ["line", item.line], ["partly", item.partly], ["foot", item.foot], ["short", item.short]]) {
    if (text) words.append(made("small", text, name));
  }
  const entry = entryOf(item.id, item.title, "book", cover(item), words);
  if (item.several) entry.lastChild.dataset.several = item.several;
  if (item.notes) entry.lastChild.dataset.notes = item.notes;
  entry.firstChild.title = [item.title, item.author, item.file, item.line, item.partly, item.foot].filter(Boolean).join("\n");
  return entry;
}

// Creates a book's cover. A format without pages gets a cover made of text.
function cover(item) {
  const place = made("span", "", "cover");
  place.setAttribute("aria-hidden", "true");
  if (item.cover) {
    const picture = made("img");
    picture.src = `/covers/${item.id}`;
    picture.alt = "";
    picture.loading = "lazy";
    place.append(picture);
  } else {
    place.classList.add("cloth");
    place.style.setProperty("--hue", item.hue);
    place.append(made("b", item.title), made("i", item.author));
  }
  return place;
}

// The menu ------------------------------------------------------------------------------------------------------------

/** @returns {[string, () => void][]} */
function menuItems(button) {
  const { id, more, title } = button.dataset;
  if (more === "chat") {
    /** @type {[string, () => void][]} */
    const thoughts =
      id === chat && byId("chat").querySelector(".thought")
        ? [["Save as Markdown, with thoughts", () => save(id, "md", "&thoughts=1")]]
        : [];
    return [
      ["Rename", () => rename(button, CHAT)],
      ["Save as Markdown", () => save(id, "md")],
      ...thoughts,
      ["Save as JSON", () => save(id, "json")],
      ["Delete…", () => removeChat(id, title)],
    ];
  }
  /** @type {[string, () => void][]} */
  const adding = openTitle() && !isShown(id) ? [[`Add to “${openTitle()}”`, () => addToOpen([id], `“${title}”`)]] : [];
  /** @type {[string, () => void][]} */
  const closing = id === open ? [["Close this book", () => post("/books/close").then(tell)]] : adding;
  return [...closing, ["Rename", () => rename(button, BOOK)], ["Delete…", () => removeBook(id, title, button.dataset)]];
}

function openMenu(button) {
  closeMenu();
  menuOf = button;
  button.setAttribute("aria-expanded", "true");
  const menu = byId("menu");
  menu.replaceChildren(
    ...menuItems(button).map(([words, run]) => {
      const item = made("button", words, words.startsWith("Delete") ? "danger" : "");
      item.type = "button";
      item.setAttribute("role", "menuitem");
      item.addEventListener("click", () => {
        closeMenu(true);
        run();
      });
      return item;
    }),
  );
  menu.hidden = false;
  const box = button.getBoundingClientRect();
  menu.style.left = `${Math.max(8, Math.min(innerWidth - menu.offsetWidth - 8, box.right - menu.offsetWidth))}px`;
  const below = box.bottom + 4 + menu.offsetHeight < innerHeight;
  menu.style.top = `${below ? box.bottom + 4 : box.top - 4 - menu.offsetHeight}px`;
  menu.firstChild.focus();
}

function closeMenu(refocus = false) {
  if (!menuOf) return;
  byId("menu").hidden = true;
  menuOf.removeAttribute("aria-expanded");
  if (refocus) menuOf.focus();
  menuOf = null;
}

function moveInMenu(event) {
  const items = [...byId("menu").children];
  const at = items.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) {
    event.preventDefault();
    items[(at + step + items.length) % items.length].focus();
  } else if (event.key === "Tab") {
    event.preventDefault();
    closeMenu(true);
  }
}

// Menu actions --------------------------------------------------------------------------------------------------------

function save(id, form, more = "") {
  const link = made("a");
  link.href = `/chats/export?id=${encodeURIComponent(id)}&form=${form}${more}`;
  link.download = "";
  link.click();
}

async function openBook(id, title) {
  if (isOpen(id)) return;
  if ((await mayOpen(title)) === "yes") tell(await post("/books/open", { id }));
}

const CHAT = { path: "/chats/rename", label: "Name of this chat", name: "span" };
const BOOK = { path: "/books/rename", label: "Name of this book", name: ".title" };

// Replaces an entry by a field for its name. ``dots``: the button of the entry's menu.
function rename(dots, { path, label, name }) {
  const { id, title } = dots.dataset;
  const button = dots.closest("li")?.querySelector("button.open");
  if (!button?.isConnected) return;
  const shown = button.querySelector(name);
  const field = made("input");
  field.value = title;
  field.maxLength = 120;
  field.setAttribute("aria-label", label);
  field.dataset.escape = "";
  let done = false;
  const end = async (keep) => {
    if (done) return;
    done = true;
    field.replaceWith(button);
    button.focus();
    if (!keep || field.value.trim() === title) return;
    shown.textContent = field.value.trim() || title;
    drawAgain(button.closest("li")); // the stored name may differ
    const trouble = await post(path, { id, name: field.value });
    if (trouble) shown.textContent = title;
    tell(trouble);
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      event.preventDefault(); // the key would press the button, which has the focus by then
      end(true);
    }
    if (event.key === "Escape") end(false);
  });
  field.addEventListener("blur", () => end(true));
  button.replaceWith(field);
  field.focus();
  field.select();
}

const DELETING = { yes: "Delete", no: "Keep it", danger: true };

async function removeChat(id, title) {
  const chosen = await confirmed(`Delete the chat “${title}”?`, "All its questions and answers go with it.", DELETING);
  if (chosen === "yes") tell(await post("/chats/delete", { id }));
}

async function removeBook(id, title, { several, notes }) {
  const lost = several
    ? "All chats about these documents together go with it, and what was read. The documents stay in the library."
    : "Its file in Trifold's folder, all chats about it and all that was read go with it.";
  const noted = notes ? ` So ${notes === "1" ? "does its note" : `do its ${notes} notes`}.` : "";
  const saving = notes && { words: "Save its notes first", href: `/notes/export?form=md&book=${id}` };
  const chosen = await confirmed(`Delete “${title}”?`, lost + noted, { ...DELETING, saving });
  if (chosen === "yes") tell(await post("/books/delete", { id }));
}

// Tells the person if Trifold is open in another tab. Hidden tabs count too.
function greetTabs() {
  if (!("BroadcastChannel" in window)) return;
  const tabs = new BroadcastChannel("trifold");
  tabs.onmessage = (message) => {
    if (message.data === "hello") tabs.postMessage("here");
    else tell({ cause: "Trifold is open in another tab too.", remedy: "Both show the same book and chat." });
  };
  tabs.postMessage("hello");
}

export function bindLibrary() {
  for (const list of [byId("books"), byId("library"), byId("chats")]) {
    list.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button?.dataset.more) menuOf === button ? closeMenu(true) : openMenu(button);
    });
  }
  byId("chats").addEventListener("click", (event) => {
    const id = event.target.closest("button.open")?.dataset.id;
    if (id) post("/chats/open", { id }).then(tell);
  });
  for (const list of [byId("books"), byId("library")]) {
    list.addEventListener("click", (event) => {
      const button = event.target.closest("button.open");
      if (button) openBook(button.dataset.id, button.querySelector(".title").textContent);
    });
  }
  byId("menu").addEventListener("keydown", moveInMenu);
  closedByEscape("menu", () => Boolean(menuOf), () => closeMenu(true));
  document.addEventListener("pointerdown", (event) => {
    if (menuOf && !event.target.closest("#menu, button.more")) closeMenu();
  });
  greetTabs();
}

