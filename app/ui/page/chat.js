// Between our frame and Gradio's chat: which chat is shown, whether somebody is asking, and a few keys.
import { post } from "./frame.js";

const byId = (id) => document.getElementById(id);
const press = (id) => byId(id)?.click();

let shown = null; // the chat on the desk as the stream last told it
let asking = false;
let wrote = false; // whether the answer that is being written, or was last, is this tab's

const askedHere = () => Boolean(byId("stop")?.checkVisibility());

// The chat on the desk has changed. Unless this tab is writing it, fetch it again.
export function showChat(chat) {
  const other = shown && (shown.id !== chat.id || (shown.turns !== chat.turns && !askedHere() && !asking));
  shown = chat;
  byId("trifold").dataset.turns = chat.turns ? "some" : "none";
  if (other) press("refresh");
  mark();
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
  else if (!wrote || document.querySelectorAll("#chat .user-row").length !== shown?.turns) press("refresh");
}

// Called with every piece of news: remembers that this tab is the one that asks.
export function noticeAsking() {
  if (asking && askedHere()) wrote = true;
}

function mark() {
  for (const button of byId("chats").querySelectorAll("button")) {
    if (button.dataset.id === shown?.id) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
  }
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
  const box = document.querySelector("#ask-box textarea");
  box.value = question;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  setTimeout(() => press("send"), 60); // Gradio takes the words over in its own time
}

export function bindChat() {
  byId("begin-chat").addEventListener("click", () => press("fresh"));
  byId("chats").addEventListener("shelved", mark);
  byId("chats").addEventListener("click", (event) => {
    const id = event.target.closest("button")?.dataset.id;
    if (id) post("/chats/open", { id });
  });
  byId("stop-reading").addEventListener("click", () => post("/reading/stop"));
  byId("read-rest").addEventListener("click", () => post("/reading/again"));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && askedHere()) press("stop");
  });
}
