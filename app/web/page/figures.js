// The figures next to the chat. All texts come from the server.

import { byId, made, nextFrame } from "./frame.js";

const NAMES = {
  draft: "guessing",
  middle: "first check",
  verify: "whole book",
  transfer: "moving data",
  other: "the rest",
  device: "GPU",
  host: "memory",
  disk: "disk",
};

const MOST_TOKENS = 100; // maximum tokens in the charts
let line = [];

// The main figures below an answer in progress. chat.js keeps this element at the end of the answer. Screen readers
// skip this element, because the line that replaces it is read to them.
export const live = made("div", "", "live");
live.setAttribute("aria-live", "off");
live.title = "Now: the last 10 tokens. The small line: the last 100. Acceptance: guesses that were kept.";
live.innerHTML = '<svg aria-hidden="true"><polyline/></svg><span class="line"></span><span class="brief"></span>';

/** @param {View["figures"]} figures */
export function showFigures(figures) {
  showLine(figures);
  byId("figures-none").hidden = Boolean(figures);
  byId("figures-all").hidden = !figures;
  if (!figures) return;
  for (const place of document.querySelectorAll("[data-figure]")) {
    const value = figures[place.dataset.figure];
    put(place, (typeof value === "object" && value !== null ? value.text : value) || "–");
  }
  put(byId("uncounted"), figures.uncounted ?? "");
  for (const bar of document.querySelectorAll("[data-bar]")) {
    const level = figures[bar.dataset.bar] ?? { share: 0, text: "" };
    bar.querySelector("b").style.width = `${level.share * 100}%`;
    bar.toggleAttribute("data-none", !level.text);
  }
  const root = byId("trifold");
  if (root.dataset.mode !== figures.mode) root.dataset.mode = figures.mode;
  stack("split", figures.split);
  if (figures.kv.length) stack("kv", figures.kv);
}

function showLine(figures) {
  put(live.children[1], figures?.line ?? "");
  put(live.children[2], figures?.brief ?? "");
  live.querySelector("polyline").setAttribute("points", figures?.spark ?? "");
  live.toggleAttribute("data-none", !figures?.line);
}

/** @param {View["memory"]} memory */
export function showMemory(memory) {
  stack("kv", memory);
}

// Sets a text only if it has changed, because setting a text causes a new layout.
function put(place, words) {
  if (place.said !== words) place.textContent = place.said = words;
}

// Draws a stacked bar and its legend. The elements are kept and only widths and texts change, so that nothing jumps.
function stack(id, parts) {
  const bar = byId(id);
  const key = byId(`${id}-key`);
  const names = parts.map((part) => part.part).join(" ");
  if (bar.dataset.parts !== names) {
    bar.dataset.parts = names;
    bar.replaceChildren(...parts.map((part) => coloured("i", part.part)));
    key.replaceChildren(...parts.map((part) => entry(part.part)));
  }
  parts.forEach((part, index) => {
    bar.children[index].style.width = `${part.share * 100}%`;
    put(key.children[index].lastChild, part.text);
  });
}

const coloured = (tag, part) => made(tag, "", `part-${part}`);

function entry(part) {
  const item = made("li");
  item.append(coloured("i", part), made("span", NAMES[part] ?? part), made("output"));
  return item;
}

/** @param {View["pace"]} pace */
export function showPace(pace) {
  line = pace;
  nextFrame(draw);
}

const HEADROOM = 1.1;

function draw() {
  const canvas = byId("pace");
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width) return;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const paint = canvas.getContext("2d");
  paint.setTransform(scale, 0, 0, scale, 0, 0);
  paint.clearRect(0, 0, width, height);
  if (!line.length) return;
  const most = Math.max(...line.map((point) => Math.max(point[0], point[2]))) * HEADROOM;
  // The curve fills the whole width: all tokens, or the last MOST_TOKENS.
  const last = line.at(-1)[3];
  const first = Math.max(0, last - MOST_TOKENS);
  const x = (point) => ((point[3] - first) / (last - first)) * width;
  const y = (value) => height - 1.5 - (value / most) * (height - 4);
  const style = getComputedStyle(document.documentElement);
  const follow = (part, colour, thick, dash) => {
    paint.beginPath();
    paint.moveTo(0, y(line[0][part]));
    for (const point of line) paint.lineTo(x(point), y(point[part]));
    paint.strokeStyle = style.getPropertyValue(colour).trim();
    paint.lineWidth = thick;
    paint.lineJoin = "round";
    paint.setLineDash(dash);
    paint.stroke();
  };
  follow(0, "--lamp", 1, []);
  paint.lineTo(width, height);
  paint.lineTo(0, height);
  paint.globalAlpha = 0.14;
  paint.fillStyle = paint.strokeStyle;
  paint.fill();
  paint.globalAlpha = 1;
  follow(1, "--lamp-ink", 1.75, []);
  follow(2, "--verify", 1.5, [4, 3]);
}

new ResizeObserver(draw).observe(byId("pace"));
new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
