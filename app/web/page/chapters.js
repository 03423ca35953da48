// Chapters of a book that is too long, to be ticked: tokens and minutes are counted with every tick.
import { byId, made, post } from "./frame.js";

const FEWEST = 2;

let book = ""; // whose chapters are shown
let sizes = null; // tokens of each page, how many fit, seconds a token takes
let boxes = []; // every chapter with its tick

export async function showChapters(id) {
  if (id === book) return;
  book = id;
  byId("choose-chapters").hidden = true;
  if (!id) return;
  const answer = await fetch("/contents").catch(() => null);
  if (!answer?.ok || id !== book) return;
  const told = await answer.json();
  sizes = told.sizes;
  if (!sizes || told.entries.length < FEWEST) return;
  boxes = told.entries.map((entry) => ({ ...entry, box: tick() }));
  byId("choose-list").replaceChildren(...boxes.map(row));
  byId("choose-chapters").hidden = false;
  count();
}

function tick() {
  const box = made("input");
  box.type = "checkbox";
  return box;
}

function row(chapter, at) {
  const label = made("label");
  label.style.paddingInlineStart = `calc(12px + ${Math.min(chapter.level, 4) * 1.4}em)`;
  label.append(chapter.box, made("span", chapter.title), made("small", `${tokensOf(pagesOf([chapter])).toLocaleString("en")} tokens`));
  chapter.box.addEventListener("change", () => {
    for (const below of boxes.slice(at + 1)) {
      if (below.level <= chapter.level) break;
      below.box.checked = chapter.box.checked; // a chapter with all that is in it
    }
    count();
  });
  return label;
}

const chosen = () => boxes.filter((chapter) => chapter.box.checked);

// A page on which two chapters meet is read once.
function pagesOf(chapters) {
  const pages = new Set();
  for (const { first, last } of chapters) for (let page = first; page <= last; page++) pages.add(page);
  return pages;
}

function tokensOf(pages) {
  let sum = 0;
  for (const page of pages) sum += sizes.tokens[page - sizes.first] ?? 0;
  return sum;
}

function count() {
  const tokens = tokensOf(pagesOf(chosen()));
  const over = tokens - sizes.room;
  const parts = [`${tokens.toLocaleString("en")} of ${sizes.room.toLocaleString("en")} tokens`];
  if (over > 0) parts.push(`${over.toLocaleString("en")} too many`);
  else if (tokens && sizes.seconds) parts.push(`${stretch(...sizes.seconds.map((seconds) => seconds * tokens))} to read`);
  byId("choose-count").textContent = parts.join(", ");
  byId("choose-these").disabled = !tokens || over > 0;
}

function stretch(low, high) {
  if (high < 60) return "under 1 min";
  const [least, most] = [low, high].map((seconds) => Math.max(1, Math.round(seconds / 60)));
  return least === most ? `about ${least} min` : `${least} to ${most} min`;
}

export function bindChapters(fail) {
  byId("choose-these").addEventListener("click", () => {
    post("/reading/chapters", { pages: chosen().map(({ first, last }) => [first, last]) }).then(fail);
  });
}
