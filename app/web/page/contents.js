// The table of contents. A chapter glows like its pages on the map, opens its first page, and can be summarized.
import { askQuestion } from "./ask.js";
import { Ticks, canChoose, readChapters } from "./chapters.js";
import { byId, made, tell } from "./frame.js";
import { openPage, pageShown } from "./pages.js";
import { SidePanel } from "./side.js";

const BRIGHTEST = 100;
const MOST_BARS = 60; // maximum bars in a chapter's strip; a longer chapter shares bars between pages
const SEEN = 3; // minimum score that is drawn

const narrow = matchMedia("(max-width: 820px)");

let version = ""; // version of the newest table of contents
let fetched = "";
let scores = [];
let first = 1; // number of the first page on the map
let numbers = []; // page numbers on the map, if the pages have gaps; otherwise empty
let entries = []; // the shown chapters, each with its element ``item``
let ticks = null; // the checkboxes; null unless chapters are being chosen
let told = null; // newest response of /contents

const side = new SidePanel("contents");
const panel = () => side.element;

/** @param {View["contents"]} now */
export function showContents(now) {
  version = now;
  if (side.isOpen) bring();
}

/** @param {View["scores"]} now */
export function showContentsGlow(now) {
  scores = now;
  if (side.isOpen) paint();
}

/** @param {View["paging"]} paging */
export function showContentsPaging(paging) {
  first = paging.first;
  numbers = paging.numbers;
}

async function bring() {
  if (fetched === version) return paint();
  const wanted = version;
  const answer = await fetch("/contents").catch(() => null);
  if (!answer?.ok || wanted !== version) return;
  told = await answer.json();
  fetched = wanted;
  const at = panel().contains(document.activeElement) ? focusable().indexOf(document.activeElement) : -1;
  draw();
  if (at >= 0) focusable()[at]?.focus();
}

function draw() {
  byId("contents-said").textContent = told.said;
  byId("contents-choose").hidden = !canChoose(told);
  if (!canChoose(told)) choose(false);
  else if (ticks) choose(true);
  const lists = [made("ol")]; // open list of each level
  entries = told.entries.map((entry, at) => {
    const above = lists.at(-1).lastElementChild; // possible parent chapter
    const level = Math.min(entry.level, above ? lists.length : 0);
    if (level === lists.length) {
      lists.push(made("ol"));
      above.append(lists.at(-1));
    }
    lists.length = level + 1;
    const item = chapter(entry);
    if (ticks) addTick(item, at);
    lists[level].append(item);
    return { ...entry, item };
  });
  byId("contents-list").replaceChildren(lists[0]);
  paint();
  markPage();
}

function chapter(entry) {
  const item = made("li");
  const row = made("div", "", "chapter");
  const open = made("button", "", "open");
  open.type = "button";
  open.append(made("span", entry.title), made("small", entry.name), made("i"));
  open.addEventListener("click", () => openPage(entry.first, { from: open }));
  row.append(open);
  if (entry.ask) {
    const button = made("button", "Summarize", "tf-link");
    button.type = "button";
    button.title = entry.ask;
    button.dataset.own = "title"; // the question as it is asked
    button.setAttribute("aria-label", `Summarize “${entry.title}”`);
    button.addEventListener("click", () => {
      if (narrow.matches) side.close();
      askQuestion(entry.ask);
    });
    row.append(button);
  }
  item.append(row);
  return item;
}

// Starts or ends the choice of chapters to read instead of the current ones. The chapters that are read come ticked.
function choose(on) {
  panel().toggleAttribute("data-choosing", on);
  byId("contents-choose").setAttribute("aria-pressed", String(on));
  byId("contents-foot").hidden = !on;
  if (!on) return (ticks = null);
  const before = ticks?.boxes.map(({ box }) => box.checked);
  ticks = new Ticks(told.entries, told.sizes, (words, ready) => {
    byId("contents-count").textContent = words;
    byId("contents-these").disabled = !ready;
  });
  ticks.boxes.forEach(({ box, read }, at) => (box.checked = before?.length === ticks.boxes.length ? before[at] : read));
  ticks.count();
}

function addTick(item, at) {
  const { box, title } = ticks.boxes[at];
  box.setAttribute("aria-label", `Read “${title}”`);
  const open = item.querySelector("button.open");
  open.before(box);
  open.querySelector("small").textContent = ticks.sizeOf(at);
}

function toggleChoosing() {
  choose(!ticks);
  draw();
}

async function readChosen() {
  const trouble = await readChapters(ticks);
  if (trouble) return tell(trouble);
  choose(false);
  if (narrow.matches) side.close();
  else draw();
}

// Draws a strip of page bars below every chapter's title.
function paint() {
  const style = getComputedStyle(document.documentElement);
  const lamp = style.getPropertyValue("--lamp").trim();
  for (const entry of entries) {
    const pages = scores.filter((_, at) => {
      const number = numbers[at] ?? first + at;
      return entry.first <= number && number <= entry.last;
    });
    const count = Math.min(MOST_BARS, pages.length);
    const bars = Array.from({ length: count }, (_, bar) => {
      const from = Math.floor((bar * pages.length) / count);
      return Math.max(...pages.slice(from, Math.max(from + 1, Math.floor(((bar + 1) * pages.length) / count))));
    });
    const stops = bars.map((score, bar) => {
      const colour = score < SEEN ? "transparent" : `color-mix(in srgb, ${lamp} ${Math.round(25 + (75 * score) / BRIGHTEST)}%, transparent)`;
      return `${colour} ${(100 * bar) / count}% ${(100 * (bar + 1)) / count}%`;
    });
    const strip = entry.item.querySelector("i");
    const image = bars.some((score) => score >= SEEN) ? `linear-gradient(to right, ${stops.join(", ")})` : "none";
    if (strip.dataset.image === image) continue;
    strip.dataset.image = image;
    strip.style.backgroundImage = image;
  }
}

// Marks the innermost chapter of the shown page.
function markPage() {
  const page = pageShown();
  const here = page === undefined ? undefined : entries.findLast((entry) => entry.first <= page && page <= entry.last);
  panel().querySelector("[aria-current]")?.removeAttribute("aria-current");
  here?.item.querySelector("button.open").setAttribute("aria-current", "location");
}

const focusable = () => [...panel().querySelectorAll("#contents-list button")];

async function open(from) {
  side.open(from);
  await bring();
  const here = panel().querySelector("[aria-current]") ?? panel().querySelector("button.open");
  if (here && document.activeElement === panel()) here.focus();
}

function keys(event) {
  const chapters = [...panel().querySelectorAll("button.open")];
  const at = chapters.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: chapters.length - 1 }[event.key];
  if (to === undefined || !chapters.length) return;
  event.preventDefault();
  chapters[Math.max(0, Math.min(chapters.length - 1, to))].focus();
}

export function bindContents() {
  side.bind(open);
  byId("contents-choose").addEventListener("click", toggleChoosing);
  byId("contents-these").addEventListener("click", readChosen);
  panel().addEventListener("keydown", keys);
  for (const change of ["turned", "shut"]) byId("page-panel").addEventListener(change, markPage);
}
