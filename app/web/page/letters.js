// An invisible text layer over a page's picture, so that words can be selected. Touch uses the browser's selection. The
// mouse selects from nearest word to nearest word, because the gaps between words have no text.
import { byId, made } from "./frame.js";
import { pageShown } from "./pages.js";

const SIZE = 100; // font size in pixels at which words are measured
const LEADING = 0.8; // font size as a fraction of the height of a word's box
const UPRIGHT = 3; // weight of the vertical distance, relative to the horizontal, in the search for the nearest word

let words = []; // words of the shown page: [text, x0, y0, x1, y1], coordinates from 0 to 1
let reaches = []; // the area of each word: its box and the empty space next to it
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
  reaches = reached(linesOf(words));
  layer().replaceChildren(...words.map(placed));
  changed();
}

// Groups words, in reading order, into lines { x0, y0, x1, y1, words }.
function linesOf(some) {
  const lines = [];
  for (const word of some) {
    const [, x0, y0, x1, y1] = word;
    const line = lines.at(-1);
    if (line && Math.min(line.y1, y1) - Math.max(line.y0, y0) > (y1 - y0) / 2 && x0 >= line.x0) {
      Object.assign(line, { y0: Math.min(line.y0, y0), x1: Math.max(line.x1, x1), y1: Math.max(line.y1, y1) });
      line.words.push(word);
    } else lines.push({ x0, y0, x1, y1, words: [word] });
  }
  return lines;
}

// Returns the area of each word: the first and last word of a line have the space beside the line, and every word has the
// space after it and down to the next line. Without it, a finger that drags a handle through such a space would select
// the whole page.
function reached(lines) {
  const sides = lines.map((line) => {
    const beside = lines.filter((other) => other !== line && other.y0 < line.y1 && other.y1 > line.y0);
    const left = beside.some((other) => other.x1 <= line.x0) ? line.x0 : 0;
    return { left, right: Math.min(1, ...beside.map(({ x0 }) => x0).filter((x0) => x0 >= line.x1)) };
  });
  return lines.flatMap((line, at) => {
    const { left, right } = sides[at];
    const across = lines.filter((other, index) => other !== line && sides[index].left < right && sides[index].right > left);
    const middle = (line.y0 + line.y1) / 2;
    const top = across.some((other) => other.y0 < middle) ? line.y0 : 0;
    const bottom = Math.max(line.y1, Math.min(1, ...across.map(({ y0 }) => y0).filter((y0) => y0 > middle)));
    return line.words.map(([, x0], place) => ({ left: place ? x0 : left, top, right: line.words[place + 1]?.[1] ?? right, bottom }));
  });
}

// Creates the element of a word. The element reaches to the next word of the line, so that a selection has no gaps.
function placed([text, x0, y0, x1, y1], at) {
  const next = words[at + 1];
  const goesOn = next && next[1] > x1 && next[1] - x1 < y1 - y0 && Math.min(next[4], y1) - Math.max(next[2], y0) > (y1 - y0) / 2;
  const word = made("span", text);
  const sheet = byId("page-picture");
  const high = sheet.naturalHeight / sheet.naturalWidth; // the page's height in widths of the page
  const tall = (y1 - y0) * high;
  measure.font = `${SIZE}px sans-serif`;
  const wide = (measure.measureText(goesOn ? text : text.trimEnd()).width / SIZE) * LEADING * tall;
  const end = goesOn ? next[1] : x1;
  const scale = wide ? (end - x0) / wide : 1;
  const { left, top, right, bottom } = reaches[at];
  const percent = (/** @type {number} */ share) => `${Math.max(0, share) * 100}cqw`;
  Object.assign(word.style, {
    left: `${left * 100}%`,
    top: `${top * 100}%`,
    padding: [(y0 - top) * high, (right - end) / scale, (bottom - y1) * high, (x0 - left) / scale].map(percent).join(" "),
    fontSize: `${LEADING * tall * 100}cqw`,
    lineHeight: 1 / LEADING,
    transform: `scaleX(${scale})`,
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
  let end = 0;
  const found = words.filter((_, index) => {
    const start = end;
    end += letters[index].length;
    return end > best && start < best + looked.length;
  });
  return linesOf(found).map(({ x0, y0, x1, y1 }) => [x0, y0, x1, y1]);
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
  let byMouse = false;
  layer().addEventListener("pointerdown", (event) => {
    byMouse = event.pointerType === "mouse";
    if (!byMouse || event.button) return;
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
  // keeps the browser from starting its own selection with the mouse; the tap of a finger ends a selection
  layer().addEventListener("mousedown", (event) => byMouse && event.preventDefault());
  layer().addEventListener("dblclick", (event) => {
    const [node] = nearest(event) ?? [];
    if (node) getSelection().setBaseAndExtent(node, 0, node, node.length);
  });
}
