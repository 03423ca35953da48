// The pages behind the citations: the card at a citation, and the page panel that a click opens next to the chat.
import { documentsShown } from "./documents.js";
import { closedByEscape } from "./escape.js";
import { byId, hush, made } from "./frame.js";
import { bindMap } from "./map.js";

const ZOOMS = [1, 1.4, 2, 3];
const HOVER_MS = 140;

let first = 1; // number of the first page on the map
let numbers = []; // page numbers on the map, if the pages have gaps; otherwise empty
let told = ""; // the server's words about the citation, or the note's words, shown above the page that they are about
let toldOf = 0; // number of that page
let shown = null; // the page in the panel: response of /pages/NUMBER
// Reason for the marks on the page: a citation { turn, chip }, a hit of a search { find, now }, or a note { note }.
let cite = null;
let zoom = 0;
let words = false; // whether the page's text is shown next to its picture
let opener = null;
let asked = 0; // number of the newest request; older responses are dropped

const root = () => byId("trifold");

async function get(path) {
  const answer = await fetch(path);
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error([told.cause, told.remedy].filter(Boolean).join(" ") || "The page cannot be shown.");
  return told;
}

/** @param {View["paging"]} paging */
export function showPaging(paging) {
  first = paging.first;
  numbers = paging.numbers;
  if (paging.book !== root().dataset.pageBook) closePage();
  root().dataset.pageBook = paging.book;
}

// The card ------------------------------------------------------------------------------------------------------------

let hovering = 0;

function named(button) {
  const [turn, chip] = button.value.split(".").map(Number);
  return { turn, chip };
}

function expectCard(button) {
  clearTimeout(hovering);
  hovering = setTimeout(async () => {
    const { turn, chip } = named(button);
    const card = await get(`/citations/${turn}/${chip}`).catch(() => null);
    if (card && button.isConnected && button.matches(":hover, :focus-visible")) drawCard(button, card);
  }, HOVER_MS);
}

function drawCard(button, card) {
  const place = byId("cite-card");
  place.querySelector(".said").textContent = card.said;
  const quote = place.querySelector("blockquote");
  const { before, hit, after } = card.extract;
  const mark = made("mark", hit);
  quote.replaceChildren(before, hit ? mark : "", after);
  quote.hidden = !(before || hit || after);
  place.dataset.kind = card.kind;
  place.hidden = false;
  const box = button.getBoundingClientRect();
  const left = Math.max(10, Math.min(innerWidth - place.offsetWidth - 10, box.left - 20));
  const below = box.bottom + 8 + place.offsetHeight < innerHeight;
  place.style.left = `${left}px`;
  place.style.top = `${below ? box.bottom + 8 : Math.max(10, box.top - 8 - place.offsetHeight)}px`;
}

function hideCard() {
  clearTimeout(hovering);
  byId("cite-card").hidden = true;
}

// The panel -----------------------------------------------------------------------------------------------------------

async function openCitation(button) {
  const place = named(button);
  const card = await get(`/citations/${place.turn}/${place.chip}`).catch(() => null);
  if (!card) return;
  if (card.page === null) return drawCard(button, card);
  hideCard();
  openPage(card.page, { from: button, why: place, said: card.said });
}

export async function openPage(number = first, { from = null, why = null, said = "" } = {}) {
  const now = ++asked;
  if (from) opener = from;
  cite = why;
  const query = why ? `?${new URLSearchParams(why)}` : "";
  const wasShut = byId("page-panel").hidden;
  byId("page-panel").hidden = false;
  root().dataset.page = "open";
  if (said !== told || !said) [told, toldOf] = [said, number];
  sayAbove(number);
  if (wasShut) {
    hush();
    byId("page-panel").focus({ preventScroll: true });
  }
  try {
    const page = await get(`/pages/${number}${query}`);
    if (now !== asked) return;
    shown = page;
    draw(query, now);
  } catch (error) {
    if (now === asked) trouble(error.message);
  }
}

// Shows the words about the marks only above pages with marks. The other pages of the book are not what they are about.
function sayAbove(number, marks = []) {
  byId("page-said").textContent = number === toldOf || marks.length ? told : "";
}

