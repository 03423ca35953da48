// The settings dialog: the model, comments in documents, the API key, a remote server, and the diagnostic report.
import { mayOpen } from "./books.js";
import { byId, call, made } from "./frame.js";

let setup = { stage: "" };
let seen = ""; // the error that the person has seen, for which no chip is shown
let left = ""; // the error whose tab the person has left
let shown = null; // newest response of /preferences
let asked = 0; // number of the newest request for /preferences

/** @param {View["setup"]} news */
export function showSetup(news) {
  const ended = setup.stage && !news.stage;
  setup = news;
  byId("trifold").dataset.setup = setup.stage || (setup.cause ? "trouble" : "none");
  if (setup.stage) seen = left = "";
  else if (byId("preferences").open) seen = setup.cause; // the open dialog shows the error
  drawChip();
  byId("away").hidden = !setup.away;
  byId("away-host").textContent = setup.away;
  drawState();
  if (ended && byId("preferences").open) refresh();
  else holdOffers();
}

function drawChip() {
  const trouble = setup.cause && setup.cause !== seen;
  const busy = setup.stage && setup.stage !== "loading"; // loading is shown in place of the model's name
  byId("setup-chip").hidden = !busy && !trouble;
  byId("setup-chip-words").textContent = trouble ? "Model not changed" : setup.part ? `Model: ${Math.round(setup.part * 100)} %` : setup.line;
}

function drawState() {
  byId("setup-now").hidden = !setup.stage;
  byId("setup-line").textContent = setup.line || "";
  const bar = byId("setup-bar");
  bar.hidden = setup.part === null || setup.part === undefined;
  bar.value = setup.part ?? 0;
  byId("setup-stop").hidden = !setup.stoppable;
  byId("setup-trouble").hidden = !setup.cause || setup.cause === left;
  byId("setup-cause").textContent = setup.cause || "";
  byId("setup-remedy").textContent = setup.remedy || "";
  byId("setup-note").hidden = !setup.note;
  byId("setup-note").textContent = setup.note || "";
}

// Draws the response to the newest request. An older response may hold a key that has been renewed since.
async function refresh() {
  const mine = ++asked;
  const answer = await fetch("/preferences").catch(() => null);
  const told = answer?.ok ? await answer.json() : null;
  if (!told || mine !== asked) return;
  const before = JSON.stringify([shown?.models, shown?.cards, shown?.measuring]);
  shown = told;
  if (JSON.stringify([shown.models, shown.cards, shown.measuring]) !== before) drawOffers();
  byId("api-address").value = shown.api.address;
  byId("api-key").value = shown.api.key;
  byId("data-folder").textContent = shown.folder;
  byId("repair").textContent = shown.repair;
  byId("version").textContent = shown.version;
  byId("remote-leave").hidden = !shown.remote;
  byId("remote-now").textContent = shown.remote ? `Answers come from ${shown.remote.address}.` : "";
  if (shown.remote && !byId("remote-address").value) byId("remote-address").value = shown.remote.address;
  if (shown.measuring && byId("preferences").open) refresh(); // until the models' speeds are known
}

function drawOffers() {
  byId("offers-wait").hidden = true;
  byId("all-models").hidden = false;
  const open = new Set([...document.querySelectorAll("#offers details[open]")].map((one) => one.dataset.id));
  byId("model-cards").replaceChildren(...shown.cards.map(card));
  byId("offers").replaceChildren(...shown.models.map(offer));
  for (const one of document.querySelectorAll("#offers details")) one.open = open.has(one.dataset.id);
  holdOffers();
}

// No other model can be chosen while one is being changed to.
function holdOffers() {
  for (const button of document.querySelectorAll("#tab-models button[data-fits]")) {
    button.disabled = Boolean(setup.stage) || button.dataset.fits === "no";
  }
}

// A model to compare: what it can do here, its time for a document, its size and licence, and its real name.
function card({ id, does, pace, name }) {
  const model = shown.models.find((one) => one.id === id);
  const entry = made("li");
  entry.dataset.id = id;
  const time = pace || (shown.measuring && model.numbers ? "Its speed is being measured…" : "");
  const facts = [model.numbers?.size, model.numbers?.licence].filter(Boolean).join(" · ");
  entry.append(made("strong", model.title), made("p", does), made("p", time), made("small", facts), made("small", name, "real"), action(model));
  return entry;
}

