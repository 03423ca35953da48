// A book that is read in parts because it is too long. The choice of pages shows the cost of the parts. The question
// box has a choice between the passages that fit a question, the parts that it needs and all parts.
import { byId, post, tell } from "./frame.js";

/** @param {View["parts"]} parts */
export function showParts(parts) {
  byId("choose-parts").hidden = !parts.count;
  byId("choose-parts-said").textContent = parts.said;
  const [passages, few, every] = byId("parts-reach").options;
  passages.hidden = passages.disabled = !parts.at_once;
  if (!parts.at_once && byId("parts-reach").value === "passages") byId("parts-reach").value = "few";
  few.textContent = parts.few;
  every.textContent = parts.every;
  byId("trifold").dataset.some = parts.some ? "yes" : "no"; // only some pages or chapters are read
}

const reaches = (reach) => byId("trifold").dataset.stage === "parts" && byId("parts-reach").value === reach;

// Returns whether the question is to be asked of every part.
export const asksEvery = () => reaches("every");

// Returns whether the question is to be asked of the parts that it needs, instead of its passages.
export const asksParts = () => reaches("few");

export function bindParts() {
  byId("read-parts").addEventListener("click", () => post("/reading/parts").then(tell));
  byId("otherwise").addEventListener("click", () => post("/reading/otherwise").then(tell));
}