export const pageShown = () => shown?.number;
export const tablesMarked = () => shown?.tables ?? []; // [start, end] of the tables that contain a mark
export const pageLength = () => (shown ? [...shown.text].length : 0);

// Returns the marked text of the page. If a hit of a search is selected, returns the sentence that has it.
export function wordsMarked() {
  const marks = shown?.marks ?? [];
  const [first, last] = shown?.line ? [shown.line, shown.line] : [marks[0], marks.at(-1)];
  return first ? shown.text.slice(...units(first[0], last[1])) : "";
}

export function closePage() {
  if (byId("page-panel").hidden) return;
  asked++;
  byId("page-panel").hidden = true;
  delete root().dataset.page;
  delete root().dataset.words;
  byId("page-picture").removeAttribute("src");
  shown = null;
  byId("page-panel").dispatchEvent(new Event("shut"));
  if (opener?.isConnected) opener.focus({ preventScroll: true });
  opener = null;
}

function draw(query, now) {
  sayAbove(shown.number, shown.marks);
  byId("page-name").textContent = shown.number ? `${capital(shown.name)} ` : "";
  const plain = shown.name.endsWith(` ${shown.own}`); // the printed number equals the position in the document
  byId("page-name").append(made("small", plain ? `of ${shown.own_last}` : `${shown.own} of ${shown.own_last}`));
  const here = documentsShown().find((one) => shown.number >= one.first && shown.number < one.first + one.pages);
  byId("page-document").hidden = !here;
  byId("page-document").textContent = here?.title ?? "";
  byId("page-document").style.setProperty("--document", `var(--document-${here?.colour ?? 0})`);
  byId("page-before").disabled = shown.number <= shown.first;
  byId("page-after").disabled = shown.number >= shown.last;
  byId("page-panel").dispatchEvent(new Event("turned"));
  byId("page-trouble").hidden = true;
  byId("page-origin").hidden = !shown.origin || byId("page-said").textContent.includes(shown.origin);
  byId("page-origin").firstElementChild.textContent = shown.origin;
  byId("page-recognise").hidden = !shown.recognisable;
  byId("page-body").scrollTop = 0;
  byId("page-words").hidden = !shown.picture;
  if (shown.picture) drawPicture(query, now);
  else drawText();
  showZoom();
}

const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);

function drawPicture(query, now) {
  const picture = byId("page-picture");
  byId("page-marks").replaceChildren();
  byId("page-sheet").dataset.state = "drawing";
  showWords();
  picture.alt = shown.name;
  picture.hidden = false;
  picture.onload = () => (byId("page-sheet").dataset.state = "drawn");
  picture.onerror = () => {
    if (now !== asked) return;
    byId("page-words").hidden = true;
    drawText();
    trouble("The picture of this page cannot be drawn; this is its text.");
  };
  picture.src = address();
  if (shown.marks.length) {
    get(`/pages/${shown.number}/marks${query}`)
      .then((told) => now === asked && drawMarks(told))
      .catch(() => null); // without marks the page is still shown
  }
}

function address() {
  const pixels = Math.ceil(byId("page-body").clientWidth * ZOOMS[zoom] * (devicePixelRatio || 1));
  return `${shown.picture}/${Math.max(50, pixels)}.png`;
}

// Returns whether a mark is the selected hit of a search.
const isNow = ([start]) => cite?.now === start;

// Draws the marks on the picture. For a passage in a table, also marks the whole row and outlines the table.
function drawMarks({ marks, of, tables }) {
  byId("page-marks").replaceChildren(
    ...tables.flatMap(({ box, rows }) => [markAt(box, "table"), ...rows.map((row) => markAt(row, "row"))]),
    ...marks.map((box, index) => markAt(box, isNow(shown.marks[of[index]]) ? "now" : "")),
  );
  reveal(byId("page-marks").querySelector(".now") ?? byId("page-marks").querySelector("i:not(.table)"));
}

function markAt([x0, y0, x1, y1], kind) {
  const mark = made("i", "", kind);
  const percent = (value) => `${value * 100}%`;
  Object.assign(mark.style, {
    left: percent(x0 - 0.004),
    top: percent(y0 - 0.002),
    width: percent(x1 - x0 + 0.008),
    height: percent(y1 - y0 + 0.004),
  });
  return mark;
}

