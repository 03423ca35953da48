// The page's own scripts begin here: the live stream comes in and goes to the part that shows it.
import { bindActs, settleEditing } from "./acts.js";
import { bindBooks, showBook, showSending } from "./books.js";
import { bindChat, noticeAsking, showAsking, showChat, showSuggestions } from "./chat.js";
import { hasCard } from "./drawing.js";
import { showFigures, showMemory, showPace } from "./figures.js";
import { bindFrame, showModel } from "./frame.js";
import { bindInk, showInk } from "./ink.js";
import { bindLibrary, showBooks, showChats, showOpenBook, showOpenChat, showStorage } from "./library.js";
import { glow, keepUp, showMap, showRead, showReading } from "./map.js";
import { bindPages, showPaging } from "./pages.js";
import { bindPreferences, showSetup } from "./preferences.js";
import { bindRace, showRace, showVerified } from "./race.js";
import { bindSearch } from "./search.js";
import { bindWriting, showWriting } from "./writing.js";

const RETRY_MS = 1500;
const LIVE = `/live?card=${hasCard() ? "yes" : "no"}`; // news come more seldom where drawing them is the engine's time

const show = {
  model: showModel,
  book: (book) => {
    showBook(book);
    showOpenBook(book);
  },
  books: showBooks,
  chats: showChats,
  storage: showStorage,
  map: showMap,
  pages_read: showRead,
  reading: showReading,
  read: (line) => showReading(undefined, line),
  asking: (asking) => {
    showAsking(asking);
    if (asking) settleEditing();
  },
  chat: (chat) => {
    showChat(chat);
    showOpenChat(chat);
  },
  writing: showWriting,
  memory: showMemory,
  figures: showFigures,
  pace: showPace,
  scores: glow,
  suggestions: showSuggestions,
  ink: showInk,
  paging: showPaging,
  race: showRace,
  verified: showVerified,
  setup: showSetup,
};

function listen() {
  const stream = new EventSource(LIVE);
  stream.onmessage = (message) => {
    const root = document.getElementById("trifold");
    if (root.dataset.live !== "yes") root.dataset.live = "yes";
    const news = JSON.parse(message.data);
    for (const [part, value] of Object.entries(news)) show[part]?.(value);
    noticeAsking();
    keepUp();
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
bindActs();
bindLibrary();
bindSearch();
bindInk();
bindWriting();
bindPages();
bindRace();
bindPreferences();
resume();
document.addEventListener("visibilitychange", resume);
addEventListener("pagehide", () => stream?.close());
