// A question before something is lost.

import { byId } from "./frame.js";

// Returns the choice: "yes", "no", or "" if the dialog was closed in another way.
// ``saving``: a link { words, href } to save something first.
export function confirmed(question, consequence, { yes, no, danger = false, saving = null }) {
  const dialog = byId("confirm");
  byId("confirm-question").textContent = question;
  byId("confirm-words").textContent = consequence;
  byId("confirm-save").hidden = !saving;
  byId("confirm-save").textContent = saving?.words ?? "";
  byId("confirm-save").href = saving?.href ?? "#";
  byId("confirm-no").textContent = no;
  byId("confirm-yes").textContent = yes;
  byId("confirm-yes").classList.toggle("danger", danger);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

export function bindConfirm() {
  const dialog = byId("confirm");
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
}
