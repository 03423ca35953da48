// Search in the book: Ctrl+F while a page is open, "/find" in the question box, or the button above the page.
import { closedByEscape } from "./escape.js";
import { byId, call, made, tell } from "./frame.js";
import { openPage, pageShown } from "./pages.js";

const WAIT_MS = 180;

let hits = [];
let at = -1; // index of the shown hit; -1 if no hit is shown
let words = "";
let waiting = 0;
let asked = 0; // number of the newest request; older responses are dropped

const field = () => byId("find-words");

export async function openFind(wanted) {
  byId("find").hidden = false;
  byId("page-find").setAttribute("aria-expanded", "true");
  if (wanted !== undefined) field().value = wanted;
  if (!pageShown()) await openPage(undefined, { from: document.activeElement });
  field().select();
  field().focus();
  if (field().value.trim() !== words || !hits.length) look();
}

function closeFind() {
  if (byId("find").hidden) return;
  byId("find").hidden = true;
  byId("page-find").setAttribute("aria-expanded", "false");
  words = "";
  showHits([], "");
  const page = pageShown();
  if (page) openPage(page); // shows the page without marks
}

async function look() {
  clearTimeout(waiting);
  const wanted = field().value.trim();
  if (wanted === words && hits.length) return;
  const turn = ++asked;
  const told = wanted ? await call("/find", { words: wanted }) : { hits: [], said: "" };
  if (turn !== asked || byId("find").hidden) return;
  if (told.cause) return tell(told);
  words = wanted;
  showHits(told.hits, told.said);
  if (!hits.length) return openPage(pageShown()); // removes the marks of the last search
  const here = pageShown() ?? 0;
  show(Math.max(0, hits.findIndex((hit) => hit.page >= here)));
}

function showHits(found, said) {
  hits = found;
  at = -1;
  byId("find-said").textContent = said;
  byId("find-hits").hidden = !hits.length;
  byId("find-hits").replaceChildren(...hits.map(entry));
  for (const button of ["find-before", "find-after"]) byId(button).disabled = !hits.length;
  showPlace();
}

function entry(hit, index) {
  const item = made("li");
  const button = made("button");
  button.type = "button";
  const [before, words, after] = hit.line;
  button.append(made("small", hit.name), " ", before, made("mark", words), after);
  button.addEventListener("click", () => show(index));
  item.append(button);
  return item;
}

function show(index) {
  at = index;
  const hit = hits[at];
  byId("find-hits").querySelector("[aria-current]")?.removeAttribute("aria-current");
  const button = byId("find-hits").children[at].firstChild;
  button.setAttribute("aria-current", "true");
  button.scrollIntoView({ block: "nearest" });
  showPlace();
  openPage(hit.page, { why: { find: words, now: hit.start } });
}

function showPlace() {
  byId("find-at").textContent = at < 0 ? "" : `${at + 1} of ${hits.length}`;
}

function step(by) {
  if (hits.length) show((at + by + hits.length) % hits.length);
}

function keys(event) {
  const find = (event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === "f";
  if (find && !byId("page-panel").hidden && document.activeElement !== field() && !document.querySelector("dialog[open]")) {
    event.preventDefault(); // a second Ctrl+F opens the browser's search
    openFind();
  } else if (event.key === "F3" && !byId("find").hidden) {
    event.preventDefault();
    step(event.shiftKey ? -1 : 1);
  }
}

// Moves the focus between the field and the hits.
function move(event) {
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const stops = [field(), ...byId("find-hits").querySelectorAll("button")];
  const from = stops.indexOf(document.activeElement);
  if (!by || from < 0) return;
  event.preventDefault();
  stops[Math.max(0, Math.min(stops.length - 1, from + by))].focus();
}

export function bindFind() {
  byId("page-find").addEventListener("click", () => (byId("find").hidden ? openFind() : closeFind()));
  byId("open-find").addEventListener("click", () => openFind());
  byId("find-close").addEventListener("click", () => {
    closeFind();
    byId("page-find").focus();
  });
  field().addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(look, WAIT_MS);
  });
  field().addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    if (field().value.trim() === words) step(event.shiftKey ? -1 : 1);
    else look();
  });
  closedByEscape("find", () => !byId("find").hidden, () => byId("find-close").click());
  byId("find-before").addEventListener("click", () => step(-1));
  byId("find-after").addEventListener("click", () => step(1));
  for (const part of ["find", "find-hits"]) byId(part).addEventListener("keydown", move);
  document.addEventListener("keydown", keys);
  byId("page-panel").addEventListener("shut", closeFind);
}