function offer(model) {
  const entry = made("li");
  entry.dataset.verdict = model.numbers?.verdict ?? "unknown";
  const head = made("div", "", "head");
  const names = made("div", "", "names");
  names.append(made("strong", model.title), made("small", model.draft_line));
  head.append(names, action(model));
  entry.append(head);
  if (model.note) entry.append(made("p", model.note));
  if (model.numbers) entry.append(made("p", model.numbers.sentence, "verdict"));
  if (model.numbers?.pace) entry.append(made("p", model.numbers.pace, "pace"));
  if (model.numbers) entry.append(...facts(model));
  return entry;
}

function action(model) {
  if (model.present) return made("span", "In use", "in-use");
  const rounded = model.numbers?.rounded;
  const words = model.here ? "Use" : "Download and use";
  const button = made("button", rounded ? `${words} rounded` : words, "tf-small");
  if (rounded) button.title = `With ${rounded.words}`;
  button.type = "button";
  button.dataset.fits = model.numbers?.verdict === "none" ? "no" : "yes";
  button.addEventListener("click", () => use(model.target, model.draft, rounded));
  return button;
}

function facts(model) {
  const { size, window: tokens, kv, gpu, licence, gated } = model.numbers;
  const list = (words) => {
    const one = made("ul", "", "facts");
    one.append(...words.filter(Boolean).map((word) => made("li", word)));
    return one;
  };
  const more = made("details");
  more.dataset.id = model.id;
  more.append(made("summary", "Details"), list([`window ${tokens}`, `cache ${kv}`, gpu, model.tested, ...model.sources]));
  return [list([size, licence, gated ? "licence to be accepted on the hub" : ""]), more];
}

async function use(model, draft, rounded) {
  byId("own-said").textContent = "";
  const said = await call("/models/use", { model, draft, weights: rounded?.weights ?? "", kv: rounded?.kv ?? "" });
  left = "";
  if (said.cause) showSetup({ ...setup, cause: said.cause, remedy: said.remedy });
}

function complain(id, said) {
  const place = byId(id);
  place.hidden = !said.cause;
  place.replaceChildren(made("strong", said.cause ?? ""), ` ${said.remedy ?? ""}`);
}

/** @param {View["comments"]} read */
export function showComments(read) {
  byId("read-comments").setAttribute("aria-checked", String(read));
}

/** @param {View["pictures"]} read */
export function showPictures(read) {
  byId("read-pictures").setAttribute("aria-checked", String(read));
}

/** @param {View["source"]} source */
export function showSource(source) {
  byId("source").value = source;
}

// Shows the warnings about the open book, such as the number of comments and the parts that were left out.
/** @param {View["book"]} news */
export function showBookSaid({ title, warnings }) {
  byId("book-said").hidden = !warnings.length;
  byId("book-said").textContent = [`“${title}”:`, ...warnings].join("\n");
}

function bindReading() {
  byId("source").addEventListener("change", async (event) => {
    complain("source-trouble", await call("/preferences/source", { source: event.currentTarget.value }));
  });
  for (const what of ["comments", "pictures"]) {
    byId(`read-${what}`).addEventListener("click", async (event) => {
      const read = event.currentTarget.getAttribute("aria-checked") !== "true";
      if ((await mayOpen("")) === "yes") complain(`${what}-trouble`, await call(`/preferences/${what}`, { read }));
    });
  }
}

function bindOwn() {
  byId("own-form").addEventListener("submit", (event) => {
    event.preventDefault();
    use(byId("own-model").value, byId("own-draft").value);
  });
  byId("own-model").addEventListener("input", () => (byId("own-said").textContent = ""));
  byId("own-look").addEventListener("click", look);
}

