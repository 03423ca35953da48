// The choice of a model before the first book, and the models that can read a book that is too long for the current
// model.
import { byId, call, made } from "./frame.js";

let wanted = false; // whether no model has been chosen yet
let options = null;
let turned = ""; // id of the selected option
let setup = { stage: "" };
let rates = ""; // whether the server can estimate speeds: "known", "now" (after a measurement) or "" (not now)
let told = 0; // number of changes of ``rates``
const looked = {}; // results of ``look``, keyed by the option's id

/** @param {View["first"]} first */
export async function showFirst(first) {
  wanted = first;
  byId("first").hidden = !wanted || !options;
  if (!wanted || options) return;
  const answer = await fetch("/models/first").catch(() => null);
  if (!answer?.ok || !wanted) return;
  options = (await answer.json()).options;
  turned = options.find((option) => option.proposed).id;
  byId("first-options").replaceChildren(...options.map(drawn));
  draw();
  byId("first").hidden = false;
  look(options.find((option) => option.id === turned));
}

function drawn(option) {
  const label = made("label");
  label.dataset.id = option.id;
  const radio = made("input");
  Object.assign(radio, { type: "radio", name: "first-model", value: option.id, checked: option.id === turned });
  radio.addEventListener("change", () => turn(option));
  const words = made("span");
  words.append(made("strong", option.title), made("span", option.line, "line"), made("span", "", "more"));
  label.append(radio, words);
  const button = made("button", option.action, "tf-primary");
  button.type = "button";
  button.addEventListener("click", () => use(option));
  const entry = made("div", "", "option");
  entry.append(label, button);
  return entry;
}

function draw() {
  for (const [at, option] of (options ?? []).entries()) {
    const entry = byId("first-options").children[at];
    const on = option.id === turned;
    entry.dataset.on = on ? "yes" : "no";
    const more = entry.querySelector(".more");
    more.textContent = [option.more, looked[option.id]?.line].filter(Boolean).join(" ");
    more.hidden = !on || !more.textContent;
    const button = entry.querySelector("button");
    button.hidden = !on || !option.action || (option.look && !looked[option.id]?.has) || Boolean(setup.stage);
  }
}

function turn(option) {
  turned = option.id;
  complain({});
  draw();
  look(option);
}

// Fetches an estimate of how the option's model would run on this machine. For a model on the hub, also checks that the
// model is available. Other options are not estimated during a change of model, because the speeds cannot be measured
// then.
async function look(option) {
  if (looked[option.id]?.has || looked[option.id]?.asking || (!option.look && setup.stage)) return;
  looked[option.id] = { line: option.look ? "Asking the Hugging Face hub…" : "", asking: true };
  draw();
  const before = told;
  const said = await call("/models/first/look", { target: option.target, draft: option.draft });
  const trouble = option.look ? `${said.cause} ${said.remedy}` : "";
  looked[option.id] = said.cause ? { line: trouble } : { line: said.line, has: Boolean(said.line) };
  draw();
  if (!said.cause && !said.line && told !== before) lookAgain(); // ``rates`` changed while this request was running
}

// Repeats a look when the server's ability to estimate speeds has changed.
/** @param {View["rates"]} news */
export function showRates(news) {
  rates = news;
  told += 1;
  lookAgain();
}

function lookAgain() {
  const option = wanted && rates && options?.find((one) => one.id === turned);
  if (option && !option.look) look(option);
}

async function use(option) {
  complain(await call("/models/use", { model: option.target, draft: option.draft, weights: option.weights, kv: option.kv }));
}

function complain(said) {
  byId("first-trouble").hidden = !said.cause;
  byId("first-trouble").replaceChildren(made("strong", said.cause ?? ""), ` ${said.remedy ?? ""}`);
}

/** @param {View["setup"]} news */
export function showFirstSetup(news) {
  const ended = setup.stage && !news.stage;
  setup = news;
  const mine = Boolean(setup.stage) && setup.wanted.length > 0 && byId("trifold").dataset.model !== "loading";
  byId("first-now").hidden = !mine;
  byId("first-line").textContent = setup.line || "";
  byId("first-bar").hidden = setup.part === null || setup.part === undefined;
  byId("first-bar").value = setup.part ?? 0;
  byId("first-stop").hidden = !setup.stoppable;
  if (setup.stage) complain({});
  else if (ended) complain(setup.cause ? setup : { cause: setup.note });
  draw();
  if (ended) lookAgain();
}

// Offers the local models that can read a book that is too long, and a link to all models.
/** @param {View["others"]} others */
export function showOthers(others) {
  const place = byId("choose-others");
  place.hidden = false;
  const settings = made("button", "Other models…", "tf-link");
  settings.type = "button";
  settings.addEventListener("click", () => byId("open-preferences").click());
  place.replaceChildren(...others.flatMap(other), settings);
}

function other(model) {
  const button = made("button", model.words, "tf-small");
  button.type = "button";
  button.addEventListener("click", () => call("/models/use", { model: model.target, draft: model.draft }));
  return model.worth ? [button, made("span", model.worth)] : [button];
}

export function bindFirst() {
  byId("first-stop").addEventListener("click", () => call("/models/stop"));
}
