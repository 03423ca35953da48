// Asking: the question box, the answer settings, and the actions under questions and answers.
import { readAloud } from "./aloud.js";
import { closedByEscape } from "./escape.js";
import { openFind } from "./find.js";
import { followChat } from "./follow.js";
import { byId, call, made, post, tell } from "./frame.js";
import { fillList } from "./lists.js";
import { noteSentence } from "./notes.js";
import { asksEvery, asksParts } from "./parts.js";

const COPIED_MS = 1600;
const MOST_LINES = 8;

// The name of this tab. It survives a reload, so that an answer in progress still belongs to the reloaded tab.
const TAB = nameOfTab();

function nameOfTab() {
  const drawn = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join("");
  try {
    const kept = sessionStorage.getItem("trifold-tab") ?? drawn;
    sessionStorage.setItem("trifold-tab", kept);
    return kept;
  } catch {
    return drawn; // without storage a reloaded tab gets another name
  }
}

let asking = false; // whether a question of any tab is being answered
let mine = false; // whether that question is from this tab
let sending = false;
let beginning = null; // promise of the new chat being created; a question waits for it
let edited = 0; // id of the question that is being edited; 0 if none is

const box = () => document.querySelector("#ask-box textarea");

// Live stream ---------------------------------------------------------------------------------------------------------

/** @param {View["asking"]} now */
export function showAsking(now) {
  asking = now;
  byId("trifold").dataset.asking = now ? "yes" : "no";
  if (now) endEditing();
}

/** @param {View["asked_by"]} tab */
export function showAskedBy(tab) {
  mine = tab === TAB;
  byId("trifold").dataset.mine = mine ? "yes" : "no";
}

// Whether this tab waits for an answer, or is still sending its question.
export const isWaiting = () => mine || sending;

// Shows suggested questions. They are visible while the chat is empty.
/** @param {View["suggestions"]} questions */
export function showSuggestions(questions) {
  fillList(byId("suggestions"), questions, suggestion, (button) => button.textContent);
}

function suggestion(question) {
  const entry = made("li");
  const button = made("button", question);
  button.type = "button";
  button.addEventListener("click", () => ask({ question }));
  entry.append(button);
  return entry;
}

// Asking --------------------------------------------------------------------------------------------------------------

async function send(more) {
  const question = box().value;
  const looked = /^\/find(?:\s+(.*))?$/s.exec(question.trim());
  if (looked && byId("trifold").dataset.map === "yes") {
    write("");
    return openFind(looked[1] ?? "");
  }
  if (!question.trim() || sending || byId("trifold").dataset.live === "no") return;
  if (!(await ask({ question, message: edited, ...more }))) return;
  endEditing();
  if (box().value === question) write("");
}

const ask = (asked) => begin("/asking", asked, asked);

export const askQuestion = (question) => ask({ question });

// Sends the request for an answer. Returns whether the answer has begun. If another answer is in progress, the refusal
// offers to stop it and to send ``instead``.
async function begin(path, asked, instead) {
  if (sending) return false;
  sending = true;
  byId("refusal")?.remove();
  await beginning;
  const told = await call(path, { ...how(), ...asked, tab: TAB });
  sending = false;
  if (told.cause) refuse(told, instead);
  else followChat();
  return !told.cause;
}

function refuse(trouble, asked) {
  const refusal = made("div", "", "trouble");
  refusal.id = "refusal";
  refusal.setAttribute("role", "alert");
  refusal.append(made("p", `${trouble.cause} ${trouble.remedy}`.trim()));
  if (trouble.busy && asked) {
    const button = made("button", "Stop that answer and ask mine", "tf-small");
    button.type = "button";
    button.addEventListener("click", () => (box().value.trim() ? send({ instead: true }) : ask({ ...asked, instead: true })));
    refusal.append(button);
  }
  byId("chat").append(refusal);
}

const stop = () => post("/asking/stop");

function write(words) {
  box().value = words;
  fit();
}

// Makes the field as high as its text, at most MOST_LINES lines. Longer text scrolls.
function fit() {
  const field = box();
  field.style.height = "auto";
  const line = parseFloat(getComputedStyle(field).lineHeight);
  field.style.height = `${Math.min(field.scrollHeight, MOST_LINES * line + 16)}px`;
}

