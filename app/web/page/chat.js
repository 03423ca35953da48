// The chat. Gradio's chatbot shows the stored messages. The live stream brings the answer in progress.
//
// Gradio redraws the chat only if the live stream names a new record: after a question, a change of version, or the end
// of an answer. Between two records only this script changes the chat, and only the element of the answer in progress.

import { live } from "./figures.js";
import { bindFollow, followChat, keepPlace } from "./follow.js";
import { byId, endForeignFrames, made } from "./frame.js";
import { hear, hearChat, hearEnd } from "./spoken.js";

const RETRY_MS = 1500;
// Signs that blink while an answer is awaited or written. They blink with the drawing of new words, every BEAT_MS, or
// every ALONE_MS if no words come. A CSS animation, even one in steps, would draw 60 frames a second. Without a
// graphics card that takes processor time from the engine.
const SIGNS = '#chat .caret, :is(#chat, #card) .waiting, [data-model="loading"] .dot';
const BEAT_MS = 550;
const ALONE_MS = 900;
const MARKS = /[*`]+/g; // Markdown marks, removed from the tail until it is formatted

let shown = ""; // id of the chat that is shown
let wanted = ""; // name of the newest record
let retry = 0;
// The answer in progress: its id, its text, the HTML of the formatted start, where that start ends, and the waiting
// words.
let open = null;
let beaten = 0;
let loaded = false; // whether Gradio shows a record

// Gradio's record -----------------------------------------------------------------------------------------------------

/** @param {View["chat"]} chat */
export function showChat(chat) {
  byId("trifold").dataset.turns = chat.turns ? "some" : "none";
  if (shown !== chat.id) {
    followChat();
    hearChat();
    byId("trifold").dataset.shown = "no"; // hides the chat before, which Gradio draws until it has the new record
  }
  shown = chat.id;
  wanted = chat.record;
  follow();
}

// Has Gradio show the newest record. The text of #refresh is the name of the record that Gradio shows.
function follow() {
  clearTimeout(retry);
  if (byId("trifold").dataset.live === "no") return; // the next message of the stream calls this function again
  if (isShown()) {
    // Gradio's loading sign requests animation frames forever, even after Gradio has removed the sign.
    if (!loaded) endForeignFrames();
    loaded = true;
    return;
  }
  byId("refresh")?.click();
  retry = setTimeout(follow, RETRY_MS);
}

// Returns whether Gradio shows the newest record, and shows the chat then.
function isShown() {
  if (byId("refresh")?.textContent.trim() !== wanted) return false;
  byId("trifold").dataset.shown = "yes";
  return true;
}

function bringGradio() {
  // Gradio would fetch a description of its routes. The server blocks that request, so an empty description is given
  // here.
  window.gradio_api_info = { named_endpoints: {}, unnamed_endpoints: {} };
  const app = made("gradio-app");
  app.setAttribute("embed", "false");
  app.setAttribute("eager", "true");
  app.setAttribute("theme_mode", document.documentElement.dataset.theme);
  byId("chat").prepend(app);
  // @ts-expect-error -- Gradio's own script, which is not in this folder
  import("/gradio.js");
}

// Answer in progress --------------------------------------------------------------------------------------------------

/** @param {View["writing"]} news */
export function showWriting(news) {
  if (!news) {
    open = null;
    hearEnd();
    return;
  }
  if (open?.answer !== news.answer) open = { answer: news.answer, text: "", html: "", at: 0, waiting: "" };
  open.text = news.whole ? news.text : open.text + news.text;
  for (const part of ["html", "at", "waiting"]) open[part] = news[part] ?? open[part];
  hear(open.answer, open.text);
  draw();
}

function draw() {
  const place = [...document.querySelectorAll("#chat .bot .writing")].at(-1);
  if (!place || !open) return;
  const tail = open.text.slice(open.at).replace(MARKS, "");
  if (place.formatted === open.html && place.tail === tail && place.waits === open.waiting) return;
  if (!open.text && !open.html) place.replaceChildren(made("span", open.waiting || "Thinking…", "waiting"));
  else if (place.formatted !== open.html || !open.text || !place.querySelector(".caret")) format(place);
  if (open.text) {
    caretOf(place).textContent = tail;
    if (place.lastChild !== live) place.append(live);
  }
  Object.assign(place, { formatted: open.html, tail, waits: open.waiting });
  keepPlace();
  beat(BEAT_MS);
}

// Writes the formatted start of the answer. The passages above it stay folded if the reader has folded them, and the
// thought stays open if the reader has opened it.
function format(place) {
  const folded = place.querySelector(".passages:not([open])");
  const thinks = place.querySelector(".thought[open]");
  place.innerHTML = open.html;
  if (thinks) place.querySelector(".thought")?.setAttribute("open", "");
  if (folded) place.querySelector("details.passages")?.removeAttribute("open");
  if (!open.text && open.waiting) place.append(made("span", open.waiting, "waiting"));
}

function caretOf(place) {
  const found = place.querySelector(".caret");
  if (found) return found;
  const paragraph = made("p");
  paragraph.append(made("span", "", "caret at-0"));
  place.append(paragraph);
  return paragraph.firstChild;
}

function beat(pause) {
  if (performance.now() - beaten < pause) return;
  beaten = performance.now();
  for (const sign of document.querySelectorAll(SIGNS)) sign.toggleAttribute("data-dim");
}

// Removes Gradio's live region and the HTML in its labels. A screen reader would read the whole answer again with every
// word. spoken.js gives it whole sentences instead.
function tidy() {
  document.querySelector('#chat [role="log"][aria-live="polite"]')?.setAttribute("aria-live", "off");
  for (const message of document.querySelectorAll('#chat [data-testid][aria-label*="<"]')) {
    message.setAttribute("aria-label", message.getAttribute("aria-label").replace(/<[^>]*>/g, " ").replace(/\s+/g, " "));
  }
}

export function bindChat() {
  setInterval(() => beat(ALONE_MS), BEAT_MS);
  // Fills an answer's element as soon as Gradio has created it, before the browser paints.
  new MutationObserver((changes) => {
    isShown();
    draw();
    tidy();
    keepPlace(changes.some((change) => [...change.removedNodes].some((node) => node.nodeType === Node.ELEMENT_NODE)));
  }).observe(byId("chat"), { subtree: true, childList: true, characterData: true });
  bindFollow();
  bringGradio();
}
