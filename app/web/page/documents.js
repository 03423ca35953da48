// The open documents: the list with its colours, and adding, removing and reordering. The page shows the cost of a
// change and asks before making it. For several dropped files, the page asks whether to open them together.
import { confirmed } from "./confirm.js";
import { byId, call, hush, made, post, tell } from "./frame.js";
import { fillList } from "./lists.js";

const COLOURS = 6;

let documents = []; // documents of the open book in reading order; empty for a book of a single file
/** @type {Pick<View["book"], "id" | "title" | "stage">} */
let book = { id: "", title: "", stage: "" };
const sheet = new CSSStyleSheet();

export const documentsShown = () => documents;

/** @param {View["book"]} now */
export function showDocumentsBook(now) {
  book = now;
  draw();
}

/** @param {View["documents"]} now */
export function showDocuments(now) {
  documents = now;
  // A citation's class ends with the first 12 digits of its document's id.
  const rules = documents.map(({ id, colour }) => `.cite.of-${id.slice(0, 12)} { --document: var(--document-${colour % COLOURS}); }`);
  sheet.replaceSync(rules.join("\n"));
  draw();
}

// Returns the title of the book to which documents can be added; "" if there is no such book.
export const openTitle = () => (["ready", "parts", "unread", "reading", "choosing"].includes(book.stage) ? book.title : "");
export const isShown = (id) => id === book.id || documents.some((one) => one.id === id);

const ids = () => (documents.length ? documents.map((one) => one.id) : [book.id]);

function draw() {
  byId("trifold").dataset.documents = documents.length ? "several" : openTitle() ? "one" : "none";
  const items = documents.map((one, at) => ({ ...one, at, last: documents.length - 1 }));
  fillList(byId("documents"), items, entry, (button) => button.ariaLabel);
}

function entry(one) {
  const item = made("li");
  item.style.setProperty("--document", `var(--document-${one.colour % COLOURS})`);
  const words = made("span", "", "about");
  words.append(made("span", one.title, "title"), made("small", one.file, "file"), made("small", one.line));
  words.title = [one.title, one.file].filter(Boolean).join("\n");
  item.append(made("i"), words);
  const tools = made("span", "", "tools");
  item.append(tools);
  const tool = (sign, label, wanted, off) => {
    const button = made("button", sign, "tf-tool");
    button.type = "button";
    button.setAttribute("aria-label", `${label} “${one.title}”`);
    button.title = label;
    button.disabled = off;
    button.addEventListener("click", () => rearrange(wanted(), `${label} “${one.title}”?`));
    tools.append(button);
  };
  const moved = (by) => () => {
    const order = ids();
    order.splice(one.at + by, 0, ...order.splice(one.at, 1));
    return order;
  };
  tool("↑", "Move up", moved(-1), one.at === 0);
  tool("↓", "Move down", moved(1), one.at === one.last);
  tool("×", "Leave out", () => ids().filter((id) => id !== one.id), !one.last);
  return item;
}

// Moves or leaves out documents at once, because nothing is read before the next question.
async function rearrange(wanted, question) {
  const of = book.id; // as in ``change``
  if (byId("trifold").dataset.asking === "yes") {
    const said = await confirmed(question, "The answer that is being written is stopped.", { yes: "Do it", no: "Cancel" });
    if (said !== "yes") return;
  }
  tell(await post("/documents", { ids: wanted, anew: false, of }));
}

// Fetches the cost of a change, asks for consent, and makes the change. ``agreed``: whether the person has agreed to the
// reading already; then only a stopped answer and the recognition of scans are asked about.
async function change(wanted, question, { yes = "Do it", anew = false, agreed = false } = {}) {
  const of = book.id; // sent along, because another tab may open another book in the meantime
  tell({ cause: "Counting what is to be read…" });
  const cost = await call("/documents/cost", { ids: wanted });
  hush();
  if (cost.cause) return tell(cost);
  const { recognise } = cost;
  const busy = byId("trifold").dataset.asking === "yes" ? " The answer that is being written is stopped." : "";
  if (cost.fits) {
    const clear = agreed && !busy && !recognise.length;
    const said = clear ? "yes" : await confirmed(question, `${cost.said}${busy}`, { yes, no: "Cancel" });
    return said === "yes" ? tell(await post("/documents", { ids: wanted, anew, of, recognise })) : undefined;
  }
  const some = cost.without.length && cost.without.length < wanted.length;
  const said = await confirmed("Too long together", cost.said, { yes: some ? "Leave that out" : "Choose others", no: "Cancel" });
  if (said === "yes" && some) tell(await post("/documents", { ids: cost.without, anew, of, recognise }));
}

export function addToOpen(added, title, agreed = false) {
  const fresh = added.filter((id) => !isShown(id));
  if (!fresh.length) return tell({ cause: "It is open already." });
  return change([...ids(), ...fresh], `Add ${title} to “${book.title}”?`, { yes: "Add", agreed });
}

export function together(wanted) {
  return change(wanted, `Read ${wanted.length} documents together?`, { yes: "Read them", anew: true, agreed: true });
}

// Asks which of the files to take in, and how. Returns { files, what }; ``what`` is "together", "add" or "keep".
// Returns null if the dialog was closed.
export function offered(files) {
  const dialog = byId("offer");
  byId("offer-files").replaceChildren(
    ...files.map((file, at) => {
      const item = made("li");
      const label = made("label");
      const box = made("input");
      Object.assign(box, { type: "checkbox", checked: true, value: String(at) });
      label.append(box, made("span", file.name), made("small", size(file.size)));
      item.append(label);
      return item;
    }),
  );
  const chosen = () => files.filter((_, at) => byId("offer-files").querySelectorAll("input")[at].checked);
  const count = () => {
    const number = chosen().length;
    byId("offer-question").textContent = `${number} of ${files.length} documents`;
    for (const button of dialog.querySelectorAll("button[value]")) button.disabled = !number && button.value !== "";
  };
  byId("offer-files").onchange = count;
  count();
  byId("offer-add").hidden = !openTitle();
  byId("offer-add").textContent = `Add to “${openTitle()}”`;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue ? { files: chosen(), what: dialog.returnValue } : null), {
      once: true,
    });
  });
}

const size = (bytes) => (bytes < 1e6 ? `${Math.max(1, Math.round(bytes / 1e3))} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

export function bindDocuments() {
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  byId("offer").addEventListener("click", (event) => event.target === byId("offer") && byId("offer").close());
}
