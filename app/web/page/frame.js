// The frame of the page: requests to the server, messages, the model's line, light and dark, and two panels that are
// drawers on a narrow screen. On a wide screen, the figures are a hidden column until the person turns on the demo
// view. The browser remembers the demo view.
import { closedByEscape } from "./escape.js";

export const byId = (id) => document.getElementById(id);

// Handles of the animation frames that the page's scripts have requested.
const asked = new Set();

// Calls ``then`` with the screen's next frame, and protects the frame from ``endForeignFrames``.
export function nextFrame(then) {
  const handle = requestAnimationFrame((time) => {
    asked.delete(handle);
    then(time);
  });
  asked.add(handle);
  return handle;
}

// Cancels the frames that Gradio has requested. This ends a loop that requests a frame in every frame. By the HTML
// standard, handles of frames are consecutive integers.
export function endForeignFrames() {
  for (let handle = requestAnimationFrame(() => {}); handle > 0; handle--) {
    if (!asked.has(handle)) cancelAnimationFrame(handle);
  }
}

// Creates an element with a text and a class.
export function made(tag, words = "", kind = "") {
  const element = document.createElement(tag);
  if (words) element.textContent = words;
  if (kind) element.className = kind;
  return element;
}

// Sends a request. Returns the error { cause, remedy }, or null.
export async function post(path, body) {
  const told = await call(path, body);
  return told.cause ? told : null;
}

// Sends a request and returns the JSON of the response. After an error, the JSON has ``cause`` and ``remedy``.
export async function call(path, body) {
  const failed = { cause: "Trifold did not answer.", remedy: "Is it still running?" };
  const answer = await fetch(path, { method: "POST", body: JSON.stringify(body ?? {}) }).catch(() => null);
  return answer ? answer.json().catch(() => failed) : failed;
}

// Shows an error or a note for some time, or until it is touched or a part of the page opens over what it was about.
let telling = 0;
export function tell(trouble, milliseconds = 6000) {
  if (!trouble?.cause) return;
  const place = byId("toast");
  place.textContent = [trouble.cause, trouble.remedy].filter(Boolean).join(" ");
  place.hidden = false;
  place.onclick = hush;
  clearTimeout(telling);
  telling = setTimeout(hush, milliseconds);
}

export function hush() {
  byId("toast").hidden = true;
}

/** @param {View["model"]} model */
export function showModel(model) {
  const root = byId("trifold");
  root.dataset.model = model.state;
  root.dataset.here = model.here === false ? "no" : "yes";
  root.dataset.draft = model.draft === false ? "no" : "yes";
  byId("model-name").textContent = model.line;
  const line = byId("model-line");
  line.title = [model.detail, ...model.parts].filter(Boolean).join("\n");
  byId("model-words").textContent = model.detail;
}

const WIDE = matchMedia("(min-width: 1081px)");
const DEMO = "trifold-demo";

function showDemo(on) {
  byId("trifold").dataset.demo = on ? "yes" : "no";
  if (WIDE.matches) byId("open-figures").setAttribute("aria-expanded", String(on));
}

function bindDemo() {
  let on = false;
  try {
    on = localStorage.getItem(DEMO) === "yes";
  } catch {
    // without storage the demo view starts off
  }
  showDemo(on);
  byId("open-figures").addEventListener("click", (event) => {
    if (!WIDE.matches) return;
    event.stopImmediatePropagation(); // on a wide screen the figures are no drawer
    on = !on;
    showDemo(on);
    try {
      localStorage.setItem(DEMO, on ? "yes" : "no");
    } catch {
      // as above
    }
  });
  WIDE.addEventListener("change", () => showDemo(WIDE.matches && on));
}

export function bindFrame() {
  bindDemo();
  byId("theme").addEventListener("click", () => window.trifoldTheme.toggle());
  const drawers = { shelf: byId("open-shelf"), figures: byId("open-figures") };
  const root = byId("trifold");
  const open = (name) => {
    root.dataset.drawer = name;
    byId("veil").hidden = !name;
    for (const [id, button] of Object.entries(drawers)) button.setAttribute("aria-expanded", String(id === name));
    if (name) byId(name).querySelector("[data-close]").focus();
  };
  for (const [id, button] of Object.entries(drawers)) {
    button.addEventListener("click", () => open(root.dataset.drawer === id ? "" : id));
    byId(id).querySelector("[data-close]").addEventListener("click", () => {
      open("");
      button.focus();
    });
  }
  byId("veil").addEventListener("click", () => open(""));
  closedByEscape(
    "drawer",
    () => Boolean(root.dataset.drawer),
    () => {
      const button = drawers[root.dataset.drawer];
      open("");
      button.focus();
    },
  );
  byId("shelf").addEventListener("click", (event) => {
    if (event.target.closest("li button.open, #begin-chat, #add-book")) open("");
  });
}
