// Reads an answer aloud with a local voice. Voices that send the text to a server are never used. Without a local voice
// the buttons for reading aloud are hidden.

import { closedByEscape } from "./escape.js";
import { byId, call, tell } from "./frame.js";
import { spokenSentences } from "./spoken.js";

const speech = window.speechSynthesis;
let sentences = [];
let at = 0;
let voice = null;
let speaking = null; // current utterance; kept because some browsers drop an unreferenced utterance

const voices = () => (speech?.getVoices() ?? []).filter((each) => each.localService);

function showVoices() {
  byId("trifold").dataset.voice = voices().length ? "yes" : "no";
}

// Returns a voice for the language: the machine's default voice if it speaks the language, otherwise the first voice.
function voiceFor(language) {
  const speaks = voices().filter((each) => each.lang.toLowerCase().split(/[-_]/)[0] === language);
  return speaks.find((each) => each.default) ?? speaks[0];
}

export async function readAloud(message) {
  stop();
  const told = await call("/chats/text", { message });
  if (told.cause) return tell(told);
  const language = told.language || navigator.language.split("-")[0];
  voice = voiceFor(language);
  if (!voice) {
    const cause = "This machine has no voice for the language of this answer.";
    return tell({ cause, remedy: "Its system settings may offer one." });
  }
  sentences = spokenSentences(told.text);
  byId("aloud").hidden = false;
  go(0);
}

function go(number) {
  at = number;
  if (at >= sentences.length) return stop();
  byId("aloud-words").textContent = sentences[at].words;
  speaking = new SpeechSynthesisUtterance(sentences[at].words);
  Object.assign(speaking, { voice, lang: voice.lang });
  const mine = speaking;
  const next = () => mine === speaking && go(at + 1);
  Object.assign(speaking, { onend: next, onerror: next });
  speech.speak(speaking);
  showPaused(false);
}

function showPaused(paused) {
  byId("aloud-pause").hidden = paused;
  byId("aloud-on").hidden = !paused;
}

// Cancels the current sentence. Resuming starts that sentence again. The browser's pause is not used, because on some
// systems it ends all speech.
function pause() {
  speaking = null;
  speech.cancel();
  showPaused(true);
  byId("aloud-on").focus();
}

function stop() {
  if (byId("aloud").hidden) return;
  speaking = null;
  speech.cancel();
  if (byId("aloud").contains(document.activeElement)) document.querySelector("#ask-box textarea").focus();
  byId("aloud").hidden = true;
}

export function bindAloud() {
  showVoices();
  speech?.addEventListener?.("voiceschanged", showVoices);
  byId("aloud-pause").addEventListener("click", pause);
  byId("aloud-on").addEventListener("click", () => {
    go(at);
    byId("aloud-pause").focus();
  });
  byId("aloud-stop").addEventListener("click", stop);
  addEventListener("pagehide", stop);
  closedByEscape("aloud", () => !byId("aloud").hidden, stop);
}
