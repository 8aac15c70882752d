// The length of the text and how long it will sound. A text over the server's limit cannot be spoken.

import { byId } from "./dom.js";

const CHARACTERS_PER_SECOND = 15; // typical reading speed

export class Length {
  #limit = Infinity;

  /** onOver: called with a sentence when the text becomes too long. */
  constructor(area, onOver) {
    Object.assign(this, { area, onOver });
    area.addEventListener("input", () => this.show());
    this.show();
  }

  /** The longest text of one request, as the server counts: in characters, not in units of JavaScript's strings. */
  set limit(characters) {
    this.#limit = characters ?? Infinity;
    this.show();
  }

  get limit() {
    return this.#limit;
  }

  get isOver() {
    return this.#characters > this.#limit;
  }

  /** What is wrong with the text, as a sentence. */
  get problem() {
    return `The text is too long: ${count(this.#characters)} characters, and this server accepts ${count(this.#limit)} at once.`;
  }

  get #characters() {
    let characters = 0;
    for (const _ of this.area.value.trim()) characters += 1;
    return characters;
  }

  show() {
    const characters = this.#characters;
    const over = characters > this.#limit;
    const wasOver = this.area.getAttribute("aria-invalid") === "true";
    const of = this.#limit < Infinity ? ` of ${count(this.#limit)}` : "";
    const rest = over ? `${count(characters - this.#limit)} too many` : `about ${duration(characters / CHARACTERS_PER_SECOND)}`;
    byId("length").textContent = characters ? `${count(characters)}${of} characters, ${rest}` : "";
    byId("length").classList.toggle("over", over);
    this.area.setAttribute("aria-invalid", over);
    byId("speak").disabled = over;
    if (over && !wasOver) this.onOver(this.problem);
  }
}

function count(number) {
  return number.toLocaleString("en");
}

function duration(seconds) {
  return seconds < 100 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`;
}
