// Shows the page in the person's language. All texts are written in English. A file per language ("de.json") maps
// English texts to translations. A text is replaced wherever it appears: in the HTML, from scripts, and from the server,
// errors included.
//
// Words of books, chats and persons are never translated. Their elements have translate="no" or match ANOTHERS; where an
// attribute alone has such words, data-own names it.

import { ENGLISH, load, translated } from "./translation.js";

const KEPT = "trifold-language";
export const LANGUAGES = { en: "English", de: "Deutsch" };

const ATTRIBUTES = ["title", "aria-label", "placeholder", "data-tip", "alt"];
const ANOTHERS = [
  '[translate="no"], script, style, pre, code, #chat, #spoken, #aloud-words, #book-title, #page-text',
  '[data-model="ready"] #model-name', // before, it says what is being done
  "#page-marks, #search-found, #suggestions, #report, .title, .cover b, .cover i, blockquote, mark, .runs .words, #race-question",
  ".chapter .open > span, #find-hits button, #chats .open > span, #choose-list span, #offer-files span",
].join(", ");
// Elements inside ANOTHERS that are translated nevertheless.
const OURS = "#chat :is(.actions, .cite, .under, .above, .trouble, .waiting, .live, .parts > summary, .part > b, .passages > summary, .first-answer > summary, .thought > summary), #find-hits small";

// English source and shown translation, keyed by text node, or by element and attribute name.
const sources = new WeakMap();

// Returns the chosen language, or null for the browser's language.
export function chosenLanguage() {
  try {
    const kept = localStorage.getItem(KEPT);
    return kept in LANGUAGES ? kept : null;
  } catch {
    return null; // without storage no choice is remembered
  }
}

function wanted() {
  const offered = navigator.languages.map((each) => each.slice(0, 2).toLowerCase());
  return chosenLanguage() ?? offered.find((each) => each in LANGUAGES) ?? ENGLISH;
}

export function chooseLanguage(name) {
  try {
    if (name) localStorage.setItem(KEPT, name);
    else localStorage.removeItem(KEPT);
  } catch {
    // as above
  }
  return speak();
}

// Page ----------------------------------------------------------------------------------------------------------------

function isOurs(element) {
  const nearest = element.closest(`${ANOTHERS}, ${OURS}`);
  return !nearest || nearest.matches(OURS);
}

function showText(node) {
  const before = sources.get(node);
  if (before?.shown === node.data) return;
  if (!/\p{L}|\d/u.test(node.data) || !node.parentElement || !isOurs(node.parentElement)) return;
  const source = node.data;
  const shown = translated(source);
  sources.set(node, { source, shown });
  if (shown !== source) node.data = shown;
}

function showAttribute(element, name) {
  const value = element.getAttribute(name);
  const before = sources.get(element) ?? {};
  if (!value || element.dataset.own === name || before[name]?.shown === value || !isOurs(element.parentElement ?? element)) return;
  const shown = translated(value);
  sources.set(element, { ...before, [name]: { source: value, shown } });
  if (shown !== value) element.setAttribute(name, shown);
}

function showAll(root) {
  if (root.nodeType === Node.TEXT_NODE) return showText(root);
  if (root.nodeType !== Node.ELEMENT_NODE) return;
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) showText(node);
  for (const name of ATTRIBUTES) {
    if (root.hasAttribute(name)) showAttribute(root, name);
    for (const element of root.querySelectorAll(`[${name}]`)) showAttribute(element, name);
  }
}

// Restores the English texts.
function restore(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const before = sources.get(node);
    if (!before) continue;
    if (node instanceof Text) {
      if (node.data === before.shown) node.data = before.source;
    } else if (node instanceof Element) {
      for (const [name, { source, shown }] of Object.entries(before)) {
        if (node.getAttribute(name) === shown) node.setAttribute(name, source);
      }
    }
    sources.delete(node);
  }
}

const watch = new MutationObserver((changes) => {
  for (const { type, target, addedNodes, attributeName } of changes) {
    if (type === "attributes") showAttribute(target, attributeName);
    else if (type === "characterData") showText(target);
    else addedNodes.forEach(showAll);
  }
});

async function speak() {
  const next = wanted();
  const found = next === ENGLISH ? {} : await fetch(`/ui/${next}.json`).then((answer) => answer.json(), () => null);
  watch.disconnect();
  restore(document.body);
  const language = found ? next : ENGLISH;
  load(language, found ?? {});
  document.documentElement.lang = language;
  delete document.documentElement.dataset.language; // shows the page, which theme.js has hidden
  if (language === ENGLISH) return;
  showAll(document.body);
  const seen = { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ATTRIBUTES };
  watch.observe(document.body, seen);
}

// Elements that only have words of the book or its answers. The book's language decides their pronunciation and
// hyphenation.
const OF_BOOK = ["book-title", "spoken", "aloud-words", "suggestions", "contents-list", "find-hits", "page-text"];

/** @param {View["language"]} name */
export function showBookLanguage(name) {
  for (const id of OF_BOOK) {
    if (name) document.getElementById(id).lang = name;
    else document.getElementById(id).removeAttribute("lang");
  }
}

export function bindLanguage() {
  speak();
  const choice = document.getElementById("language");
  choice.value = chosenLanguage() ?? "";
  choice.addEventListener("change", () => chooseLanguage(choice.value));
}
