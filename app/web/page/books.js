// Books: uploading, opening, the password, the choice of pages, and errors.
import { bindChapters, showChapters } from "./chapters.js";
import { confirmed } from "./confirm.js";
import { addToOpen, offered, together } from "./documents.js";
import { byId, made, post, tell } from "./frame.js";
import { closePage } from "./pages.js";

const MOST_BYTES = 200_000_000;

const WORDS = { opening: "Opening…", waiting: "It is open and will be read…" };
const MENDS = {
  "open-again": ["Try again", () => post("/books/open", { id: current.id })],
  recognise: ["Recognise the pages", () => post("/books/open", { id: current.id, recognise: true })],
  convert: ["Convert it with LibreOffice", () => post("/books/open", { id: current.id, convert: true })],
  "read-again": ["Read it", () => post("/reading/again")],
  "other-book": ["Choose another book", () => byId("file").click()],
};

const mouse = matchMedia("(hover: hover)");
const narrow = matchMedia("(max-width: 820px)");

let current = { stage: "empty" };
let local = null; // an error that only this tab shows, such as a failed upload

const ON_THE_WAY = ["opening", "waiting", "reading"];

// Returns whether the book is open and needs no action of the person.
export const isOpen = (id) => id === current.id && [...ON_THE_WAY, "ready", "parts", "unread"].includes(current.stage);

const asking = () => byId("trifold").dataset.asking === "yes";
const underWay = () => asking() || ON_THE_WAY.includes(current.stage);

// Asks whether a book (without a title: the open book again) may be opened although an answer or a reading is in
// progress. Returns "yes", "no", or "" if the dialog was closed. If that work ends meanwhile, the result is "yes".
export async function mayOpen(title, no = "Go on") {
  if (!underWay()) return "yes";
  const over = new MutationObserver(() => underWay() || byId("confirm").close("yes"));
  over.observe(byId("trifold"), { attributeFilter: ["data-asking", "data-stage"] });
  const busy = asking() ? "An answer is being written." : `“${current.title}” is still being read.`;
  const what = title ? `“${title}”` : "the book again";
  const said = await confirmed(busy, `Opening ${what} now stops that.`, { yes: "Open it now", no });
  over.disconnect();
  return said;
}

/** @param {View["book"]} book */
export function showBook(book) {
  const before = current.stage;
  current = book;
  local = null;
  draw();
  if (current.stage !== before) lead();
}

// Focuses the password field or the question box when it replaces the button that opened the book. Touch screens are
// left out, because a focused field opens the keyboard.
function lead() {
  const at = document.activeElement; // a hidden element keeps the focus until the next paint
  if ((at !== document.body && at?.checkVisibility()) || !mouse.matches) return;
  if (current.stage === "locked") byId("password").focus();
  if (["reading", "ready", "parts", "unread"].includes(current.stage)) document.querySelector("#ask-box textarea")?.focus();
}

/** @param {View["hint"]} hint */
export function showHint(hint) {
  byId("hint-words").textContent = hint;
}

function draw() {
  const root = byId("trifold");
  root.dataset.stage = current.stage;
  byId("book-title").textContent = current.title || "";
  byId("book-title").title = [current.title, current.author].filter(Boolean).join(", ");
  byId("book-line").textContent = current.line || "";
  if (current.figures) byId("book-line").append(made("span", ` · ${current.figures}`, "figures"));
  const said = (current.warnings || []).join("\n");
  byId("book-line").title = said;
  byId("hint-said").hidden = !said;
  byId("hint-said").textContent = said;
  const recognising = current.recognising;
  byId("opening-words").textContent = recognising?.line || current.converting || WORDS[current.stage] || "";
  byId("recognising").hidden = !recognising;
  byId("recognising-bar").value = recognising?.part ?? 0;
  const { pictures } = current;
  byId("pictures-line").hidden = !pictures;
  byId("pictures-line").querySelector("span").textContent = pictures?.line ?? "";
  byId("pictures-read").hidden = !pictures?.found;
  byId("pictures-stop").hidden = !pictures || pictures.found || pictures.waits;
  document.title = current.title ? `${current.title} · Trifold` : "Trifold";
  const trouble = local || current.trouble;
  root.dataset.trouble = local ? "local" : trouble ? "yes" : "no";
  if (trouble) drawTrouble(trouble);
  if (current.choose) drawChoice(current.choose);
  showChapters(current.stage === "choosing" ? current.id : "");
  byId("password-words").textContent = current.stage === "locked" && current.trouble ? current.trouble.cause : "";
  if (current.stage !== "locked") byId("password").value = "";
}

