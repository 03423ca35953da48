// Choice of chapters, for a book that is too long and in the table of contents. Every tick updates the share of what
// fits and the minutes.
import { byId, made, post } from "./frame.js";

const FEWEST = 2;

// Checkboxes for chapters. ``sizes``: { first, tokens, around, room, seconds }: number of the first page, tokens of
// each page from there on, tokens outside of the pages, maximum tokens that fit, and minimum and maximum seconds per
// token.
// ``counted``: called with the size of the choice in words, and whether the choice can be read.
export class Ticks {
  constructor(entries, sizes, counted) {
    this.sizes = sizes;
    this.counted = counted;
    this.boxes = entries.map((entry) => ({ ...entry, box: made("input") }));
    this.boxes.forEach(({ box }, at) => {
      box.type = "checkbox";
      box.addEventListener("change", () => this.tick(at));
    });
  }

  // Applies a chapter's tick to all of its subchapters.
  tick(at) {
    const { level, box } = this.boxes[at];
    for (const below of this.boxes.slice(at + 1)) {
      if (below.level <= level) break;
      below.box.checked = box.checked;
    }
    this.count();
  }

  get chosen() {
    return this.boxes.filter(({ box }) => box.checked).map(({ first, last }) => [first, last]);
  }

  // Counts the tokens of page ranges. A page in two ranges counts once.
  tokensOf(ranges) {
    const pages = new Set();
    for (const [first, last] of ranges) for (let page = first; page <= last; page++) pages.add(page);
    let sum = 0;
    for (const page of pages) sum += this.sizes.tokens[page - this.sizes.first] ?? 0;
    return sum;
  }

  // Returns a chapter's share of what fits.
  sizeOf(at) {
    const { first, last } = this.boxes[at];
    return this.share(this.tokensOf([[first, last]]));
  }

  share(tokens) {
    const part = (100 * tokens) / Math.max(1, this.sizes.room);
    return part > 0 && part < 1 ? "< 1 %" : `${Math.round(part).toLocaleString("en")} %`;
  }

  count() {
    const { around, room, seconds } = this.sizes;
    const tokens = this.chosen.length && this.tokensOf(this.chosen) + around;
    const over = tokens - room;
    const parts = [`${this.share(tokens)} of what fits`];
    if (over > 0) parts.push("too much");
    else if (tokens && seconds) parts.push(`${stretch(...seconds.map((each) => each * tokens))} to read`);
    this.counted(parts.join(", "), tokens > 0 && over <= 0);
  }
}

function stretch(low, high) {
  if (high < 60) return "under 1 min";
  const [least, most] = [low, high].map((seconds) => Math.max(1, Math.round(seconds / 60)));
  return least === most ? `about ${least} min` : `${least} to ${most} min`;
}

// Returns whether chapters can be chosen. ``told``: response of /contents.
export const canChoose = (told) => Boolean(told.sizes) && told.entries.length >= FEWEST;

export const readChapters = (ticks) => post("/reading/chapters", { pages: ticks.chosen });

// Book that is too long -----------------------------------------------------------------------------------------------

let book = ""; // id of the book that is too long
let ticks = null;

export async function showChapters(id) {
  if (id === book) return;
  book = id;
  byId("choose-chapters").hidden = true;
  if (!id) return;
  const answer = await fetch("/contents").catch(() => null);
  if (!answer?.ok || id !== book) return;
  const told = await answer.json();
  if (!canChoose(told)) return;
  ticks = new Ticks(told.entries, told.sizes, (words, ready) => {
    byId("choose-count").textContent = words;
    byId("choose-these").disabled = !ready;
  });
  byId("choose-list").replaceChildren(...ticks.boxes.map(row));
  byId("choose-chapters").hidden = false;
  ticks.count();
}

function row(chapter, at) {
  const label = made("label");
  label.style.paddingInlineStart = `calc(12px + ${Math.min(chapter.level, 4) * 1.4}em)`;
  label.append(chapter.box, made("span", chapter.title), made("small", ticks.sizeOf(at)));
  return label;
}

export function bindChapters(fail) {
  byId("choose-these").addEventListener("click", () => readChapters(ticks).then(fail));
}