async function beginChat() {
  if (asking) return tell({ cause: "An answer is being written.", remedy: "Stop it, or wait for its end." });
  beginning = call("/chats/new");
  const told = await beginning;
  if (told.cause) tell(told);
}

// Answer settings -----------------------------------------------------------------------------------------------------

let advice = { own: {}, own_after_thought: {} }; // the model's default settings, without a thought and after one
let own = {}; // those of the next answer, by name; empty for a remote server, whose defaults are unknown
let whose = "";
const chosen = new Set(); // names of the settings that the person changed

const settings = () => document.querySelectorAll("#how-parts .setting");

// The button that returns to the model's default; none if the model has no say in the setting.
const ownButton = (setting) => setting.querySelector("button");

// Returns the answer settings chosen under the question box. Null means the default.
export function how() {
  const mode = document.querySelector("#mode input:checked").value;
  const values = { mode, every: asksEvery(), whole: asksParts() };
  for (const setting of settings()) {
    const name = setting.dataset.setting;
    const left = setting.hidden || (ownButton(setting) && !chosen.has(name));
    values[name] = left ? null : valueOf(setting.querySelector("input"));
  }
  return values;
}

const valueOf = (field) => (field.type === "checkbox" ? field.checked : settle(field));

// Shows the default settings of a new model. Settings that the person changed stay.
/** @param {View["sampling"]} now */
export function showSampling(now) {
  advice = now;
  whose = now.whose;
  document.querySelector('[data-setting="exact_quotes"]').hidden = !now.can_quote;
  thinking().hidden = !now.can_think;
  showAdvice();
}

const thinking = () => document.querySelector('[data-setting="think"]');

function showAdvice() {
  const thinks = !thinking().hidden && thinking().querySelector("input").checked;
  own = thinks ? advice.own_after_thought : advice.own;
  settings().forEach(showOwn);
}

const isElsewhere = () => !whose.includes("model"); // a remote server answers

function showOwn(setting) {
  const name = setting.dataset.setting;
  const button = ownButton(setting);
  if (!button) return;
  const [field, slider] = setting.querySelectorAll("input");
  if (!chosen.has(name) && !slider) field.checked = own[name] ?? false;
  else if (!chosen.has(name)) {
    field.value = own[name] ?? (isElsewhere() ? "" : field.defaultValue);
    slider.value = own[name] ?? slider.defaultValue;
  }
  button.hidden = !(name in own || isElsewhere());
  button.disabled = !chosen.has(name);
  button.textContent = chosen.has(name) ? `use ${whose}` : whose;
  // the explanation of a number makes room for the button
  if (slider) button.previousElementSibling.hidden = !button.hidden;
}

// Returns the number in a field, limited to the field's minimum and maximum.
function settle(field) {
  const said = Number.isNaN(field.valueAsNumber) ? Number(field.defaultValue) : field.valueAsNumber;
  const value = Math.min(Math.max(said, Number(field.min)), Number(field.max));
  return Number(field.step) >= 1 ? Math.round(value) : value;
}

function bindHow() {
  const fold = document.querySelector("#how > button");
  const parts = byId("how-parts");
  const turn = () => {
    parts.hidden = !parts.hidden;
    fold.setAttribute("aria-expanded", String(!parts.hidden));
  };
  fold.addEventListener("click", turn);
  const isIn = () => !parts.hidden && byId("how").contains(document.activeElement);
  closedByEscape("settings", isIn, () => {
    turn();
    fold.focus();
  });
  bindFigures();
  for (const setting of settings()) {
    const name = setting.dataset.setting;
    const [field, slider] = setting.querySelectorAll("input");
    ownButton(setting)?.addEventListener("click", () => {
      chosen.delete(name);
      showOwn(setting);
    });
    if (!slider) {
      bindCheckbox(setting, field);
      continue;
    }
    const choose = () => {
      if (field.value) chosen.add(name);
      else chosen.delete(name); // an emptied field means the default
      showOwn(setting);
    };
    slider.addEventListener("input", () => {
      field.value = slider.value;
      choose();
    });
    field.addEventListener("input", () => {
      if (!field.value) return; // a number may be half typed
      slider.value = settle(field);
      choose();
    });
    field.addEventListener("change", () => {
      if (field.value) field.value = slider.value = settle(field);
      choose();
    });
  }
}

