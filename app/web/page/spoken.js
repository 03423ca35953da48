// Live region for screen readers, which receives each sentence of an answer once, when the sentence is complete. The
// answer itself is no live region, because a growing region would be read from the beginning again and again.

import { byId, call, made } from "./frame.js";

const MOST_SENTENCES = 12; // maximum sentences in the region; older sentences are removed
const BETWEEN = /^\s*(?:#+|[-*+>]|\|[\s|:-]*\||```.*)\s+|\|/gm; // Markdown marks between words
const AT_WORDS = /[*`]+|(?<![\p{L}\p{N}])_+|_+(?![\p{L}\p{N}])/gu; // Markdown marks that touch a word

const sentencesOf = new Intl.Segmenter(undefined, { granularity: "sentence" });
let answer = 0;
let said = 0; // characters of the answer in the region so far

// Splits a Markdown text into sentences: { words, end }. ``words``: without Markdown. ``end``: position in ``text``.
export function spokenSentences(text) {
  const parts = [];
  for (const { segment, index } of sentencesOf.segment(text)) {
    const words = segment.replace(BETWEEN, " ").replaceAll(AT_WORDS, "").replace(/\s+/g, " ").trim();
    if (/[\p{L}\p{N}]/u.test(words)) parts.push({ words, end: index + segment.length });
  }
  return parts;
}

// Handles new text of the answer in progress. The last sentence is held back, because it may be incomplete.
export function hear(growing, text) {
  if (growing !== answer) [answer, said] = [growing, 0];
  const sentences = spokenSentences(text.slice(said));
  say(sentences.slice(0, -1));
}

// Empties the region when another chat is shown, so that a screen reader finds no sentence of the previous chat there.
export function hearChat() {
  [answer, said] = [0, 0];
  byId("spoken").replaceChildren();
}

// Handles the end of the answer. Fetches the complete text, because the stream may not have sent all of it.
export async function hearEnd() {
  const ended = answer;
  if (!ended) return;
  const told = await call("/chats/text", { message: ended });
  if (ended !== answer) return;
  answer = 0;
  if (!told.cause) say(spokenSentences(told.text.slice(said)));
}

function say(sentences) {
  if (!sentences.length) return;
  const region = byId("spoken");
  region.append(...sentences.map((sentence) => made("p", sentence.words)));
  said += sentences.at(-1).end;
  while (region.childElementCount > MOST_SENTENCES) region.firstElementChild.remove();
}