function drawTrouble(trouble) {
  byId("trouble-cause").textContent = trouble.cause;
  byId("trouble-remedy").textContent = trouble.remedy;
  const mend = MENDS[trouble.action];
  byId("trouble-mend").hidden = !mend;
  if (mend) byId("trouble-mend").textContent = mend[0];
  byId("trouble-mend").onclick = mend ? () => mend[1]()?.then(fail) : null;
  byId("trouble-close").hidden = !local;
}

function drawChoice(choose) {
  byId("choose-lead").textContent = choose.lead;
  byId("choose-words").textContent = choose.sentence;
  byId("choose-unit").textContent = choose.unit === "section" ? "Sections" : "Pages";
  byId("choose-read").textContent = `Read these ${choose.unit}s`;
  for (const part of ["first", "last"]) {
    const field = byId(`choose-${part}`);
    field.max = choose.pages;
    if (document.activeElement !== field) field.value = choose[part];
  }
}

// Starts text recognition. The page panel closes on a narrow screen, because it would cover the progress.
async function recognise() {
  if ((await mayOpen()) !== "yes") return;
  if (narrow.matches) closePage();
  post("/books/open", { id: current.id, recognise: true }).then(fail);
}

function fail(trouble) {
  if (trouble) setLocal(trouble);
}

function setLocal(trouble) {
  local = trouble;
  draw();
}

// Shows the progress of an upload. ``part``: the fraction that was sent; null when the upload has ended.
export function showSending(part) {
  byId("trifold").dataset.sending = part === null ? "no" : "yes";
  byId("sending-bar").value = part ?? 0;
}

// Opens a single file. For several files, asks whether to open them together, add them to the open book, or only keep
// them in the library.
async function takeIn(files, sending, what = "") {
  if (!files.length) return;
  setLocal(null);
  if (files.length === 1 && !what) return send(files[0], sending, false);
  const several = files.length > 1;
  const wanted = several ? await offered(files) : { files, what };
  if (!wanted) return;
  const ids = [];
  for (const file of wanted.files) {
    const id = await send(file, sending, true);
    if (id) ids.push(id);
  }
  const all = ids.length === wanted.files.length; // otherwise the page shows the error
  if (!all || wanted.what === "keep") return;
  if (wanted.what !== "add") await together(ids);
  else await addToOpen(ids, ids.length > 1 ? `${ids.length} documents` : `“${wanted.files[0].name}”`, several);
}

// Uploads a file. Returns the id of its book, or "" or undefined if the upload failed.
async function send(file, sending, beside) {
  if (!file.size) return fail({ cause: `${file.name} is empty.`, remedy: "Choose another file.", action: "other-book" });
  if (file.size > MOST_BYTES) {
    return fail({ cause: `${file.name} is larger than 200 MB.`, remedy: "Split it, or choose another file.", action: "other-book" });
  }
  const chosen = beside ? "no" : await mayOpen(file.name, "Only add it to the library");
  if (!chosen) return ""; // the dialog was closed
  byId("sending-words").textContent = `Taking in ${file.name}…`;
  sending(0);
  const request = new XMLHttpRequest(); // fetch reports no upload progress
  request.upload.onprogress = (event) => event.lengthComputable && sending(event.loaded / event.total);
  const arrived = new Promise((resolve) => (request.onloadend = resolve));
  request.open("POST", "/books");
  request.setRequestHeader("Content-Type", "application/octet-stream");
  request.setRequestHeader("X-File-Name", encodeURIComponent(file.name));
  request.setRequestHeader("X-Open", chosen);
  request.send(file);
  await arrived;
  sending(null);
  if (request.status === 200) {
    const told = JSON.parse(request.responseText);
    tell({ cause: told.note });
    return told.id;
  }
  let trouble = { cause: "The file did not arrive.", remedy: "Try again." };
  try {
    trouble = JSON.parse(request.responseText);
  } catch {
    // without a server there is no JSON, so the default error is shown
  }
  fail({ action: "other-book", ...trouble });
  return "";
}

