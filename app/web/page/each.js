// One question to several documents, asked of each document separately: the choice of documents, the table of answers,
// and the pages cited in the table.
import { how } from "./ask.js";
import { mayOpen } from "./books.js";
import { documentsShown } from "./documents.js";
import { byId, call, made, post, tell } from "./frame.js";
import { fillList } from "./lists.js";
import { openPage } from "./pages.js";

const narrow = matchMedia("(max-width: 820px)");

/** @type {View["each"]} */
let now = { question: "", running: false, line: "", done: 0, left: 0, unkept: false, at: "" };
let rows = []; // the documents with their answers
let library = []; // the documents of the library
let open = ""; // id of the open book
let coming = null; // page to show when its document has been opened: { id, number, passage }

/** @param {View["each"]} each */
export function showEach(each) {
  now = each;
  byId("each-now").hidden = !each.question;
  byId("each-line").textContent = each.line;
  byId("each-bar").hidden = !each.running;
  byId("each-bar").value = each.done;
  byId("each-stop").hidden = !each.running;
  byId("each-ask").disabled = each.running;
  byId("each-on").hidden = !each.left;
  byId("each-unkept").hidden = !each.unkept;
  byId("each-asked").textContent = each.question;
  markRows();
}

// Shows new rows: all of them, or those that have changed. The focused button gets the focus back.
/** @param {View["each_table"]} table */
export function showEachTable(table) {
  const body = byId("each-rows");
  const buttons = () => [...body.querySelectorAll("button")];
  const before = document.activeElement;
  const focused = buttons().indexOf(before);
  if (table.whole) {
    rows = table.rows;
    body.replaceChildren(...rows.map(rowOf));
  } else {
    for (const row of table.rows) {
      const at = rows.findIndex((one) => one.id === row.id);
      rows[at] = row;
      body.children[at].replaceWith(rowOf(row));
    }
  }
  if (focused >= 0 && !before.isConnected) buttons()[focused]?.focus();
  byId("each-table").hidden = !rows.length;
  byId("each-save").hidden = !rows.some((row) => row.answer || row.error);
  markRows();
}

/** @param {View["books"]} books */
export function showEachBooks(books) {
  library = books.filter((book) => !book.several);
  byId("trifold").dataset.each = library.length > 1 ? "yes" : "no";
  if (byId("each").open) drawChoice(ticked());
}

/** @param {View["book"]} book */
export function showEachBook(book) {
  open = book.id ?? "";
}

/** @param {View["paging"]} paging */
export function showEachPaging(paging) {
  if (!coming || paging.book !== coming.id) return;
  const { number, passage } = coming;
  coming = null;
  turnTo(number, passage);
}

// The table -----------------------------------------------------------------------------------------------------------

// Marks the document that is being asked.
function markRows() {
  const at = now.running ? rows.findIndex((row) => row.id === now.at) : -1;
  const line = byId("each-rows").children[at];
  for (const other of byId("each-rows").querySelectorAll(".busy")) if (other !== line) other.classList.remove("busy");
  line?.classList.add("busy");
}

function rowOf(row) {
  const line = made("tr");
  const title = made("th", row.title, "title");
  title.scope = "row";
  const answer = made("td", "", "answer");
  const words = made("div");
  words.translate = false;
  words.innerHTML = row.answer; // the server removes HTML from the model's text
  answer.append(row.error ? made("p", row.error, "trouble") : words);
  if (!row.asked) answer.append(made("p", "Not asked yet", "unasked"));
  if (row.missing) answer.append(made("p", row.missing, "missing"));
  const places = made("td", "", "places");
  if (row.near && row.places.length) places.append(made("p", "Near this:", "near"));
  places.append(...row.places.map((place) => placeOf(row, place)));
  if (row.first) places.append(made("p", "Answered from passages.", "near"));
  if (row.recognised) places.append(made("p", row.recognised, "near"));
  line.append(title, answer, places);
  return line;
}

function placeOf(row, { passage, pages }) {
  const place = made("p");
  const quote = made("q", passage);
  quote.translate = false;
  place.append(quote);
  for (const { number, name } of pages) {
    const button = made("button", name, "tf-small");
    button.type = "button";
    button.addEventListener("click", () => showPlace(row, number, passage));
    place.append(" ", button);
  }
  return place;
}

// Shows a page next to the chat. If the page's document is not open, the document is opened first.
async function showPlace(row, number, passage) {
  const here = documentsShown().find((one) => one.id === row.id);
  if (here || row.id === open) {
    byId("each").close();
    return turnTo(here ? here.first - 1 + number : number, passage);
  }
  if ((await mayOpen(row.title)) !== "yes") return;
  byId("each").close();
  coming = { id: row.id, number, passage };
  tell(await post("/books/open", { id: row.id }));
}

const turnTo = (number, passage) => openPage(number, passage ? { why: { find: passage } } : {});

// Asking --------------------------------------------------------------------------------------------------------------

const boxes = () => [...byId("each-documents").querySelectorAll("input")];
const ticked = () => boxes().flatMap((box) => (box.checked ? [box.value] : []));

function drawChoice(chosen) {
  fillList(byId("each-documents"), library.map(({ id, title, line }) => ({ id, title, line })), choice, (box) => box.value);
  for (const box of boxes()) box.checked = chosen.includes(box.value);
  count();
}

function choice(book) {
  const item = made("li");
  const label = made("label");
  const box = made("input");
  Object.assign(box, { type: "checkbox", value: book.id });
  label.append(box, made("span", book.title, "title"), made("small", book.line));
  item.append(label);
  return item;
}

function count() {
  const number = ticked().length;
  byId("each-count").textContent = `${number} of ${library.length} documents`;
  byId("each-all").textContent = number < library.length ? "Tick all" : "Tick none";
}

// Opens the dialog. The open documents come ticked, or the documents of the last question if a single book is open.
function openEach() {
  const together = documentsShown().map((one) => one.id);
  const last = rows.map((row) => row.id);
  const chosen = together.length ? together : last;
  byId("each").showModal();
  if (!narrow.matches) byId("each-question").focus(); // on a phone its keyboard would hide the table
  drawChoice(chosen);
  byId("each-choice").open = chosen.length < 2;
  if (!byId("each-question").value) byId("each-question").value = now.question;
}

// Sorts ids: open documents first, in their reading order; then other documents, in the library's order.
function inOrder(ids) {
  const order = documentsShown().map((one) => one.id);
  return [...order.filter((id) => ids.includes(id)), ...ids.filter((id) => !order.includes(id))];
}

async function ask(question, ids) {
  byId("each-trouble").hidden = true;
  const told = await call("/each", { ...how(), question, ids });
  byId("each-trouble").textContent = [told.cause, told.remedy].filter(Boolean).join(" ");
  byId("each-trouble").hidden = !told.cause;
}

export function bindEach() {
  for (const id of ["open-each", "each-library"]) byId(id).addEventListener("click", openEach);
  byId("each-close").addEventListener("click", () => byId("each").close());
  byId("each").addEventListener("click", (event) => event.target === byId("each") && byId("each").close());
  byId("each-documents").addEventListener("change", count);
  byId("each-all").addEventListener("click", () => drawChoice(ticked().length < library.length ? library.map((book) => book.id) : []));
  byId("each-form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(byId("each-question").value, inOrder(ticked()));
  });
  byId("each-question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("each-form").requestSubmit();
  });
  byId("each-stop").addEventListener("click", () => post("/each/stop").then(tell));
  byId("each-on").addEventListener("click", () => ask(now.question, rows.map((row) => row.id)));
}
