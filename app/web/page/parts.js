// A book that does not fit, in parts: what that takes is said where pages are chosen, and where a question goes above its
// field.
import { byId, post, tell } from "./frame.js";

/** @param {View["parts"]} parts */
export function showParts(parts) {
  byId("choose-parts").hidden = !parts.count;
  byId("choose-parts-said").textContent = parts.said;
  const [few, every] = byId("parts-reach").options;
  few.textContent = parts.few;
  every.textContent = parts.every;
  byId("trifold").dataset.some = parts.some ? "yes" : "no"; // pages or chapters alone are read
}

// Whether every part of the open book is to be asked.
export const asksEvery = () => byId("trifold").dataset.stage === "parts" && byId("parts-reach").value === "every";

export function bindParts() {
  byId("read-parts").addEventListener("click", () => post("/reading/parts").then(tell));
  byId("otherwise").addEventListener("click", () => post("/reading/otherwise").then(tell));
}
