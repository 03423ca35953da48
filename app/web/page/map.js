// The live map: one bar for every page of the book. Pages that have been read are filled. Pages with high scores glow.

import { byId, made, nextFrame } from "./frame.js";

const FADE_MS = 420; // time constant of the fading: after this time a third of the glow is left
// The map is redrawn with messages of the stream, at most every STEP_MS. Without messages, it is redrawn every ALONE_MS
// while a glow fades. Frames are few, because without a graphics card every frame takes time from the engine.
const STEP_MS = 150;
const ALONE_MS = 900;
const ALIKE = 8; // number of first letters by which titles are alike, and of their last letters that stay visible
const SEEN = 0.02; // minimum difference in brightness that causes another frame
const BRIGHTEST = 100;

let pages = 0;
let unit = "page";
let labels = [];
let documents = []; // documents of the open book, if there are several
let first = 1; // number of the first page
let read = 0;
let reading = null;
let readLine = "";
let target = []; // newest scores, from 0 to 1
let level = []; // drawn brightness, which follows ``target`` gradually
let drawn = 0;
let frame = 0;
let later = 0;
let fading = false;

const calm = matchMedia("(prefers-reduced-motion: reduce)");

/** @param {View["map"]} map */
export function showMap(map) {
  ({ pages, unit, labels } = map);
  target = new Array(pages).fill(0);
  level = new Array(pages).fill(0);
  byId("trifold").dataset.map = pages ? "yes" : "no";
  drawDocuments();
  redraw();
}

// Draws a strip with title and colour above the pages of each document.
/** @param {View["documents"]} now */
export function showMapDocuments(now) {
  documents = now;
  drawDocuments();
}

/** @param {View["paging"]} paging */
export function showMapPaging(paging) {
  first = paging.first;
  drawDocuments();
}

function drawDocuments() {
  const strips = documents.map((one) => {
    const start = Math.max(0, one.first - first);
    const end = Math.min(pages, one.first + one.pages - first);
    const strip = made("span", "");
    strip.append(...titled(one.called, documents));
    strip.title = one.title;
    strip.style.setProperty("--document", `var(--document-${one.colour})`);
    strip.style.flexGrow = Math.max(0, end - start);
    strip.hidden = end <= start;
    return strip;
  });
  byId("map-documents").hidden = documents.length < 2;
  byId("map-documents").replaceChildren(...strips);
}

// Returns a title in one piece, or in two if another document's title begins alike: a narrow strip cuts the first one.
function titled(title, documents) {
  const alike = documents.filter(({ called }) => called.startsWith(title.slice(0, ALIKE)));
  if (alike.length < 2 || title.length <= 2 * ALIKE) return [title];
  return [made("b", title.slice(0, -ALIKE)), made("b", title.slice(-ALIKE))];
}

/** @param {View["pages_read"]} count */
export function showRead(count) {
  read = count;
  redraw();
}

/** @param {View["reading"]} now @param {View["read"]} [line] */
export function showReading(now, line) {
  if (line === undefined) reading = now;
  else readLine = line;
  const partly = (read > 0 && read < pages) || byId("trifold").dataset.stage === "unread";
  byId("map-words").textContent = reading ? [reading.where, reading.pace].filter(Boolean).join(" · ") : readLine;
  byId("stop-reading").hidden = !reading;
  byId("read-rest").hidden = Boolean(reading) || !readLine || !partly;
  redraw();
}

/** @param {View["scores"]} scores */
export function glow(scores) {
  if (scores.length === pages) target = scores.map((score) => score / BRIGHTEST);
  else target = new Array(pages).fill(0);
  redraw();
}

// Redraws a fading glow when a message of the stream has arrived.
export function keepUp() {
  if (fading) redraw();
}

function redraw() {
  const wait = drawn + STEP_MS - performance.now();
  if (wait <= 0) soon();
  else drawLater(wait);
}

function soon() {
  clearTimeout(later);
  later = 0;
  if (!frame) frame = nextFrame(draw);
}

function drawLater(wait) {
  if (!later && !frame) later = setTimeout(soon, wait);
}

function bars(width) {
  const count = Math.max(1, Math.min(pages, Math.floor(width / 2)));
  const bar = width / count;
  return { count, bar, per: pages / count };
}

