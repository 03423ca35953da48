// The frame: what is sent to the server and what is told of it, the model's line, light and dark, and the two panels that
// are drawers on a narrow screen. On a wide one the figures are a column that is folded until somebody wants them shown:
// the demo view, which this browser remembers.

export const byId = (id) => document.getElementById(id);

// Frames of the screen that scripts of the page have asked for.
const asked = new Set();

// With the screen's next frame, for what moves or changes colour.
export function nextFrame(then) {
  const handle = requestAnimationFrame((time) => {
    asked.delete(handle);
    then(time);
  });
  asked.add(handle);
  return handle;
}

// Cancels the frames that Gradio has asked for, so that what asks for a frame in every frame ends. A frame's handle is
// the handle before it plus one, by the HTML standard.
export function endForeignFrames() {
  for (let handle = requestAnimationFrame(() => {}); handle > 0; handle--) {
    if (!asked.has(handle)) cancelAnimationFrame(handle);
  }
}

// An element with a text and a class.
export function made(tag, words = "", kind = "") {
  const element = document.createElement(tag);
  if (words) element.textContent = words;
  if (kind) element.className = kind;
  return element;
}

// What was wrong, in two sentences; null if nothing was.
export async function post(path, body) {
  const told = await call(path, body);
  return told.cause ? told : null;
}

// What comes back: its JSON, which is an error's two sentences where something was wrong.
export async function call(path, body) {
  const failed = { cause: "Trifold did not answer.", remedy: "Is it still running?" };
  const answer = await fetch(path, { method: "POST", body: JSON.stringify(body ?? {}) }).catch(() => null);
  return answer ? answer.json().catch(() => failed) : failed;
}

// A sentence that goes away by itself.
let telling = 0;
export function tell(trouble) {
  if (!trouble?.cause) return;
  const place = byId("toast");
  place.textContent = [trouble.cause, trouble.remedy].filter(Boolean).join(" ");
  place.hidden = false;
  clearTimeout(telling);
  telling = setTimeout(() => (place.hidden = true), 6000);
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
    // this browser keeps nothing
  }
  showDemo(on);
  byId("open-figures").addEventListener("click", (event) => {
    if (!WIDE.matches) return;
    event.stopImmediatePropagation(); // there it is no drawer
    showDemo(byId("trifold").dataset.demo !== "yes");
    try {
      localStorage.setItem(DEMO, byId("trifold").dataset.demo);
    } catch {
      // nor this
    }
  });
  WIDE.addEventListener("change", () => showDemo(WIDE.matches && byId("trifold").dataset.demo === "yes"));
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
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && root.dataset.drawer) open("");
  });
  byId("shelf").addEventListener("click", (event) => {
    if (event.target.closest("li button.open, #begin-chat, #add-book")) open("");
  });
}
