// An invisible text layer over a page's picture, so that words can be selected. Touch uses the browser's selection. The
// mouse selects from nearest word to nearest word, because the gaps between words have no text.
import { byId, made } from "./frame.js";
import { pageShown } from "./pages.js";

const SIZE = 100; // font size in pixels at which words are measured
const LEADING = 0.8; // font size as a fraction of the height of a word's box
const UPRIGHT = 3; // weight of the vertical distance, relative to the horizontal, in the search for the nearest word

let words = []; // words of the shown page: [text, x0, y0, x1, y1], coordinates from 0 to 1
let shown = ""; // "BOOK/PAGE" of the shown words; "" if there are none
const measure = document.createElement("canvas").getContext("2d");

const layer = () => byId("page-letters");

export async function showLetters(changed) {
  const page = pageShown();
  const book = byId("trifold").dataset.pageBook;
  const wanted = page && byId("page-sheet").dataset.state === "drawn" && !byId("page-picture").hidden ? `${book}/${page}` : "";
  if (wanted === shown) return;
  shown = wanted;
  words = [];
  layer().replaceChildren();
  if (!wanted) return changed();
  const answer = await fetch(`/pages/${page}/words`).catch(() => null);
  if (shown !== wanted) return;
  if (answer?.ok) words = (await answer.json()).words;
  if (shown !== wanted) return;
  layer().replaceChildren(...words.map(placed));
  changed();
}

// Creates the element of a word. The element reaches to the next word of the line, so that a selection has no gaps.
function placed([text, x0, y0, x1, y1], at) {
  const next = words[at + 1];
  const goesOn = next && next[1] > x1 && next[1] - x1 < y1 - y0 && Math.min(next[4], y1) - Math.max(next[2], y0) > (y1 - y0) / 2;
  const word = made("span", text);
  const sheet = byId("page-picture");
  // height of the word as a fraction of the page's width
  const tall = (y1 - y0) * (sheet.naturalHeight / sheet.naturalWidth);
  measure.font = `${SIZE}px sans-serif`;
  const wide = (measure.measureText(goesOn ? text : text.trimEnd()).width / SIZE) * LEADING * tall;
  Object.assign(word.style, {
    left: `${x0 * 100}%`,
    top: `${y0 * 100}%`,
    fontSize: `${LEADING * tall * 100}cqw`,
    lineHeight: 1 / LEADING,
    transform: wide ? `scaleX(${((goesOn ? next[1] : x1) - x0) / wide})` : "",
  });
  return word;
}

// Reduces a text to letters and digits, in order to ignore spacing, punctuation, case and accents.
export const plain = (text) => text.normalize("NFKD").toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");

// Returns the rectangles [x0, y0, x1, y1] of a passage, one per line. ``share``: expected fraction of the page's
// letters before the passage. If the passage occurs several times, the occurrence nearest to ``share`` is used.
export function placesOf(passage, share) {
  const letters = words.map(([text]) => plain(text));
  const all = letters.join("");
  const looked = plain(passage);
  let best = -1;
  for (let at = looked ? all.indexOf(looked) : -1; at >= 0; at = all.indexOf(looked, at + 1)) {
    if (best < 0 || Math.abs(at / all.length - share) < Math.abs(best / all.length - share)) best = at;
  }
  if (best < 0) return [];
  const rows = [];
  let end = 0;
  words.forEach(([, x0, y0, x1, y1], index) => {
    const start = end;
    end += letters[index].length;
    if (end <= best || start >= best + looked.length) return;
    const row = rows.at(-1);
    if (row && Math.min(row[3], y1) - Math.max(row[1], y0) > (y1 - y0) / 2 && x0 >= row[0]) {
      [row[1], row[2], row[3]] = [Math.min(row[1], y0), Math.max(row[2], x1), Math.max(row[3], y1)];
    } else rows.push([x0, y0, x1, y1]);
  });
  return rows;
}

/**
 * Returns the text node and the offset in the node that are nearest to the pointer.
 * @returns {[Text, number] | null}
 */
function nearest(event) {
  const box = layer().getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width;
  const y = (event.clientY - box.top) / box.height;
  const off = (value, from, to) => Math.max(from - value, 0, value - to);
  let best = -1;
  let least = Infinity;
  words.forEach(([, x0, y0, x1, y1], at) => {
    const away = off(x, x0, x1) + UPRIGHT * off(y, y0, y1);
    if (away < least) [best, least] = [at, away];
  });
  if (best < 0) return null;
  const [text, x0, , x1] = words[best];
  const within = Math.max(0, Math.min(1, (x - x0) / (x1 - x0)));
  return [layer().children[best].firstChild, Math.round(within * text.trimEnd().length)];
}

export function bindLetters() {
  /** @type {[Text, number] | null} */
  let from = null;
  layer().addEventListener("pointerdown", (event) => {
    if (event.pointerType !== "mouse" || event.button) return;
    event.preventDefault();
    byId("page-body").focus({ preventScroll: true });
    const selection = getSelection();
    from = nearest(event);
    if (!from) return;
    if (event.shiftKey && layer().contains(selection.anchorNode)) selection.extend(...from);
    else selection.setBaseAndExtent(...from, ...from);
    layer().setPointerCapture(event.pointerId);
  });
  layer().addEventListener("pointermove", (event) => {
    const to = from && event.buttons === 1 ? nearest(event) : null;
    if (to) getSelection().setBaseAndExtent(...from, ...to);
  });
  layer().addEventListener("pointerup", () => (from = null));
  // keeps the browser from starting its own selection
  layer().addEventListener("mousedown", (event) => event.preventDefault());
  layer().addEventListener("dblclick", (event) => {
    const [node] = nearest(event) ?? [];
    if (node) getSelection().setBaseAndExtent(node, 0, node, node.length);
  });
}