// Shows the figures of answers outside of the demo view, if the person wants them. The browser remembers it.
function bindFigures() {
  const key = "trifold-figures";
  const field = document.querySelector("#live-figures input");
  const show = () => (byId("trifold").dataset.figures = field.checked ? "yes" : "no");
  try {
    field.checked = localStorage.getItem(key) === "yes";
  } catch {
    // without storage the choice is not remembered
  }
  show();
  field.addEventListener("change", () => {
    show();
    try {
      localStorage.setItem(key, field.checked ? "yes" : "no");
    } catch {
      // as above
    }
  });
}

// A checkbox in which the model has no say is remembered in this browser.
function bindCheckbox(setting, field) {
  const name = setting.dataset.setting;
  const key = `trifold-${name}`;
  const isOwn = Boolean(ownButton(setting));
  try {
    if (!isOwn) field.checked = { yes: true, no: false }[localStorage.getItem(key)] ?? field.checked;
  } catch {
    // without storage the choice is not remembered
  }
  field.addEventListener("change", () => {
    chosen.add(name);
    if (setting === thinking()) showAdvice();
    else showOwn(setting);
    try {
      if (!isOwn) localStorage.setItem(key, field.checked ? "yes" : "no");
    } catch {
      // as above
    }
  });
}

// Message actions: the value of a button is "ACTION:ID" ---------------------------------------------------------------

async function copy(button, message, pages) {
  const told = await call("/chats/text", { message, pages });
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

async function edit(message) {
  const told = await call("/chats/text", { message });
  if (told.cause) return tell(told);
  edited = message;
  write(told.text);
  byId("editing").hidden = false;
  box().focus();
}

function endEditing() {
  edited = 0;
  byId("editing").hidden = true;
}

function cancelEditing() {
  endEditing();
  write("");
}

function actOn(button) {
  const [name, number] = button.value.split(":");
  const message = Number(number);
  if (name === "copy" || name === "pages") copy(button, message, name === "pages");
  else if (name === "aloud") readAloud(message);
  else if (name === "edit") edit(message);
  else if (name === "show") post("/chats/version", { message }).then(tell);
  else if (name === "note") noteSentence(message);
  else if (name === "use") call("/models/use", { model: number, draft: "" }).then(tell);
  else if (name === "enough") call("/asking/enough", { message }).then(tell);
  else if (["again", "continue", "whole"].includes(name)) begin(`/asking/${name}`, { message });
  else if (name === "figures") button.setAttribute("aria-expanded", String(button.ariaExpanded !== "true"));
  else if (name === "rest") begin("/asking/continue", { message, every: true });
}

// Keys ----------------------------------------------------------------------------------------------------------------

function onKey(event) {
  if (event.target !== box()) return;
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!mine) send();
  }
  if (event.key === "ArrowUp" && !box().value && !edited) {
    const last = [...document.querySelectorAll('#chat button.action[value^="edit:"]')].at(-1);
    if (last) {
      event.preventDefault();
      last.click();
    }
  }
}

// sessionStorage key: the typed question, which survives a reload.
const DRAFT = "trifold-draft";

function keepDraft() {
  try {
    sessionStorage.setItem(DRAFT, edited ? "" : box().value);
  } catch {
    // without storage a reload loses the question
  }
}

function findDraft() {
  try {
    const kept = sessionStorage.getItem(DRAFT);
    if (kept && !box().value) write(kept);
  } catch {
    // as above
  }
}

export function bindAsking() {
  bindHow();
  findDraft();
  addEventListener("pagehide", keepDraft);
  byId("ask-row").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  box().addEventListener("input", fit);
  byId("stop").addEventListener("click", (event) => {
    stop();
    if (!event.detail) box().focus(); // pressed by a key, so the focus must not vanish with the button
  });
  byId("editing-cancel").addEventListener("click", cancelEditing);
  byId("begin-chat").addEventListener("click", beginChat);
  byId("stop-reading").addEventListener("click", () => post("/reading/stop"));
  byId("read-rest").addEventListener("click", () => post("/reading/again"));
  document.addEventListener("keydown", onKey);
  closedByEscape("editing", () => edited > 0, cancelEditing);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("#chat :is(button.action, button.figures)");
    if (button && !button.disabled) actOn(button);
  });
}
