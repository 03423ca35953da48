// Between our frame and Gradio's chat: which chat is shown, whether somebody is asking, and a few keys.
import { write } from "./acts.js";
import { post } from "./frame.js";
import { tell } from "./library.js";

const byId = (id) => document.getElementById(id);
const press = (id) => byId(id)?.click();

let shown = null; // the chat on the desk as the stream last told it
let asking = false;
let wrote = false; // whether the answer that is being written, or was last, is this tab's

const askedHere = () => Boolean(byId("stop")?.checkVisibility());

// The chat on the desk has changed. Unless this tab is writing it, fetch it again.
export function showChat(chat) {
  const moved = shown && (shown.turns !== chat.turns || shown.last !== chat.last);
  const other = shown && (shown.id !== chat.id || (moved && !askedHere() && !asking));
  shown = chat;
  byId("trifold").dataset.turns = chat.turns ? "some" : "none";
  if (other) press("refresh");
}

export function showAsking(now) {
  const ended = asking && !now;
  if (now && !asking) wrote = false;
  asking = now;
  byId("trifold").dataset.asking = now ? "yes" : "no";
  if (ended) settle();
}

// An answer has ended, here or in another tab: show the chat as it was written down, once this tab has let go of it.
function settle() {
  if (asking) return;
  if (askedHere()) setTimeout(settle, 150);
  else if (!wrote || differs()) press("refresh");
}

// Whether the page shows other turns, or other versions of them, than the stream tells of. The last answer names the
// whole path of versions that leads to it, and its button names the last answer.
function differs() {
  const again = [...document.querySelectorAll('#chat button.act[value^="again:"]')].at(-1);
  const last = again ? Number(again.value.split(":")[1]) : 0;
  return Boolean(shown) && (document.querySelectorAll("#chat .user-row").length !== shown.turns || last !== shown.last);
}

// Two answers of the server can overtake each other (a new chat, and the old one fetched again), and the stream may tell
// in one breath of an answer's end and of another version. When nobody is asking, the page has to show what the stream
// tells of; where they stay apart, the chat is fetched again.
let apart = 0;
function reconcile() {
  apart = !asking && !askedHere() && differs() ? apart + 1 : 0;
  if (apart >= 2) {
    apart = 0;
    press("refresh");
  }
}

// Called with every piece of news: remembers that this tab is the one that asks.
export function noticeAsking() {
  if (asking && !wrote && askedHere()) wrote = true;
}

// Questions that are worth asking, while the chat is empty.
export function showSuggestions(questions) {
  byId("suggestions").replaceChildren(
    ...questions.map((question) => {
      const entry = document.createElement("li");
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = question;
      button.addEventListener("click", () => ask(question));
      entry.append(button);
      return entry;
    }),
  );
}

function ask(question) {
  write(document.querySelector("#ask-box textarea"), question);
  setTimeout(() => press("send"), 60); // Gradio takes the words over in its own time
}

function beginChat() {
  if (asking || askedHere()) tell({ cause: "An answer is being written.", remedy: "Stop it, or wait for its end." });
  else press("fresh");
}

export function bindChat() {
  setInterval(reconcile, 700);
  byId("begin-chat").addEventListener("click", beginChat);
  byId("stop-reading").addEventListener("click", () => post("/reading/stop"));
  byId("read-rest").addEventListener("click", () => post("/reading/again"));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && askedHere() && !document.querySelector("dialog[open]")) press("stop");
  });
}