// Estimates how the person's own model would run. Asks again while the server is still measuring this machine's speeds.
async function look() {
  const model = byId("own-model").value;
  byId("own-said").textContent = "Looking…";
  for (let said = { measuring: true }; said.measuring && byId("own-model").value === model; ) {
    said = await call("/models/look", { model });
    const pace = said.measuring ? "its speed is being measured…" : said.pace;
    const line = said.cause ? `${said.cause} ${said.remedy}` : [said.sentence, pace, said.size, `window ${said.window}`, said.gpu, said.licence].filter(Boolean).join(" · ");
    if (byId("own-model").value === model) byId("own-said").textContent = line;
  }
}

function bindRemote() {
  const address = byId("remote-address");
  const leaves = () => !/^(https?:\/\/)?(127\.\d+\.\d+\.\d+|localhost|\[::1\])(:\d+)?(\/|$)/i.test(address.value.trim());
  address.addEventListener("input", () => {
    complain("remote-trouble", {});
    byId("remote-agree").hidden = !address.value.trim() || !leaves();
    byId("remote-yes").checked = false;
  });
  byId("remote-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const wanted = { address: address.value, model: byId("remote-model").value, key: byId("remote-key").value, confirmed: byId("remote-yes").checked };
    const said = await call("/remote/use", wanted);
    complain("remote-trouble", said);
    if (!said.cause) byId("remote-key").value = "";
    if (said.cause && leaves()) byId("remote-agree").hidden = false;
  });
  byId("remote-leave").addEventListener("click", async () => complain("remote-trouble", await call("/remote/leave")));
}

async function copy(button, words) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(words);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select it and copy";
  }
  setTimeout(() => (button.textContent = before), 1800);
}

function bindHelp() {
  byId("api-copy").addEventListener("click", (event) => copy(event.target, byId("api-key").value));
  byId("api-show").addEventListener("click", (event) => {
    const hidden = byId("api-key").type === "password";
    byId("api-key").type = hidden ? "text" : "password";
    event.target.textContent = hidden ? "Hide" : "Show";
  });
  byId("api-renew").addEventListener("click", async (event) => {
    const button = event.currentTarget;
    button.disabled = true; // a second click would renew the key again, and the replaced key could be shown last
    const said = await call("/key/renew");
    button.disabled = false;
    if (!said.key) return;
    byId("api-key").value = said.key;
    refresh();
  });
  byId("report-make").addEventListener("click", async (event) => {
    const button = event.target;
    const answer = await fetch("/diagnostics").catch(() => null);
    const words = answer?.ok ? await answer.text() : "Trifold did not answer.";
    byId("report").hidden = false;
    byId("report").value = words;
    copy(button, words);
  });
}

// Shows a tab. What went wrong in another one is hidden, since it has been seen there.
function choose(tab) {
  if (byId(`tab-${tab}`).hidden && byId("preferences").open) {
    left = setup.cause;
    drawState();
  }
  for (const button of document.querySelectorAll("#preferences [role=tab]")) {
    const on = button.dataset.tab === tab;
    button.setAttribute("aria-selected", String(on));
    button.tabIndex = on ? 0 : -1;
    byId(`tab-${button.dataset.tab}`).hidden = !on;
  }
}

function open(tab) {
  choose(tab);
  if (!byId("preferences").open) byId("preferences").showModal();
  seen = setup.cause;
  drawChip();
  refresh();
}

export function bindPreferences() {
  const dialog = byId("preferences");
  byId("open-preferences").addEventListener("click", () => open("models"));
  byId("setup-chip").addEventListener("click", () => open("models"));
  byId("away").addEventListener("click", () => open("remote"));
  const line = byId("model-line");
  line.setAttribute("role", "button");
  line.addEventListener("click", () => open("models"));
  line.addEventListener("keydown", (event) => event.key === "Enter" && open("models"));
  byId("preferences-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  const tabs = [...dialog.querySelectorAll("[role=tab]")];
  for (const [at, button] of tabs.entries()) {
    button.addEventListener("click", () => choose(button.dataset.tab));
    button.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = tabs[(at + step + tabs.length) % tabs.length];
      choose(next.dataset.tab);
      next.focus();
    });
  }
  byId("setup-stop").addEventListener("click", () => call("/models/stop"));
  bindReading();
  bindOwn();
  bindRemote();
  bindHelp();
}