function drawText() {
  byId("page-picture").hidden = true;
  byId("page-marks").replaceChildren();
  delete root().dataset.words;
  byId("page-text").hidden = false;
  writeText();
  reveal(byId("page-text").querySelector(".now") ?? byId("page-text").querySelector("mark"));
}

// Shows or hides the page's text next to the picture, so that extraction errors can be seen. On a phone, the text
// replaces the picture.
function showWords() {
  byId("page-words").setAttribute("aria-pressed", words);
  root().dataset.words = words ? "yes" : "no";
  byId("page-text").hidden = !words;
  if (words) writeText();
}

function writeText() {
  const text = byId("page-text");
  text.replaceChildren();
  let at = 0;
  for (const [start, end] of shown.marks) {
    if (start < at) continue;
    const mark = made("mark", shown.text.slice(...units(start, end)), isNow([start]) ? "now" : "");
    text.append(shown.text.slice(...units(at, start)), mark);
    at = end;
  }
  text.append(shown.text.slice(units(0, at)[1]));
  if (!shown.text.trim()) text.textContent = "There is no text on this page.";
}

// Converts the server's character positions to JavaScript's UTF-16 positions.
function units(start, end) {
  const signs = shown.signs ?? (shown.signs = [...shown.text]);
  const length = (from, to) => signs.slice(from, to).join("").length;
  const begin = length(0, start);
  return [begin, begin + length(start, end)];
}

function reveal(mark) {
  if (!mark) return;
  const body = byId("page-body");
  const place = () => {
    const top = mark.getBoundingClientRect().top - body.getBoundingClientRect().top;
    body.scrollTop += top - body.clientHeight / 3;
  };
  const picture = byId("page-picture");
  if (picture.hidden || picture.complete) place();
  else picture.addEventListener("load", place, { once: true });
}

function trouble(sentence) {
  byId("page-trouble").textContent = sentence;
  byId("page-trouble").hidden = false;
}

function turn(by) {
  if (!shown) return;
  const number = shown.number + by;
  if (number >= shown.first && number <= shown.last) openPage(number, { why: cite, said: told });
}

function setZoom(by) {
  const before = zoom;
  zoom = Math.max(0, Math.min(ZOOMS.length - 1, zoom + by));
  if (zoom === before || !shown) return;
  showZoom();
  if (shown.picture && !byId("page-picture").hidden) byId("page-picture").src = address();
}

function showZoom() {
  byId("page-body").style.setProperty("--zoom", ZOOMS[zoom]);
  byId("page-smaller").disabled = zoom === 0;
  byId("page-larger").disabled = zoom === ZOOMS.length - 1;
}

function keys(event) {
  if (byId("page-panel").hidden || !byId("race").hidden || document.querySelector("dialog[open]")) return;
  if (!byId("page-panel").contains(event.target) || event.target.matches("input")) return;
  const action = { ArrowLeft: () => turn(-1), ArrowRight: () => turn(1), "+": () => setZoom(1), "-": () => setZoom(-1) }[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

export function bindPages() {
  const citation = (event) => event.target.closest?.("#chat .cite");
  document.addEventListener("mouseover", (event) => citation(event) && expectCard(citation(event)));
  document.addEventListener("mouseout", (event) => citation(event) && hideCard());
  document.addEventListener("focusin", (event) => citation(event) && expectCard(citation(event)));
  document.addEventListener("focusout", (event) => citation(event) && hideCard());
  document.addEventListener("scroll", hideCard, { capture: true, passive: true });
  document.addEventListener("click", (event) => citation(event) && openCitation(citation(event)));
  document.addEventListener("keydown", keys, true);
  bindMap((page, from) => openPage(numbers[page] ?? first + page, { from }));
  byId("page-close").addEventListener("click", closePage);
  closedByEscape("page", () => !byId("page-panel").hidden, closePage);
  byId("page-before").addEventListener("click", () => turn(-1));
  byId("page-after").addEventListener("click", () => turn(1));
  byId("page-words").addEventListener("click", () => {
    words = !words;
    if (shown?.picture) showWords();
  });
  byId("page-smaller").addEventListener("click", () => setZoom(-1));
  byId("page-larger").addEventListener("click", () => setZoom(1));
}
