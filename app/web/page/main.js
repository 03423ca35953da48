// Entry point of the page's scripts. Receives the live stream and passes each part to the function that shows it.
import { bindAloud } from "./aloud.js";
import { bindAsking, isWaiting, showAskedBy, showAsking, showSampling, showSuggestions } from "./ask.js";
import { bindBooks, showBook, showHint, showSending } from "./books.js";
import { bindChat, showChat, showWriting } from "./chat.js";
import { bindConfirm } from "./confirm.js";
import { showFigures, showMemory, showPace } from "./figures.js";
import { bindContents, showContents, showContentsGlow, showContentsPaging } from "./contents.js";
import { bindDocuments, showDocuments, showDocumentsBook } from "./documents.js";
import { bindEach, showEach, showEachBook, showEachBooks, showEachPaging, showEachTable } from "./each.js";
import { bindEscape } from "./escape.js";
import { bindFind } from "./find.js";
import { bindFirst, showFirst, showFirstSetup, showOthers, showRates } from "./first.js";
import { bindFrame, showModel } from "./frame.js";
import { bindLanguage, showBookLanguage } from "./language.js";
import { bindLibrary, showBooks, showChats, showOpenBook, showOpenChat, showStorage } from "./library.js";
import { bindLists } from "./lists.js";
import { glow, keepUp, showMap, showMapDocuments, showMapPaging, showRead, showReading } from "./map.js";
import { bindNotes, showNotes } from "./notes.js";
import { bindPages, showPaging } from "./pages.js";
import { bindParts, showParts } from "./parts.js";
import { bindPreferences, showBookSaid, showComments, showPictures, showSetup, showSource } from "./preferences.js";
import { bindProvenance, showProvenance } from "./provenance.js";
import { bindRace, showRace, showVerified } from "./race.js";
import { bindSearch } from "./search.js";

const RETRY_MS = 1500;
const GONE_MS = 1200; // a shorter loss of the connection is not reported
// time for which a hidden tab stays connected; long enough to learn that its question is being answered
const HIDDEN_MS = 2000;
const IN_SOFTWARE = /swiftshader|llvmpipe|softpipe|software|basic render/i;
// without a graphics card the server sends less often, because drawing takes time from the engine
const LIVE = `/live?card=${hasCard() ? "yes" : "no"}`;

// Returns whether a graphics card draws this page. If not, drawing takes processor time, perhaps from the engine.
function hasCard() {
  const gl = document.createElement("canvas").getContext("webgl", { failIfMajorPerformanceCaveat: true });
  if (!gl) return false;
  const names = gl.getExtension("WEBGL_debug_renderer_info");
  const card = gl.getParameter(names ? names.UNMASKED_RENDERER_WEBGL : gl.RENDERER);
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  return !IN_SOFTWARE.test(card);
}

/** @type {{ [Part in keyof View]: (value: View[Part]) => void }} */
const show = {
  model: showModel,
  book: (book) => {
    showBook(book);
    showOpenBook(book);
    showDocumentsBook(book);
    showEachBook(book);
    showBookSaid(book);
  },
  books: (books) => {
    showBooks(books);
    showEachBooks(books);
  },
  chats: showChats,
  storage: showStorage,
  map: showMap,
  pages_read: showRead,
  reading: showReading,
  read: (line) => showReading(undefined, line),
  hint: showHint,
  sampling: showSampling,
  asking: showAsking,
  asked_by: showAskedBy,
  chat: (chat) => {
    showChat(chat);
    showOpenChat(chat);
  },
  writing: showWriting,
  memory: showMemory,
  figures: showFigures,
  pace: showPace,
  scores: (scores) => {
    glow(scores);
    showContentsGlow(scores);
  },
  contents: showContents,
  documents: (documents) => {
    showDocuments(documents);
    showMapDocuments(documents);
  },
  each: showEach,
  each_table: showEachTable,
  parts: showParts,
  suggestions: showSuggestions,
  language: showBookLanguage,
  provenance: showProvenance,
  paging: (paging) => {
    showPaging(paging);
    showContentsPaging(paging);
    showMapPaging(paging);
    showEachPaging(paging);
  },
  race: showRace,
  verified: showVerified,
  setup: (setup) => {
    showSetup(setup);
    showFirstSetup(setup);
  },
  comments: showComments,
  pictures: showPictures,
  source: showSource,
  notes: showNotes,
  first: showFirst,
  others: showOthers,
  rates: showRates,
};

let missed = 0; // timer that reports the loss of the connection
function setLive(live) {
  clearTimeout(missed);
  missed = 0;
  const root = document.getElementById("trifold");
  if (root.dataset.live === (live ? "yes" : "no")) return;
  root.dataset.live = live ? "yes" : "no";
  document.getElementById("gone").hidden = live;
}

function listen() {
  const stream = new EventSource(LIVE);
  stream.onmessage = (message) => {
    setLive(true);
    const news = JSON.parse(message.data);
    for (const [part, value] of Object.entries(news)) show[part]?.(value);
    leaveIfHidden();
    keepUp();
  };
  stream.onerror = () => {
    missed ||= setTimeout(setLive, GONE_MS, false);
    if (stream.readyState !== EventSource.CLOSED) return; // the browser reconnects by itself
    setTimeout(() => document.hidden || resume(), RETRY_MS);
  };
  return stream;
}

// A browser opens at most six connections to a server, so a hidden tab closes its stream. A tab that waits for an
// answer keeps the stream, because the server soon stops an answer when no page is connected.
let stream = null;
let hidden = Infinity; // time at which the tab was hidden
function resume() {
  if (document.hidden) {
    hidden = performance.now();
    setTimeout(leaveIfHidden, HIDDEN_MS + 100);
    return;
  }
  if (!stream || stream.readyState === EventSource.CLOSED) stream = listen();
}

function leaveIfHidden() {
  if (!document.hidden || isWaiting() || performance.now() - hidden < HIDDEN_MS) return;
  clearTimeout(missed);
  missed = 0;
  stream?.close();
  stream = null;
}

bindLanguage();
bindEscape();
bindFrame();
bindBooks(showSending);
bindChat();
bindAsking();
bindAloud();
bindLists();
bindConfirm();
bindLibrary();
bindSearch();
bindProvenance();
bindPages();
bindFind();
bindContents();
bindNotes();
bindDocuments();
bindEach();
bindParts();
bindRace();
bindPreferences();
bindFirst();
resume();
document.addEventListener("visibilitychange", resume);
addEventListener("pagehide", () => stream?.close());