export function bindBooks(sending) {
  const input = byId("file");
  const take = () => {
    takeIn([...input.files], sending); // copied, because clearing the field empties the list
    input.value = "";
  };
  input.addEventListener("change", take);
  take(); // files chosen before this script was loaded
  byId("add-book").addEventListener("click", () => input.click());
  const more = byId("more-file");
  more.accept = input.accept;
  more.addEventListener("change", () => {
    takeIn([...more.files], sending, "add");
    more.value = "";
  });
  byId("add-document").addEventListener("click", () => more.click());
  byId("drop").addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") input.click();
  });
  byId("sample").addEventListener("click", () => post("/books/sample").then(fail));
  byId("trouble-close").addEventListener("click", () => setLocal(null));
  byId("recognising-stop").addEventListener("click", () => post("/reading/stop").then(fail));
  byId("pictures-read").addEventListener("click", () => post("/reading/pictures").then(fail));
  byId("pictures-stop").addEventListener("click", () => post("/reading/stop").then(fail));
  byId("page-recognise").addEventListener("click", recognise);
  byId("password-form").addEventListener("submit", (event) => {
    event.preventDefault();
    post("/books/open", { id: current.id, password: byId("password").value }).then(fail);
  });
  byId("choose-form").addEventListener("submit", (event) => {
    event.preventDefault();
    const pages = { first: byId("choose-first").valueAsNumber, last: byId("choose-last").valueAsNumber };
    post("/reading/choose", pages).then(fail);
  });
  bindChapters(fail);
  bindDropping((files) => takeIn(files, sending), input.accept.split(","));
}

// Accepts dropped files. ``known``: the file name suffixes of documents.
function bindDropping(take, known) {
  const sheet = byId("dropping");
  const hasFile = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    sheet.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) sheet.hidden = true;
  });
  addEventListener("drop", (event) => {
    sheet.hidden = true;
    if (!hasFile(event)) return;
    event.preventDefault();
    dropped(event.dataTransfer, known).then((files) => {
      if (files.length) take(files);
      else fail({ cause: "There is no document in this folder.", remedy: "Choose another one.", action: "other-book" });
    });
  });
}

// Returns the dropped files, and the documents inside dropped folders.
async function dropped(transfer, known) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.());
  const files = [...transfer.files];
  const found = await Promise.all(entries.map((entry, at) => (entry?.isDirectory ? inside(entry, known) : [files[at]])));
  return found.flat().filter(Boolean);
}

async function inside(folder, known) {
  const reader = folder.createReader();
  const entries = [];
  for (let some = [null]; some.length; entries.push(...some)) some = await new Promise((resolve) => reader.readEntries(resolve, () => resolve([])));
  entries.sort((one, other) => one.name.localeCompare(other.name, undefined, { numeric: true }));
  const found = await Promise.all(
    entries.map((entry) => {
      if (entry.isDirectory) return inside(entry, known);
      if (!known.some((ending) => entry.name.toLowerCase().endsWith(ending))) return [];
      return new Promise((resolve) => entry.file((file) => resolve([file]), () => resolve([])));
    }),
  );
  return found.flat();
}
