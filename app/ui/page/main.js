// The page's own scripts begin here: the live stream comes in and goes to the part that shows it.
import { bindBooks, showBook, showShelf, showSending } from "./books.js";
import { bindChat, noticeAsking, showAsking, showChat, showSuggestions } from "./chat.js";
import { showFigures, showMemory, showPace } from "./figures.js";
import { bindFrame, showModel } from "./frame.js";
import { glow, showMap, showRead, showReading } from "./map.js";

const RETRY_MS = 1500;

const show = {
  model: showModel,
  book: showBook,
  books: (books) => showShelf("books", books),
  chats: (chats) => {
    showShelf("chats", chats);
    document.getElementById("trifold").dataset.chats = chats.length ? "some" : "none";
  },
  map: showMap,
  pages_read: showRead,
  reading: showReading,
  read: (line) => showReading(undefined, line),
  asking: showAsking,
  chat: showChat,
  memory: showMemory,
  figures: showFigures,
  pace: showPace,
  scores: glow,
  suggestions: showSuggestions,
};

function listen() {
  const stream = new EventSource("/live");
  stream.onmessage = (message) => {
    document.getElementById("trifold").dataset.live = "yes";
    const news = JSON.parse(message.data);
    for (const [part, value] of Object.entries(news)) show[part]?.(value);
    noticeAsking();
  };
  stream.onerror = () => {
    document.getElementById("trifold").dataset.live = "no";
    if (stream.readyState !== EventSource.CLOSED) return; // it tries again by itself
    setTimeout(() => document.hidden || resume(), RETRY_MS);
  };
  return stream;
}

// A browser keeps six connections to one server: a tab that nobody sees gives its own back.
let stream = null;
function resume() {
  stream?.close();
  stream = document.hidden ? null : listen();
}

bindFrame();
bindBooks(showSending);
bindChat();
resume();
document.addEventListener("visibilitychange", resume);
addEventListener("pagehide", () => stream?.close());
