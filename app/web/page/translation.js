// Translates the program's English texts by a table of another language ("de.json"). It knows no page.
//
// A text in the table may have places: {} for anything, {n} for a number. What stands in a place is translated in turn,
// unless it is in quotation marks: that is somebody's own. In the translation {0} is the first place, {1} the second.
// A translation by kind of number ({"one": …, "other": …}) goes by the first number. What has no translation stays.

export const ENGLISH = "en";

let language = ENGLISH;
let kinds = new Intl.PluralRules(ENGLISH);
let texts = {};
let patterns = [];
let known = new Map(); // what was translated lately
const MOST_KNOWN = 3000;

const NUMBER = /^\d{1,3}(?:,\d{3})+(?:\.\d+)?$|^\d+(?:\.\d+)?$/;
const PLACE = /\{n?\}/;
const QUOTES = /[“"]$/;

// Translate by this table from now on.
export function load(name, found) {
  language = name;
  kinds = new Intl.PluralRules(name);
  texts = found;
  known = new Map();
  patterns = Object.keys(found)
    .filter((key) => PLACE.test(key))
    .map((key) => ({ key, letters: key.replaceAll(/\{n?\}/g, "").length, own: ownPlaces(key), match: matcher(key) }))
    .sort((one, other) => other.letters - one.letters);
}

// Where a sentence ends: not in "p. 7".
const END = "(?<![ (]pp?)[.!?…](?=\\s+[A-Z“\\d])";
const SENTENCES = new RegExp(`.+?(?:${END}|$)\\s*`, "gs");
// What may stand in a place: a number, or anything that goes on in the same sentence.
const WITHIN = { "{n}": "([\\d.,]*\\d)", "{}": `((?:(?!${END}).)+?)` };

const matcher = (key) =>
  new RegExp(
    `^${key
      .split(/(\{n?\})/)
      .map((part) => WITHIN[part] ?? part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"))
      .join("")}$`,
  );

// Which of its places stand in quotation marks.
const ownPlaces = (key) => key.split(/\{n?\}/).map((before) => QUOTES.test(before));

export function translated(text) {
  if (language === ENGLISH) return text;
  const found = known.get(text);
  if (found !== undefined) return found;
  const [, before, words, after] = /^(\s*)(.*?)(\s*)$/s.exec(text);
  const made = words ? before + phrase(words) + after : text;
  if (known.size >= MOST_KNOWN) known.clear();
  known.set(text, made);
  return made;
}

function phrase(words) {
  if (words.includes("\n")) return words.split("\n").map(translated).join("\n");
  const one = whole(words.replace(/\s+/g, " "));
  if (one !== null) return one;
  if (words.includes(" · ")) return words.split(" · ").map(phrase).join(" · ");
  const sentences = words.match(SENTENCES) ?? [words];
  if (sentences.length > 1) return sentences.map(translated).join("");
  const listed = words.split(", ").map(whole);
  return listed.includes(null) ? words : listed.join(", ");
}

function whole(words) {
  if (NUMBER.test(words)) return number(words);
  if (Object.hasOwn(texts, words)) return put(texts[words], []);
  for (const { key, own, match } of patterns) {
    const found = match.exec(words)?.slice(1);
    if (found) return put(texts[key], found.map((part, at) => (own[at] ? part : translated(part))), found);
  }
  return null;
}

function put(translation, pieces, found = []) {
  const amount = found.find((part) => NUMBER.test(part));
  const form =
    typeof translation === "string"
      ? translation
      : (translation[kinds.select(Number((amount ?? "2").replaceAll(",", "")))] ?? translation.other);
  return form.replace(/\{(\d)\}/g, (_, at) => pieces[at] ?? "");
}

// In the language's own way; what is no large number and no fraction may be a year or a page, and stays.
function number(words) {
  const digits = words.split(".")[1]?.length ?? 0;
  if (!digits && !words.includes(",")) return words;
  const how = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat(language, how).format(Number(words.replaceAll(",", "")));
}
