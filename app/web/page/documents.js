// The documents of a conversation: each with its colour, added, left out and put in another order; what that costs is said
// before. Several files that come at once are offered together.
import { confirmed } from "./confirm.js";
import { byId, call, made, post, tell } from "./frame.js";

const COLOURS = 6;

let documents = []; // of the open book, in their order; none where it is one file
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
  // A citation carries the first digits of its document's name.
  const rules = documents.map(({ id, colour }) => `.cite.of-${id.slice(0, 12)} { --document: var(--document-${colour % COLOURS}); }`);
  sheet.replaceSync(rules.join("\n"));
  draw();
}

// What may be added to the open book: "" if none is open.
export const openTitle = () => (["ready", "parts", "reading", "choosing"].includes(book.stage) ? book.title : "");
export const isShown = (id) => id === book.id || documents.some((one) => one.id === id);

const ids = () => (documents.length ? documents.map((one) => one.id) : [book.id]);

function draw() {
  byId("trifold").dataset.documents = documents.length ? "several" : openTitle() ? "one" : "none";
  const list = byId("documents");
  const focused = list.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : "";
  list.replaceChildren(...documents.map(entry));
  if (focused) [...list.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === focused)?.focus();
}

function entry(one, at) {
  const item = made("li");
  item.style.setProperty("--document", `var(--document-${one.colour % COLOURS})`);
  const words = made("span", "", "about");
  words.append(made("span", one.title, "title"), made("small", one.line));
  words.title = one.title;
  item.append(made("i"), words);
  const tools = made("span", "", "tools");
  item.append(tools);
  const tool = (sign, label, wanted, off) => {
    const button = made("button", sign, "tf-tool");
    button.type = "button";
    button.setAttribute("aria-label", `${label} ${one.title}`);
    button.title = label;
    button.disabled = off;
    button.addEventListener("click", () => change(wanted(), `${label} “${one.title}”?`));
    tools.append(button);
  };
  const moved = (by) => () => {
    const order = ids();
    order.splice(at + by, 0, ...order.splice(at, 1));
    return order;
  };
  tool("↑", "Move up", moved(-1), at === 0);
  tool("↓", "Move down", moved(1), at === documents.length - 1);
  tool("×", "Leave out", () => ids().filter((id) => id !== one.id), documents.length < 2);
  return item;
}

// Asks for the cost, says it, and does what was agreed to.
async function change(wanted, question, { yes = "Do it", anew = false } = {}) {
  const of = book.id; // another one may be opened in another tab before this is agreed to
  tell({ cause: "Counting what is to be read…" });
  const cost = await call("/documents/cost", { ids: wanted });
  byId("toast").hidden = true;
  if (cost.cause) return tell(cost);
  const busy = byId("trifold").dataset.asking === "yes" ? " The answer that is being written is stopped." : "";
  if (cost.fits) {
    const said = await confirmed(question, `${cost.said}${busy}`, { yes, no: "Cancel" });
    return said === "yes" ? tell(await post("/documents", { ids: wanted, anew, of })) : undefined;
  }
  const some = cost.without.length && cost.without.length < wanted.length;
  const said = await confirmed("Too long together", cost.said, { yes: some ? "Leave that out" : "Choose others", no: "Cancel" });
  if (said === "yes" && some) tell(await post("/documents", { ids: cost.without, anew, of }));
}

export function addToOpen(added, title) {
  const fresh = added.filter((id) => !isShown(id));
  if (!fresh.length) return tell({ cause: "It is in this conversation already." });
  return change([...ids(), ...fresh], `Add ${title} to “${book.title}”?`, { yes: "Add" });
}

export const together = (wanted) => change(wanted, `Read ${wanted.length} documents together?`, { yes: "Read them", anew: true });

// Which of several files are wanted, and what for: "together", "add", "keep", or null.
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