function draw(now) {
  frame = 0;
  const canvas = byId("map-canvas");
  const scale = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width || !pages) return;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  fading = follow(now);
  const paint = canvas.getContext("2d");
  paint.setTransform(scale, 0, 0, scale, 0, 0);
  paint.clearRect(0, 0, width, height);
  paintBars(paint, width, height);
  if (fading) drawLater(ALONE_MS);
}

function follow(now) {
  const step = calm.matches ? 1 : 1 - Math.exp(-Math.min(now - drawn, ALONE_MS) / FADE_MS);
  drawn = now;
  let moving = false;
  for (let page = 0; page < pages; page++) {
    const gap = target[page] - level[page];
    const rising = gap > 0 ? Math.min(1, step * 3) : step;
    level[page] += gap * rising;
    if (Math.abs(target[page] - level[page]) > SEEN) moving = true;
    else level[page] = target[page];
  }
  return moving;
}

function paintBars(paint, width, height) {
  const style = getComputedStyle(document.documentElement);
  const [blank, filled, lamp] = ["--page", "--page-read", "--lamp"].map((name) => style.getPropertyValue(name).trim());
  const { count, bar, per } = bars(width);
  const gap = bar > 4 ? 1.5 : bar > 2.5 ? 0.75 : 0;
  const head = reading ? reading.fraction * count : -1;
  for (let index = 0; index < count; index++) {
    const from = Math.floor(index * per);
    const to = Math.max(from + 1, Math.floor((index + 1) * per));
    const light = Math.max(...level.slice(from, to));
    const done = from < read || index < head;
    const x = index * bar;
    const tall = height * (0.46 + 0.54 * light);
    paint.globalAlpha = 1;
    paint.fillStyle = done ? filled : blank;
    paint.fillRect(x, height - (light > 0.03 ? tall : height * 0.46), bar - gap, light > 0.03 ? tall : height * 0.46);
    if (light > 0.03) {
      paint.globalAlpha = Math.min(1, 0.25 + light * 0.9);
      paint.fillStyle = lamp;
      paint.fillRect(x, height - tall, bar - gap, tall);
    }
    if (head >= index && head < index + 1) {
      paint.globalAlpha = 1;
      paint.fillStyle = lamp;
      paint.fillRect(x, 0, Math.max(2, bar - gap), height);
    }
  }
  paint.globalAlpha = 1;
}

// Returns the index of the page under the pointer, or -1.
function pageAt(clientX) {
  const box = canvas.getBoundingClientRect();
  const { count, bar, per } = bars(box.width);
  const index = Math.floor((clientX - box.left) / bar);
  if (!pages || index < 0 || index >= count) return -1;
  const from = Math.floor(index * per);
  const to = Math.max(from + 1, Math.floor((index + 1) * per));
  // If several pages share a bar, the page with the highest score is used.
  let best = from;
  for (let page = from; page < to; page++) if (target[page] > target[best]) best = page;
  return best;
}

function name(page) {
  const tip = byId("map-tip");
  tip.hidden = page < 0;
  if (page < 0) return;
  const label = labels[page] ?? String(page + 1);
  tip.textContent = `${/^\d+$/.test(label) ? `${unit} ` : ""}${label}${page >= read ? ", not read" : ""}`;
  const width = canvas.clientWidth;
  const half = tip.offsetWidth / 2;
  const middle = ((page + 0.5) / pages) * width;
  tip.style.left = `${Math.max(half, Math.min(width - half, middle)) + canvas.offsetLeft}px`;
}

const canvas = byId("map-canvas");
let cursor = -1; // index of the page selected with the keyboard; -1 if there is none

export function bindMap(open) {
  canvas.addEventListener("pointermove", (event) => name(pageAt(event.clientX)));
  canvas.addEventListener("pointerleave", () => name(-1));
  canvas.addEventListener("click", (event) => {
    const page = pageAt(event.clientX);
    if (page >= 0) open(page, canvas);
  });
  canvas.addEventListener("blur", () => name((cursor = -1)));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (step && pages) {
      cursor = Math.max(0, Math.min(pages - 1, cursor < 0 ? target.indexOf(Math.max(...target)) : cursor + step));
      name(cursor);
    } else if (event.key === "Enter" && cursor >= 0) open(cursor, canvas);
    else return;
    event.preventDefault();
  });
}

new ResizeObserver(redraw).observe(canvas);
new MutationObserver(redraw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
