// A screen reader hears each sentence of an answer once, when it is whole. The answer itself is no live region: as it
// grows it would be read from its beginning again and again.

import { byId, call, made } from "./frame.js";

const MOST_SENTENCES = 12; // that stay in the region; what has been said goes
const MARKS = /^\s*(?:#+|[-*+>]|\|[\s|:-]*\||```.*)\s+|[*_`|]+/gm; // of Markdown

const sentencesOf = new Intl.Segmenter(undefined, { granularity: "sentence" });
let answer = 0;
let said = 0; // characters of it

// The sentences of a Markdown text, as words to be spoken, and how far each reaches.
export function spokenSentences(text) {
  const parts = [];
  for (const { segment, index } of sentencesOf.segment(text)) {
    const words = segment.replace(MARKS, " ").replace(/\s+/g, " ").trim();
    if (/[\p{L}\p{N}]/u.test(words)) parts.push({ words, end: index + segment.length });
  }
  return parts;
}

// The answer that is being written has grown. Its last sentence waits until another one has begun.
export function hear(growing, text) {
  if (growing !== answer) [answer, said] = [growing, 0];
  const sentences = spokenSentences(text.slice(said));
  say(sentences.slice(0, -1));
}

// It has ended: what the stream did not bring any more is asked for.
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
