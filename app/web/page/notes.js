// Notes. A note keeps a passage selected on a page or in an answer, with a colour and the person's words. A panel lists
// the notes of the open book. A click on a note opens its page and marks the passage.
import { byId, call, made, post, tell } from "./frame.js";
import { bindLetters, placesOf, showLetters } from "./letters.js";
import { drawAgain, fillList } from "./lists.js";
import { closePage, openPage, pageLength, pageShown, tablesMarked, wordsMarked } from "./pages.js";
import { SidePanel } from "./side.js";

const COLOURS = ["yellow", "green", "blue", "rose"];
const AROUND = 40; // maximum characters of context on each side, which tell equal passages of a page apart
const WAIT_MS = 180;
const LONGEST = 20000;

// Distances on a touched screen, in pixels. A phone hangs its handles below a selection, and its own menu above it.
const HANDLE = 48;
const MENU = 72;
const MARGIN = 12;
const HEADER = 60;

const narrow = matchMedia("(max-width: 820px)");
const touched = matchMedia("(max-width: 820px), (pointer: coarse)"); // the same as in notes.css

let now = { count: 0, version: "", asked: false };
let notes = []; // the listed notes
let editing = ""; // id of the note that is being edited
let gone = new Map(); // deleted notes that can be restored, keyed by the id of the note before each
let waiting = 0;
let selected = null; // the selection from which the bar would make a note
let held = false; // whether the bar was touched: some phones end the selection before the touch becomes a click

const side = new SidePanel("notes", () => {
  editing = "";
  gone = new Map();
  for (const form of panel().querySelectorAll("#notes-list form")) {
    const words = form.querySelector("textarea");
    if (words.value === words.defaultValue) drawAgain(form.closest("li")); // words that were typed are kept
  }
});
const panel = () => side.element;
const field = () => byId("notes-words");

/** @param {View["notes"]} told */
export function showNotes(told) {
  const turned = told.version !== now.version;
  if (bookOf(told) !== bookOf(now)) gone = new Map(); // notes are only restored in the list of their own book
  now = told;
  byId("notes-count").textContent = now.count || "";
  byId("open-notes").setAttribute("aria-label", now.count ? `Notes: ${now.count}` : "Notes");
  byId("notes-ask").hidden = now.asked || !now.on_pages;
  byId("notes-leave").hidden = !now.asked;
  byId("notes-save").hidden = !now.count;
  field().hidden = !now.count && !field().value;
  if (turned && side.isOpen && !editing) bring();
  if (turned) drawOnPage();
}

const bookOf = ({ version }) => version.split("-")[0];

// The list ------------------------------------------------------------------------------------------------------------

async function bring() {
  const words = field().value.trim();
  const wanted = `${now.version} ${words}`;
  const told = await call("/notes/list", { words });
  if (wanted !== `${now.version} ${field().value.trim()}` || editing) return;
  if (told.cause) return tell(told);
  notes = told.notes;
  const none = now.count ? "No note has these words." : "Select a passage on a page, or in an answer, to note it.";
  byId("notes-said").textContent = notes.length ? told.said : none;
  draw();
}

function draw() {
  const items = [...notes];
  for (const [id, before] of gone) items.splice(items.findIndex((note) => note.id === before) + 1, 0, { id, gone: true });
  fillList(byId("notes-list"), items, (item) => (item.gone ? ghost(item.id) : entry(item)), (one) => one.dataset.focus);
}

function entry(note) {
  const item = made("li", "", "note");
  item.dataset.id = note.id;
  item.dataset.colour = note.colour;
  const open = made("button", "", "open");
  open.type = "button";
  open.dataset.focus = `${note.id} open`;
  open.disabled = note.page === null;
  if (note.place) open.append(made("small", note.place, note.of ? `of-${note.of.slice(0, 12)}` : ""));
  if (note.passage) open.append(theirs(made("q", note.passage)));
  if (note.said) open.append(theirs(made("span", note.said, "said")));
  open.addEventListener("click", () => openPage(note.page, { from: open, why: { note: note.id }, said: note.words }));
  item.append(open);
  if (note.words) item.append(theirs(made("p", note.words, "words")));
  const tools = made("div", "", "tools");
  const name = note.passage || note.said || note.words || note.place;
  tools.append(
    tool(note, "edit", note.words ? "Edit" : "Add words", name, () => edit(item, note)),
    tool(note, "delete", "Delete", name, () => remove(item, note)),
  );
  item.append(tools);
  return item;
}

// Marks an element whose words are never translated: words of a book, an answer or a person.
function theirs(element) {
  element.translate = false;
  return element;
}

