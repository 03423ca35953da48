// The race: two runs next to each other on one clock, live and afterwards as a replay. All texts come from the server.
import { closedByEscape } from "./escape.js";
import { byId, hush, made, nextFrame, post } from "./frame.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");

let state = { running: false, done: 0 };
let wanted = false; // whether this tab waits for the running race
let recorded = null;
let speed = 1;
let began = 0;
let clock = 0; // time in the replay, in milliseconds
let frame = 0;
let opener = null;

/** @param {View["verified"]} verified */
export function showVerified(verified) {
  const badge = byId("verified");
  badge.hidden = !verified;
  if (!verified) return;
  badge.querySelector("span").textContent = verified.line;
  badge.title = verified.detail;
}

/** @param {View["race"]} now */
export function showRace(now) {
  const before = state;
  state = now;
  byId("race-part").hidden = !now.possible;
  byId("race-start").textContent = now.running ? "Racing…" : now.done ? "Show the race" : "Race it against plain";
  byId("race-why").textContent = now.running || now.trouble ? "" : now.line;
  if (now.running && wanted) drawRunning();
  if (before.running && !now.running && wanted) {
    wanted = false;
    if (now.trouble) drawTrouble(now.trouble);
    else if (now.done) showLast();
  }
}

async function start() {
  opener = byId("race-start");
  const asked = document.querySelector("#ask-box textarea")?.value.trim() ?? ""; // if it is "", the server takes one
  cancelAnimationFrame(frame);
  show("running");
  showQuestion(asked);
  byId("race-line").textContent = "Starting…";
  byId("race-end").dataset.state = "racing";
  for (const place of document.querySelectorAll("#race article")) drawLane(place, { name: "", note: "", text: "", clock: "", share: 0 });
  wanted = true;
  const trouble = await post("/race", { question: asked });
  if (!trouble) return;
  wanted = false;
  drawTrouble(`${trouble.cause} ${trouble.remedy}`);
}

function showQuestion(question, more = "") {
  byId("race-question").textContent = question;
  byId("race-more").textContent = more;
}

function show(part) {
  const race = byId("race");
  const wasShut = race.hidden;
  race.hidden = false;
  byId("race-running").hidden = part !== "running";
  byId("race-replay").hidden = part === "trouble";
  byId("race-replay").dataset.part = part;
  byId("race-trouble").hidden = part !== "trouble";
  if (wasShut) {
    hush();
    byId("race-close").focus();
  }
}

function close() {
  cancelAnimationFrame(frame);
  byId("race").hidden = true;
  if (wanted) stop(); // a race without a viewer is stopped, and its end is not shown
  wanted = false;
  (opener?.isConnected ? opener : byId("race-start")).focus();
}

function stop() {
  post("/asking/stop");
}

function drawRunning() {
  showQuestion(state.question);
  byId("race-line").textContent = state.line;
  state.lanes.forEach((lane, number) => drawLane(placeOf(number), lane));
}

function drawLane(place, lane) {
  name(place, lane);
  place.dataset.state = "racing";
  place.querySelector("output").textContent = lane.clock;
  place.querySelector(".count .quiet").textContent = "";
  place.querySelector(".track b").style.width = `${100 * lane.share}%`;
  const words = place.querySelector(".words");
  if (words.textContent !== lane.text) words.textContent = lane.text;
  words.scrollTop = words.scrollHeight;
}

function name(place, run) {
  place.querySelector("h3").textContent = run.name;
  place.querySelector("header .quiet").textContent = run.note;
}

function drawTrouble(sentence) {
  show("trouble");
  byId("race-trouble").textContent = sentence;
}

// Shows the last race as it was at its end.
async function showLast() {
  const answer = await fetch("/race").catch(() => null);
  if (!answer?.ok) return drawTrouble("The recording of the race is gone. Start it again.");
  recorded = await answer.json();
  show("replay");
  showQuestion(recorded.question, recorded.more);
  byId("race-note").textContent = recorded.replay;
  byId("race-verdict").textContent = recorded.verdict;
  byId("race-detail").textContent = recorded.detail;
  byId("race-end").dataset.identical = recorded.identical ? "yes" : "no";
  recorded.runs.forEach((run, number) => {
    name(placeOf(number), run);
    run.shown = "";
  });
  clock = ends();
  draw();
}

