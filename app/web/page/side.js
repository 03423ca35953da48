// A side panel: in the place of the shelf on a desk, over the chat on a phone. The button that opened it has the keyboard
// again when it is closed.
import { byId } from "./frame.js";

export class SidePanel {
  #opener = null;

  /**
   * @param {string} name of the element; its button is "open-NAME".
   * @param {() => void} closing does what else ends with it.
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

  /**
   * Escape closes it, and is kept from an answer that is being written.
   * @returns {boolean} whether the key was Escape.
   */
  closedBy(event) {
    if (event.key !== "Escape") return false;
    event.stopPropagation();
    this.close();
    return true;
  }

  /** Its own buttons. It closes when no book is open any more, and stays while one takes the place of another. */
  bind(open) {
    byId(`open-${this.name}`).addEventListener("click", (event) => (this.isOpen ? this.close() : open(event.currentTarget)));
    byId(`${this.name}-close`).addEventListener("click", () => this.close());
    const frame = byId("trifold");
    const left = () => frame.dataset.map !== "yes" && ["empty", "failed", "locked"].includes(frame.dataset.stage) && this.close();
    new MutationObserver(left).observe(frame, { attributeFilter: ["data-map", "data-stage"] });
  }
}
