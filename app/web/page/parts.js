// A book that is read in parts because it is too long. The choice of pages shows the cost of the parts. The question
// box has a choice between the parts that a question needs and all parts.
import { byId, post, tell } from "./frame.js";

/** @param {View["parts"]} parts */
export function showParts(parts) {
  byId("choose-parts").hidden = !parts.count;
  byId("choose-parts-said").textContent = parts.said;
  const [few, every] = byId("parts-reach").options;
  few.textContent = parts.few;
  every.textContent = parts.every;
  byId("trifold").dataset.some = parts.some ? "yes" : "no"; // only some pages or chapters are read
}

// Returns whether the question is to be asked of every part.
export const asksEvery = () => byId("trifold").dataset.stage === "parts" && byId("parts-reach").value === "every";

export function bindParts() {
  byId("read-parts").addEventListener("click", () => post("/reading/parts").then(tell));
  byId("otherwise").addEventListener("click", () => post("/reading/otherwise").then(tell));
}
