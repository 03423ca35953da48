// A side panel. It replaces the shelf on a wide screen and covers the chat on a phone. After closing, the button that
// opened the panel has the focus.
import { closedByEscape } from "./escape.js";
import { byId, hush } from "./frame.js";

export class SidePanel {
  #opener = null;

  /**
   * @param {string} name id of the element; the ids of its buttons are "open-NAME" and "NAME-close".
   * @param {() => void} closing called when the panel closes.
   */
  constructor(name, closing = () => {}) {
    this.name = name;
    this.closing = closing;
  }

  get element() {
    return byId(this.name);
  }

  get isOpen() {
    return !this.element.hidden;
  }

  open(from) {
    hush();
    this.#opener = from;
    this.element.hidden = false;
    byId("trifold").dataset[this.name] = "open";
    byId(`open-${this.name}`).setAttribute("aria-expanded", "true");
    this.element.focus({ preventScroll: true });
  }

  close() {
    if (!this.isOpen) return;
    const had = this.element.contains(document.activeElement);
    this.element.hidden = true;
    this.closing();
    delete byId("trifold").dataset[this.name];
    byId(`open-${this.name}`).setAttribute("aria-expanded", "false");
    if (had) this.#opener?.focus({ preventScroll: true });
  }

  /** Binds the panel's buttons. The panel closes when no book is open, but not while another book is being opened. */
  bind(open) {
    byId(`open-${this.name}`).addEventListener("click", (event) => (this.isOpen ? this.close() : open(event.currentTarget)));
    byId(`${this.name}-close`).addEventListener("click", () => this.close());
    closedByEscape(this.name, () => this.isOpen, () => this.close());
    const frame = byId("trifold");
    const left = () => frame.dataset.map !== "yes" && ["empty", "failed", "locked"].includes(frame.dataset.stage) && this.close();
    new MutationObserver(left).observe(frame, { attributeFilter: ["data-map", "data-stage"] });
  }
}