function tool(note, what, words, name, run) {
  const button = made("button", words, "tf-link");
  button.type = "button";
  button.dataset.focus = `${note.id} ${what}`;
  button.setAttribute("aria-label", `${words}: “${name.slice(0, 60)}”`);
  button.addEventListener("click", run);
  return button;
}

function edit(item, note) {
  editing = note.id;
  let seen = note.words;
  const form = made("form");
  const words = made("textarea");
  Object.assign(words, { defaultValue: note.words, rows: 3, maxLength: LONGEST });
  words.setAttribute("aria-label", "Your own words");
  const colours = made("fieldset");
  colours.append(made("legend", "Colour", "unseen"), ...COLOURS.map((colour) => choice(colour, colour === note.colour)));
  const save = made("button", "Save", "tf-primary");
  const leave = made("button", "Cancel", "tf-small");
  leave.type = "button";
  const line = made("p", "", "tf-line");
  const ends = made("span", "", "ends");
  ends.append(save, leave);
  line.append(colours, ends);
  form.append(words, line);
  const end = () => {
    editing = "";
    drawAgain(item);
    bring().then(() => panel().querySelector(`[data-focus="${note.id} edit"]`)?.focus());
  };
  leave.addEventListener("click", end);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const picked = form.querySelector("input:checked").value;
    const colour = picked === note.colour ? "" : picked; // one that another tab has given meanwhile stays
    const told = await call("/notes/change", { id: note.id, words: words.value.trim(), colour, seen });
    if (told.cause) return tell(told); // the text stays in the field
    if (told.now !== undefined) {
      // another tab has changed the words: both are shown, and the next Save decides
      seen = told.now;
      form.querySelector(".meanwhile")?.remove();
      const other = made("p", "", "meanwhile");
      other.setAttribute("role", "status");
      other.append(made("small", "Meanwhile changed elsewhere to:"), theirs(made("span", seen)));
      form.prepend(other);
      return;
    }
    end();
  });
  form.dataset.escape = "";
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      end();
    } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  item.querySelector(".words")?.remove();
  item.querySelector(".tools").replaceWith(form);
  words.focus();
}

function choice(colour, checked) {
  const label = made("label", "", "colour");
  label.dataset.colour = colour;
  const radio = made("input");
  Object.assign(radio, { type: "radio", name: "colour", value: colour, checked });
  label.append(radio, made("span", colour, "unseen"));
  label.title = colour;
  return label;
}

async function remove(item, note) {
  if (item.dataset.leaving) return; // the button was pressed twice
  item.dataset.leaving = "yes";
  const before = item.previousElementSibling?.dataset.id ?? "";
  const trouble = await post("/notes/delete", { id: note.id });
  if (trouble) {
    delete item.dataset.leaving;
    return tell(trouble);
  }
  gone.set(note.id, before);
  notes = notes.filter((one) => one.id !== note.id);
  draw();
  panel().querySelector(`[data-focus="${note.id} undo"]`).focus();
}

// Creates the entry that replaces a deleted note until the panel is closed.
function ghost(id) {
  const item = made("li", "Deleted. ", "gone");
  item.dataset.id = id;
  const undo = made("button", "Bring it back", "tf-link");
  undo.type = "button";
  undo.dataset.focus = `${id} undo`;
  undo.addEventListener("click", async () => {
    const trouble = await post("/notes/restore", { id });
    if (trouble) return tell(trouble);
    gone.delete(id);
    item.remove();
    field().hidden = false;
    field().focus();
  });
  item.append(undo);
  return item;
}

async function open(from) {
  if (!byId("contents").hidden) byId("contents-close").click();
  side.open(from);
  await bring();
}

function keys(event) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!by || event.target.matches("textarea, input[type=radio]")) return;
  const stops = [field(), ...panel().querySelectorAll("#notes-list .open:not(:disabled)")];
  const from = stops.indexOf(document.activeElement);
  event.preventDefault();
  stops[Math.max(0, Math.min(stops.length - 1, from + by))].focus();
}

// Selection -----------------------------------------------------------------------------------------------------------

// Returns the part of the selection that a note can keep: text of the page or of an answer. Returns null otherwise.
function selection() {
  const all = getSelection();
  if (!all.rangeCount || all.isCollapsed) return null;
  const range = all.getRangeAt(0);
  const answer = [...document.querySelectorAll("#chat .bot .prose")].findLast((one) => range.intersectsNode(one));
  const texts = [byId("page-letters"), byId("page-text"), answer];
  const text = texts.find((one) => one?.checkVisibility() && range.intersectsNode(one));
  if (!text) return null;
  const within = range.cloneRange();
  if (!text.contains(within.startContainer)) within.setStart(text, 0);
  if (!text.contains(within.endContainer)) within.setEnd(text, text.childNodes.length);
  return { text, within, answer: text === answer };
}

