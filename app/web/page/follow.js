// The scroll position of the chat. At the end of the chat, the view follows the newest words. Elsewhere, the topmost
// visible line keeps its position, even if text above is inserted or redrawn.
//
// A position is a count of letters in a message. Formatting, citations and Gradio's redrawing replace the elements of
// an answer, but not its letters.

import { byId, nextFrame } from "./frame.js";

const END = 24; // maximum pixels from the end of the chat at which the view follows
const TOUCH_MS = 300; // scrolling later than this after an input was not caused by the reader
const FAR = 120; // minimum pixels from the end at which the button back to the end is shown
const LETTERS = /\p{L}/gu;
const APART = "button, .above, .passages, .thought, .under, .live, .actions, .trouble, .waiting, .unseen";

let follows = true;
// The text at the upper edge: index of its message, letters before it, text node, offset in the node, pixels below the
// edge.
let place = null;
let last = { top: 0, height: 0 };
let redrawn = false; // elements were replaced in this frame, so the browser may have scrolled by itself
let touched = -Infinity; // time of the reader's last input

const room = () => document.querySelector("#chat .panel-wrap");
const below = (shown) => shown.scrollHeight - shown.clientHeight - shown.scrollTop;
const rows = (shown) => shown.querySelectorAll(".message-row");
const letters = (text) => text.match(LETTERS)?.length ?? 0;

// Scrolls to the end of the chat and follows it, after a question or a change of chat.
export function followChat() {
  follows = true;
  keepPlace();
}

// Restores the scroll position after a change of the chat, before the browser paints. `anew`: elements were replaced.
export function keepPlace(anew = false) {
  const shown = room();
  if (!shown) return;
  if (anew && !redrawn) {
    redrawn = true;
    nextFrame(() => (redrawn = false));
  }
  if (follows) nextFrame(toEnd); // with the next frame, so that the page is laid out only once
  else stay(shown);
  offer(shown);
}

function toEnd() {
  const shown = room();
  if (!shown || !follows) return;
  shown.scrollTop = shown.scrollHeight;
  note(shown);
}

function stay(shown) {
  if (!place) return;
  const now = place.node.isConnected ? place : found(shown);
  if (!now) return;
  const moved = topOf(now) - shown.getBoundingClientRect().top - place.top;
  Object.assign(place, { node: now.node, at: now.at });
  if (Math.abs(moved) < 1) return;
  shown.scrollTop += moved;
  note(shown);
}

const note = (shown) => (last = { top: shown.scrollTop, height: shown.scrollHeight });

function offer(shown) {
  const hidden = follows || below(shown) < FAR;
  if (byId("to-end").hidden !== hidden) byId("to-end").hidden = hidden;
}

// Handles scrolling by the reader. Scrolling that follows from redrawn elements is ignored.
function scrolled(event) {
  const shown = room();
  if (event.target !== shown || (redrawn && performance.now() - touched > TOUCH_MS)) return;
  const up = shown.scrollTop < last.top - 1 && shown.scrollHeight >= last.height;
  if (Math.abs(shown.scrollTop - last.top) > 1) {
    follows = below(shown) < (up ? 2 : END);
    place = follows ? null : placeOf(shown);
  }
  note(shown);
  offer(shown);
}

// Positions -----------------------------------------------------------------------------------------------------------

function* texts(row) {
  const walker = document.createTreeWalker(row, NodeFilter.SHOW_TEXT, (node) =>
    node.parentElement.closest(APART) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT,
  );
  for (let node = walker.nextNode(); node; node = walker.nextNode()) if (letters(node.data)) yield node;
}

function boxOf(node, from, to) {
  const range = document.createRange();
  range.setStart(node, from);
  range.setEnd(node, to);
  return range.getBoundingClientRect();
}

const topOf = ({ node, at }) => boxOf(node, at, Math.min(at + 1, node.length)).top;

// Returns the position of the first text below the upper edge.
function placeOf(shown) {
  const edge = shown.getBoundingClientRect().top;
  for (const [message, row] of [...rows(shown)].entries()) {
    if (row.getBoundingClientRect().bottom <= edge) continue;
    let before = 0;
    for (const node of texts(row)) {
      if (boxOf(node, 0, node.length).bottom > edge) {
        const at = firstBelow(node, edge);
        return { message, letters: before + letters(node.data.slice(0, at)), node, at, top: topOf({ node, at }) - edge };
      }
      before += letters(node.data);
    }
  }
  return null;
}

function firstBelow(node, edge) {
  let [from, to] = [0, node.length - 1];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (boxOf(node, 0, middle + 1).bottom > edge) to = middle;
    else from = middle + 1;
  }
  while (from < node.length - 1 && !letters(node.data[from])) from += 1;
  return from;
}

// Finds ``place`` in redrawn elements. Returns null if the message does not have enough letters yet.
function found(shown) {
  const row = rows(shown)[place.message];
  let left = place.letters;
  for (const node of row ? texts(row) : []) {
    const own = letters(node.data);
    if (left < own) {
      let at = 0;
      for (const sign of node.data) {
        if (letters(sign) && left-- === 0) return { node, at };
        at += sign.length;
      }
    }
    left -= own;
  }
  return null;
}

export function bindFollow() {
  byId("chat").addEventListener("scroll", scrolled, true);
  for (const act of ["wheel", "touchmove", "pointerdown", "keydown"]) {
    byId("chat").addEventListener(act, () => (touched = performance.now()), { capture: true, passive: true });
  }
  byId("to-end").addEventListener("click", () => {
    followChat();
    document.querySelector("#ask-box textarea").focus({ preventScroll: true });
  });
  new ResizeObserver(() => keepPlace()).observe(byId("chat"));
}
