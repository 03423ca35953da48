// Where the reader is in the chat. The view follows the newest words only while the reader is at the end of the chat;
// elsewhere the line under the reader's eyes stays where it is, whatever is put in above it or drawn anew.
//
// A place is a count of letters in a message: words are formatted again, marks come between them, and Gradio draws the
// ended answer in elements of its own, but the letters stay the same.

import { byId, nextFrame } from "./frame.js";

const END = 24; // pixels from the end of the chat within which somebody follows it
const TOUCH_MS = 300; // after which what moves is not the reader's doing
const FAR = 120; // pixels from it from which a button leads back
const LETTERS = /\p{L}/gu;
const APART = "button, .above, .under, .live, .actions, .trouble, .waiting, .unseen";

let follows = true;
let place = null; // what stands at the upper edge: message, letters before it, its node, how far below the edge it begins
let last = { top: 0, height: 0 };
let redrawn = false; // in this frame: the chat was shorter for a moment, and may have moved by itself
let touched = -Infinity; // when the reader last did something that may scroll

const room = () => document.querySelector("#chat .panel-wrap");
const below = (shown) => shown.scrollHeight - shown.clientHeight - shown.scrollTop;
const rows = (shown) => shown.querySelectorAll(".message-row");
const letters = (text) => text.match(LETTERS)?.length ?? 0;

// The end of the chat is shown, and followed: a question was asked, or another chat is open.
export function followChat() {
  follows = true;
  keepPlace();
}

// Before the page is painted: the chat has changed; `anew`: elements of it were put in the place of others.
export function keepPlace(anew = false) {
  const shown = room();
  if (!shown) return;
  if (anew && !redrawn) {
    redrawn = true;
    nextFrame(() => (redrawn = false));
  }
  if (follows) nextFrame(toEnd); // with the frame: the whole page is laid out once
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

// The reader has moved, or the chat has become shorter.
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

// Places ----------------------------------------------------------------------------------------------------------------

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

// The first words below the upper edge.
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

// The place in what has been drawn anew; null where there are not so many letters yet.
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
