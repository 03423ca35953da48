// The buttons under questions and answers: versions, copy, edit, ask again, go on. Their values name what they do.
import { call, post } from "./frame.js";
import { tell } from "./library.js";

const byId = (id) => document.getElementById(id);
const HANDOVER_MS = 60; // Gradio takes words over in its own time
const COPIED_MS = 1600;
const TIDY_MS = 1500;

let editing = false;

const box = () => document.querySelector("#ask-box textarea");

export function write(field, words) {
  field.value = words;
  field.dispatchEvent(new Event("input", { bubbles: true }));
}

const setAct = (act) => write(document.querySelector("#act :is(textarea, input)"), act);

function perform(act) {
  setAct(act);
  setTimeout(() => byId("do").click(), HANDOVER_MS);
}

async function copy(button, message) {
  const told = await call("/chats/text", { message });
  if (told.cause) return tell(told);
  try {
    await navigator.clipboard.writeText(told.text);
  } catch {
    return tell({ cause: "The browser does not let Trifold copy.", remedy: "Select the text instead." });
  }
  const words = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = words), COPIED_MS);
}

async function edit(act, message) {
  const told = await call("/chats/text", { message });
  if (told.cause) return tell(told);
  editing = true;
  setAct(act);
  write(box(), told.text);
  banner().hidden = false;
  box().focus();
}

function endEditing() {
  if (!editing) return;
  editing = false;
  banner().hidden = true;
  setAct("");
}

function cancelEditing() {
  endEditing();
  write(box(), "");
}

// Stands right above the question box, inside Gradio's part of the page.
function banner() {
  let made = byId("editing");
  if (made) return made;
  made = document.createElement("div");
  made.id = "editing";
  const cancel = document.createElement("button");
  cancel.type = "button";
  cancel.className = "tf-link";
  cancel.textContent = "Cancel";
  cancel.addEventListener("click", cancelEditing);
  made.append("Your question in other words. The one before stays as another version.", cancel);
  byId("ask-row").before(made);
  return made;
}

// The answer has begun, or another chat lies on the desk: nothing is edited any more.
export function settleEditing() {
  endEditing();
}

// Gradio's hidden controls are pressed by scripts alone, and what it reads aloud of a message is its words alone.
function tidy() {
  for (const control of document.querySelectorAll("#act :is(textarea, input), #do, #fresh, #refresh")) {
    if (control.tabIndex !== -1) {
      control.tabIndex = -1;
      control.setAttribute("aria-hidden", "true");
    }
  }
  if (byId("trifold").dataset.asking === "yes") return;
  for (const message of document.querySelectorAll('#chat [data-testid][aria-label*="<"]')) {
    message.setAttribute("aria-label", message.getAttribute("aria-label").replace(/<[^>]*>/g, " ").replace(/\s+/g, " "));
  }
}

export function bindActs() {
  setInterval(tidy, TIDY_MS);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("#chat button.act");
    if (!button || button.disabled) return;
    const [act, number] = button.value.split(":");
    const message = Number(number);
    if (act === "copy") copy(button, message);
    else if (act === "edit") edit(button.value, message);
    else if (act === "show") post("/chats/version", { message }).then(tell);
    else perform(button.value);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && editing && !document.querySelector("dialog[open]")) {
      event.stopPropagation();
      cancelEditing();
    }
    if (event.key === "ArrowUp" && event.target === box() && !box().value && !editing) {
      const last = [...document.querySelectorAll('#chat button.act[value^="edit:"]')].at(-1);
      if (last) {
        event.preventDefault();
        last.click();
      }
    }
  });
}