const placeOf = (number) => document.querySelector(`#race article[data-run="${number}"]`);
const ends = () => Math.max(...recorded.runs.map((run) => run.ms));

function play() {
  cancelAnimationFrame(frame);
  began = performance.now();
  clock = calm.matches ? ends() : 0;
  for (const run of recorded.runs) run.shown = "";
  byId("race-end").dataset.state = "racing";
  tick(began);
}

function tick(now) {
  if (!calm.matches) {
    clock += Math.max(0, now - began) * speed;
    began = now;
  }
  if (!draw()) frame = nextFrame(tick);
}

// Draws both runs at ``clock``. Returns whether the race is over then.
function draw() {
  const over = clock >= ends();
  if (over) clock = ends();
  byId("race-clock").textContent = `${(clock / 1000).toFixed(1)} s`;
  recorded.runs.forEach(drawRun);
  if (over) finish();
  return over;
}

// Draws a run as it was at ``clock``: the text so far of each question that has begun. At the end, all texts are drawn.
function drawRun(run, number) {
  const done = clock >= run.ms;
  const told = run.questions
    .filter((part) => done || part.begins <= clock)
    .map((part) => ({ ...part, steps: done ? part.steps : part.steps.filter(([at]) => at <= clock) }));
  const count = told.reduce((sum, part) => sum + part.steps.length, 0);
  const place = placeOf(number);
  place.querySelector("output").textContent = done ? `${(run.ms / 1000).toFixed(2)} s` : `${(clock / 1000).toFixed(1)} s`;
  const state = `${told.length} ${count} ${done}`;
  if (state === run.shown) return;
  run.shown = state;
  const words = place.querySelector(".words");
  words.replaceChildren(...told.flatMap((part) => [...asked(run, part), textOf(part)]));
  place.dataset.state = done ? "done" : "racing";
  const all = run.questions.reduce((sum, part) => sum + part.steps.length, 0);
  place.querySelector(".track b").style.width = `${(100 * count) / Math.max(1, all)}%`;
  place.querySelector(".count .quiet").textContent = done ? [`${run.tokens} tokens`, run.pace].filter(Boolean).join(" · ") : "";
  words.scrollTop = words.scrollHeight; // scrolled last, because the line above changes the height
}

const textOf = (part) => part.steps.map(([, text]) => text).join("");

// Returns the question to show above its answer, if there are several questions.
function asked(run, part) {
  if (run.questions.length < 2) return [];
  return [made("span", part.question, "asked")];
}

// Ends the replay. If the last answers differ, marks both from the first difference on.
function finish() {
  byId("race-end").dataset.state = "over";
  if (recorded.identical) return;
  const texts = recorded.runs.map((run) => textOf(run.questions.at(-1)));
  let same = 0;
  while (same < texts[0].length && texts[0][same] === texts[1][same]) same++;
  texts.forEach((text, number) => {
    const mark = made("mark", text.slice(same));
    placeOf(number).querySelector(".words").lastChild.replaceWith(text.slice(0, same), mark);
  });
}

function setSpeed(button) {
  speed = Number(button.dataset.speed);
  for (const other of byId("race-speeds").children) other.setAttribute("aria-pressed", String(other === button));
}

// Keeps the focus inside the dialog.
function keys(event) {
  if (byId("race").hidden || event.key !== "Tab") return;
  const stops = [...byId("race").querySelectorAll("button")].filter((button) => button.checkVisibility() && !button.disabled);
  const at = stops.indexOf(document.activeElement);
  const next = event.shiftKey ? (at <= 0 ? stops.length - 1 : at - 1) : (at + 1) % stops.length;
  event.preventDefault();
  stops[next]?.focus();
}

export function bindRace() {
  byId("race-start").addEventListener("click", () => {
    if (state.running) {
      wanted = true;
      show("running");
      drawRunning();
    } else if (state.done) {
      opener = byId("race-start");
      showLast();
    } else start();
  });
  byId("race-close").addEventListener("click", close);
  closedByEscape("race", () => !byId("race").hidden, close);
  byId("race-stop").addEventListener("click", stop);
  byId("race-replayed").addEventListener("click", play);
  byId("race-again").addEventListener("click", start);
  byId("race-speeds").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) setSpeed(button);
  });
  byId("race").addEventListener("click", (event) => event.target === byId("race") && close());
  document.addEventListener("keydown", keys, true);
}
