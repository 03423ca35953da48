// The words that came since the chat was last laid out. Gradio lays the whole chat out anew, which takes time from the
// engine, so it does that seldom; in between the newest words stand in the caret, as plain text.

const CARET = "#chat .bot .caret";
const AT = /\bat-(\d+)/;
const MARKS = /[*`]+/g; // of Markdown: the next layout knows what they mean
const BOTTOM = 60; // pixels from its end within which somebody follows the chat
// A sign of life goes with the words where they come, and costs frames of its own only where none do. An animation of the
// style sheet would have the browser draw in all sixty a second, even one in steps, and without a graphics card that is
// the engine's time.
const SIGNS = '#chat .caret, :is(#chat, #card) .waiting, [data-model="loading"] .dot';
const BEAT_MS = 550;
const ALONE_MS = 900;

let answer = 0;
let heard = ""; // all of the answer, as far as the stream has told it
let beaten = 0;

export function showWriting(news) {
  if (!news) {
    answer = 0;
    heard = "";
    return;
  }
  heard = news.whole || news.answer !== answer ? news.text : heard + news.text;
  answer = news.answer;
  draw();
}

function draw() {
  const caret = [...document.querySelectorAll(CARET)].at(-1);
  if (!caret || !answer) return;
  const from = Number(AT.exec(caret.className)?.[1] ?? heard.length);
  const words = heard.slice(from).replace(MARKS, "");
  if (caret.textContent === words) return;
  const room = scroller(caret);
  const follows = room && room.scrollHeight - room.scrollTop - room.clientHeight < BOTTOM;
  caret.textContent = words;
  // With the frame, when all of the news stands: the whole page is laid out once, not once for the words alone.
  if (follows) requestAnimationFrame(() => (room.scrollTop = room.scrollHeight));
  beat(BEAT_MS);
}

function scroller(element) {
  let room = element.parentElement;
  while (room && room.scrollHeight <= room.clientHeight) room = room.parentElement;
  return room;
}

function beat(pause) {
  if (performance.now() - beaten < pause) return;
  beaten = performance.now();
  for (const sign of document.querySelectorAll(SIGNS)) sign.toggleAttribute("data-dim");
}

export function bindWriting() {
  setInterval(() => beat(ALONE_MS), BEAT_MS);
  // A new layout brings a new caret, which gets its words before it is painted.
  new MutationObserver(draw).observe(document.getElementById("talk"), { subtree: true, childList: true });
}