function found() {
  const { text, within, answer } = selection() ?? {};
  if (!text) return null;
  if (answer) {
    const message = answerOf(text);
    const said = wordsOf(within);
    return message && said ? { asked: { message, said }, within } : null;
  }
  const passage = within.toString();
  if (!passage.trim() || !pageShown()) return null;
  /** @type {(from: [Node, number] | null, to: [Node, number] | null) => string} */
  const around = (from, to) => {
    const range = document.createRange();
    range.selectNodeContents(text);
    if (from) range.setStart(...from);
    if (to) range.setEnd(...to);
    return range.toString();
  };
  const before = around(null, [within.startContainer, within.startOffset]).slice(-AROUND);
  const after = around([within.endContainer, within.endOffset], null).slice(0, AROUND);
  return { asked: { page: pageShown(), passage, before, after }, within };
}

// Returns the id of the answer that contains an element; 0 if there is none.
function answerOf(prose) {
  const row = prose.closest(".message-row, .bot-row, .bot") ?? prose;
  const button = row.querySelector('button.action[value^="note:"]');
  return button ? Number(button.value.split(":")[1]) : 0;
}

// Returns the text of a range without citations and without the elements around the answer.
function wordsOf(range) {
  const part = range.cloneContents();
  for (const other of part.querySelectorAll(".cite, .unseen, .actions, .under, .above, .trouble")) other.remove();
  return part.textContent.replace(/\s+/g, " ").trim();
}

function showBar() {
  if (held) return;
  selected = found();
  const bar = byId("note-bar");
  if (!selected) return (bar.hidden = true);
  bar.hidden = false;
  const boxes = [...selected.within.getClientRects()];
  if (!boxes.length) boxes.push(selected.within.getBoundingClientRect());
  if (touched.matches) return placeForTouch(bar, boxes[0], boxes.at(-1));
  const box = boxes.at(-1);
  bar.style.left = `${Math.max(8, Math.min(innerWidth - bar.offsetWidth - 8, box.right - bar.offsetWidth / 2))}px`;
  bar.style.top = `${Math.max(8, Math.min(innerHeight - bar.offsetHeight - 8, box.bottom + 8))}px`;
}

// Places the bar at the foot of the visible part of a page that two fingers may have enlarged, or at its head if the
// end of the selection and its handle are at the foot and the phone's menu is not at the head.
function placeForTouch(bar, first, last) {
  const { offsetLeft, offsetTop, width, height, scale } = visualViewport;
  const [foot, tall] = [offsetTop + height, (bar.offsetHeight + MARGIN) / scale];
  const hides = last.top < foot && last.bottom + HANDLE / scale > foot - tall;
  const head = offsetTop + HEADER / scale;
  const top = hides && first.top - MENU / scale > head + tall ? head : foot - tall;
  const left = offsetLeft + (width - bar.offsetWidth / scale) / 2;
  Object.assign(bar.style, { top: `${top}px`, left: `${left}px`, transform: `scale(${1 / scale})` });
}

// Keeps the selection, and what would be noted, from the touch of a button until its click.
function hold(event) {
  event.preventDefault();
  held = Boolean(event.target.closest("button"));
}

function release(event) {
  if (!held || event.target.closest?.("#note-bar, #page-note")) return;
  held = false;
  showBar();
}

function makeBar() {
  const bar = byId("note-bar");
  bar.append(made("span", "Note"));
  for (const colour of COLOURS) {
    const button = made("button", "", "colour");
    button.type = "button";
    button.dataset.colour = colour;
    button.setAttribute("aria-label", `Note it in ${colour}`);
    button.title = `Note it in ${colour}`;
    button.addEventListener("click", () => selected && keep({ ...selected.asked, colour }));
    bar.append(button);
  }
  for (const one of [bar, byId("page-note")]) one.addEventListener("pointerdown", hold);
  document.addEventListener("pointerdown", release, true);
  document.addEventListener("pointercancel", () => {
    if (!held) return;
    held = false;
    showBar();
  });
  for (const change of ["resize", "scroll"]) visualViewport.addEventListener(change, () => bar.hidden || showBar());
}

async function keep(asked) {
  const told = await call("/notes/add", asked);
  if (told.cause) return tell(told);
  held = false;
  selected = null;
  getSelection().empty();
  byId("note-bar").hidden = true;
  byId("note-sentences").close();
  const before = told.again ? "This was noted before: its note has the new colour." : "";
  const noted = told.place ? `Noted, ${told.place}.` : "Noted, without a page.";
  tell({ cause: before || noted, remedy: "“Notes” has it, and takes words of your own." }, 3000);
}

