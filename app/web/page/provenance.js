// Colours the words of an answer by their source: draft model, lookup, retrieval or target model. The server sends
// counts of letters per source. CSS highlights colour the letters without changing the chat's elements.

import { byId, nextFrame } from "./frame.js";

const WRITERS = { D: "provenance-draft", L: "provenance-lookup", R: "provenance-retrieval", T: "provenance-target" };
const LETTER = /\p{L}/u;
const APART = "button, .above, .parts, .passages, .thought, .under, .live, .actions, .trouble, .waiting";
const KEPT = "trifold-provenance";
const SETTLE_MS = 200;

const possible = typeof Highlight === "function" && Boolean(CSS.highlights);
let on = false;
let ended = []; // sources of each ended answer, by its position in the chat
let live = null; // sources of the answer in progress
let waiting = 0;

/** @param {View["provenance"]} news */
export function showProvenance(news) {
  const over = live && !news;
  live = news;
  if (!on) return;
  if (over) fetchAll();
  else paintSoon();
}

async function fetchAll() {
  if (!on) return;
  const answer = await fetch("/provenance").catch(() => null);
  if (answer?.ok) ended = (await answer.json()).answers;
  paint();
}

function paintSoon() {
  if (!waiting) waiting = nextFrame(paint);
}

function paint() {
  waiting = 0;
  for (const name of Object.values(WRITERS)) CSS.highlights.delete(name);
  if (!on) return;
  const painted = Object.fromEntries(Object.keys(WRITERS).map((writer) => [writer, new Highlight()]));
  document.querySelectorAll("#chat .bot-row").forEach((row, turn) => {
    const sources = live && live.turn === turn ? live.sources : ended[turn];
    const words = row.querySelector(".prose");
    if (sources && words) paintAnswer(words, sources, painted);
  });
  for (const [writer, name] of Object.entries(WRITERS)) CSS.highlights.set(name, painted[writer]);
}

function paintAnswer(words, sources, painted) {
  const runs = [...sources.matchAll(/([DLRT])(\d+)/g)].map(([, writer, count]) => [writer, Number(count)]);
  const texts = document.createTreeWalker(words, NodeFilter.SHOW_TEXT, (node) =>
    node.parentElement.closest(APART) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT,
  );
  let run = 0;
  let left = runs[0]?.[1] ?? 0;
  for (let node = texts.nextNode(); node && run < runs.length; node = texts.nextNode()) {
    let start = 0;
    let at = 0;
    for (const sign of node.data) {
      if (LETTER.test(sign)) {
        if (left === 0) {
          cover(node, start, at, painted[runs[run][0]]);
          start = at;
          run += 1;
          if (run >= runs.length) break;
          left = runs[run][1];
        }
        left -= 1;
      }
      at += sign.length;
    }
    if (run < runs.length) cover(node, start, at, painted[runs[run][0]]);
  }
}

function cover(node, start, end, highlight) {
  const words = node.data.slice(start, end);
  start += words.length - words.trimStart().length;
  end -= words.length - words.trimEnd().length;
  if (end > start) highlight.add(new StaticRange({ startContainer: node, startOffset: start, endContainer: node, endOffset: end }));
}

function set(now) {
  on = now;
  byId("provenance").setAttribute("aria-checked", String(on));
  byId("provenance-key").hidden = !on;
  try {
    localStorage.setItem(KEPT, on ? "yes" : "no");
  } catch {
    // without storage the choice lasts as long as the page
  }
  if (on) fetchAll();
  else paint();
}

export function bindProvenance() {
  byId("provenance-part").hidden = !possible;
  if (!possible) return;
  byId("provenance").addEventListener("click", () => set(!on));
  let settled = 0;
  new MutationObserver(() => {
    if (!on) return;
    if (live) return paintSoon();
    clearTimeout(settled);
    settled = setTimeout(fetchAll, SETTLE_MS);
  }).observe(byId("talk"), { subtree: true, childList: true, characterData: true });
  let chosen = null;
  try {
    chosen = localStorage.getItem(KEPT);
  } catch {
    // as above
  }
  if (chosen === "yes") set(true);
}
