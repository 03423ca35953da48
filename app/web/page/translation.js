// Translates English texts with a table ("de.json"). This script does not use the page's elements.
//
// An English text may have placeholders: {} for any text, {n} for a number. Text in a placeholder is translated too,
// unless the placeholder is in quotation marks or names a sheet, because this is a title or words of the person. In the
// translation, {0} is the first placeholder, {1} the second. A translation by plural form ({"one": …, "other": …})
// depends on the first number. A text without a translation stays English.

export const ENGLISH = "en";

let language = ENGLISH;
let kinds = new Intl.PluralRules(ENGLISH);
let texts = {};
let patterns = [];
let known = new Map(); // cache of at most MOST_KNOWN translations, each with the number of letters that stayed English
let left = 0; // letters that no entry translated, summed while a text is translated
const MOST_KNOWN = 3000;

const NUMBER = /^\d{1,3}(?:,\d{3})+(?:\.\d+)?$|^\d+(?:\.\d+)?$/;
const PLACE = /\{n?\}/;
const LETTER = /\p{L}/u;
const OWN = /[“"]$|^sheet $/;

// Sets the language and its table, which maps English texts to translations.
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

// End of a sentence. The period in "p. 7" does not end one.
const END = "(?<![ (]pp?)[.!?…](?=\\s+[A-Z“\\d])";
const SENTENCES = new RegExp(`.+?(?:${END}|$)\\s*`, "gs");
// What a placeholder matches: a number, or any text without the end of a sentence or of a part of a line.
const WITHIN = { "{n}": "([\\d.,]*\\d)", "{}": `((?:(?!${END}| · ).)+?)` };

const matcher = (key) =>
  new RegExp(
    `^${key
      .split(/(\{n?\})/)
      .map((part) => WITHIN[part] ?? part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"))
      .join("")}$`,
  );

// Returns which placeholders hold words of the person.
const ownPlaces = (key) => key.split(/\{n?\}/).map((before) => OWN.test(before));

export function translated(text) {
  if (language === ENGLISH) return text;
  const found = known.get(text);
  if (found !== undefined) {
    left += found.left;
    return found.made;
  }
  const before = left;
  const [, space, words, after] = /^(\s*)(.*?)(\s*)$/s.exec(text);
  const made = words ? space + phrase(words) + after : text;
  if (known.size >= MOST_KNOWN) known.clear();
  known.set(text, { made, left: left - before });
  return made;
}

function phrase(words) {
  if (words.includes("\n")) return words.split("\n").map(translated).join("\n");
  const one = whole(words.replace(/\s+/g, " "));
  if (one !== null) return one;
  if (words.startsWith("· ")) return `· ${phrase(words.slice(2))}`; // the rest of a line begun by another element
  if (words.includes(" · ")) return words.split(" · ").map(phrase).join(" · ");
  const sentences = words.match(SENTENCES) ?? [words];
  if (sentences.length > 1) return sentences.map(translated).join("");
  const before = left;
  const listed = words.split(", ").map(whole);
  if (!listed.includes(null)) return listed.join(", ");
  left = before + (LETTER.test(words) ? words.length : 0);
  return words;
}

// Returns the translation by the pattern whose placeholders leave the least English; null if no pattern matches.
function whole(words) {
  if (NUMBER.test(words)) return number(words);
  if (Object.hasOwn(texts, words)) return put(texts[words], []);
  const before = left;
  let best = null;
  for (const { key, own, match } of patterns) {
    const found = match.exec(words)?.slice(1);
    if (!found) continue;
    left = before;
    const pieces = found.map((part, at) => (own[at] ? part : translated(part)));
    if (!best || left < best.left) best = { made: put(texts[key], pieces, found), left };
    if (left === before) break;
  }
  left = best?.left ?? before;
  return best?.made ?? null;
}

function put(translation, pieces, found = []) {
  const amount = found.find((part) => NUMBER.test(part));
  const form =
    typeof translation === "string"
      ? translation
      : (translation[kinds.select(Number((amount ?? "2").replaceAll(",", "")))] ?? translation.other);
  return form.replace(/\{(\d)\}/g, (_, at) => pieces[at] ?? "");
}

// Formats a number for the language. An integer without a thousands separator stays, because it may be a year or a
// page.
function number(words) {
  const digits = words.split(".")[1]?.length ?? 0;
  if (!digits && !words.includes(",")) return words;
  const how = { minimumFractionDigits: digits, maximumFractionDigits: digits };
  return new Intl.NumberFormat(language, how).format(Number(words.replaceAll(",", "")));
}