// Lists the sentences of an answer, so that a sentence can be noted without selecting text.
export async function noteSentence(message) {
  const told = await call("/notes/sentences", { message });
  if (told.cause) return tell(told);
  const list = byId("note-sentences").querySelector("ol");
  list.replaceChildren(
    ...told.sentences.map(({ said, place }) => {
      const item = made("li");
      const button = made("button");
      button.type = "button";
      button.append(theirs(made("span", said)));
      if (place) button.append(" ", made("small", place));
      button.addEventListener("click", () => keep({ message, said }));
      item.append(button);
      return item;
    }),
  );
  byId("note-sentences").showModal();
}

// Makes a note from the selection; without a selection, from the marked passage or the whole page.
function notePage() {
  const chosen = found() ?? selected;
  held = false;
  if (chosen) return keep(chosen.asked);
  keep({ page: pageShown(), passage: wordsMarked() });
}

// On the page ---------------------------------------------------------------------------------------------------------

let here = []; // notes of the shown page
let drawing = 0; // number of the newest request for notes; older responses are dropped

async function drawOnPage() {
  const page = pageShown();
  const number = ++drawing;
  if (!page) {
    here = [];
    return paint();
  }
  const answer = await fetch(`/notes/page/${page}`).catch(() => null);
  const told = answer?.ok ? await answer.json() : null;
  if (!told || number !== drawing) return;
  here = told.notes;
  paint();
}

// Marks the notes: with rectangles on the picture, and with CSS highlights in the text.
function paint() {
  const length = pageLength() || 1;
  byId("page-noted").replaceChildren(
    ...here.flatMap((note) =>
      placesOf(note.passage, note.start / length).map(([x0, y0, x1, y1]) => {
        const mark = made("i");
        mark.dataset.colour = note.colour;
        const percent = (value) => `${value * 100}%`;
        Object.assign(mark.style, { left: percent(x0), top: percent(y0), width: percent(x1 - x0), height: percent(y1 - y0) });
        return mark;
      }),
    ),
  );
  if (!("highlights" in CSS)) return;
  const tables = tablesMarked().map(([start, stop]) => rangeOf({ start, stop })).filter(Boolean);
  highlight("table", tables);
  for (const colour of COLOURS) {
    const ranges = here.filter((note) => note.colour === colour && note.stop).map(rangeOf).filter(Boolean);
    highlight(`note-${colour}`, ranges);
  }
}

function highlight(name, ranges) {
  if (ranges.length) CSS.highlights.set(name, new Highlight(...ranges));
  else CSS.highlights.delete(name);
}

// Converts the server's character positions to a range. JavaScript counts UTF-16 units.
function rangeOf({ start, stop }) {
  const signs = [...byId("page-text").textContent];
  const from = signs.slice(0, start).join("").length;
  const to = from + signs.slice(start, stop).join("").length;
  const range = document.createRange();
  let at = 0;
  let begun = false;
  const walker = document.createTreeWalker(byId("page-text"), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const end = at + node.length;
    if (!begun && from < end) {
      range.setStart(node, from - at);
      begun = true;
    }
    if (begun && to <= end) {
      range.setEnd(node, to - at);
      return range;
    }
    at = end;
  }
  return null;
}

export function bindNotes() {
  makeBar();
  bindLetters();
  side.bind(open);
  byId("open-contents").addEventListener("click", () => side.close(), true);
  panel().addEventListener("keydown", keys);
  field().addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(bring, WAIT_MS);
  });
  for (const [id, path] of [["notes-ask", "/notes/read"], ["notes-leave", "/notes/leave"]]) {
    byId(id).addEventListener("click", async () => {
      const trouble = await post(path);
      if (trouble) return tell(trouble);
      closePage();
      if (narrow.matches) side.close();
      document.querySelector("#ask-box textarea").focus();
    });
  }
  byId("page-note").addEventListener("click", notePage);
  document.addEventListener("selectionchange", showBar);
  document.addEventListener("scroll", () => byId("note-bar").hidden || showBar(), { capture: true, passive: true });
  byId("note-sentences").addEventListener("click", (event) => event.target === byId("note-sentences") && event.target.close());
  for (const change of ["turned", "shut"]) byId("page-panel").addEventListener(change, drawOnPage);
  new MutationObserver(paint).observe(byId("page-text"), { childList: true });
  const sheet = new MutationObserver(() => showLetters(paint));
  sheet.observe(byId("page-sheet"), { attributeFilter: ["data-state"] });
  byId("page-panel").addEventListener("shut", () => showLetters(paint));
}
