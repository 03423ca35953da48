// The conversation: Gradio's chatbot shows what was written down, the live stream brings the answer that is being written.
//
// Gradio is asked to show the chat when the stream names a record that it does not show yet: a question has come, another
// version was chosen, an answer has ended. In between only the place of the open answer changes, and only from here.

import { live } from "./figures.js";
import { bindFollow, followChat, keepPlace } from "./follow.js";
import { byId, endForeignFrames, made } from "./frame.js";
import { hear, hearEnd } from "./spoken.js";

const RETRY_MS = 1500;
// A sign of life goes with the words where they come, and costs frames of its own only where none do. An animation of the
// style sheet would have the browser draw in all sixty a second, even one in steps, and without a graphics card that is
// the engine's time.
const SIGNS = '#chat .caret, :is(#chat, #card) .waiting, [data-model="loading"] .dot';
const BEAT_MS = 550;
const ALONE_MS = 900;
const MARKS = /[*`]+/g; // of Markdown: what is formatted next knows what they mean

let shown = ""; // the chat
let wanted = ""; // the record that the stream tells of
let retry = 0;
let open = null; // the answer that is being written, as far as it has been told: its name, its text, what is formatted of it
let beaten = 0;
let loaded = false; // Gradio shows a record

// Gradio's record -----------------------------------------------------------------------------------------------------

/** @param {View["chat"]} chat */
export function showChat(chat) {
  byId("trifold").dataset.turns = chat.turns ? "some" : "none";
  if (shown !== chat.id) followChat();
  shown = chat.id;
  wanted = chat.record;
  follow();
}

// The name of the shown record comes with it, as the words of the button that asks for it.
function follow() {
  clearTimeout(retry);
  if (byId("trifold").dataset.live === "no") return; // the first news of the server will lead here again
  const refresh = byId("refresh");
  if (refresh?.textContent.trim() === wanted) {
    // Gradio's loading sign asks for a frame in every frame, even after Gradio has removed the sign.
    if (!loaded) endForeignFrames();
    loaded = true;
    return;
  }
  refresh?.click();
  retry = setTimeout(follow, RETRY_MS);
}

function bringGradio() {
  // What it describes its routes with; ours are private, and the route that would tell so is shut.
  window.gradio_api_info = { named_endpoints: {}, unnamed_endpoints: {} };
  const app = made("gradio-app");
  app.setAttribute("embed", "false");
  app.setAttribute("eager", "true");
  app.setAttribute("theme_mode", document.documentElement.dataset.theme);
  byId("chat").prepend(app);
  // @ts-expect-error -- Gradio's own script, which is not in this folder
  import("/gradio.js");
}

// The open answer -----------------------------------------------------------------------------------------------------

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
  else if (place.formatted !== open.html || (open.text && !place.querySelector(".caret"))) place.innerHTML = open.html;
  if (open.text) {
    caretOf(place).textContent = tail;
    if (place.lastChild !== live) place.append(live);
  }
  Object.assign(place, { formatted: open.html, tail, waits: open.waiting });
  keepPlace();
  beat(BEAT_MS);
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

// Gradio has a message read aloud with all its HTML, and an answer anew with every word; spoken.js tells it by sentences.
function tidy() {
  document.querySelector('#chat [role="log"][aria-live="polite"]')?.setAttribute("aria-live", "off");
  for (const message of document.querySelectorAll('#chat [data-testid][aria-label*="<"]')) {
    message.setAttribute("aria-label", message.getAttribute("aria-label").replace(/<[^>]*>/g, " ").replace(/\s+/g, " "));
  }
}

export function bindChat() {
  setInterval(() => beat(ALONE_MS), BEAT_MS);
  // Gradio draws in its own time; a place that it has just made is filled before it is painted.
  new MutationObserver((changes) => {
    draw();
    tidy();
    keepPlace(changes.some((change) => [...change.removedNodes].some((node) => node.nodeType === Node.ELEMENT_NODE)));
  }).observe(byId("chat"), { subtree: true, childList: true });
  bindFollow();
  bringGradio();
}
