// The text that is being spoken, with the present word highlighted.

import { byId, element } from "./dom.js";

export class SpokenText {
  #characters = []; // positions of words count characters, not the units of JavaScript's strings
  #words = [];
  #marks = [];
  #written = 0; // characters that are shown
  #active = -1;

  constructor() {
    this.view = byId("spoken");
  }

  /** Begin with another text; without words nothing is shown. */
  show(text, words = []) {
    this.#characters = [...text];
    this.#words = [];
    this.#marks = [];
    this.#written = 0;
    this.#active = -1;
    this.view.replaceChildren();
    this.update(words);
  }

  /** Show words that were added to the list since the last call. */
  update(words) {
    for (const word of words.slice(this.#words.length)) {
      const mark = element("span", {}, this.#slice(Math.max(word.text_start, this.#written), word.text_end));
      this.view.append(this.#slice(this.#written, word.text_start), mark);
      this.#written = Math.max(this.#written, word.text_end);
      this.#words.push(word);
      this.#marks.push(mark);
    }
    this.view.hidden = this.#words.length === 0;
  }

  /** Highlight the word that is said at this time. */
  highlight(seconds) {
    const next = this.#words.findIndex((word) => word.start > seconds);
    const active = (next < 0 ? this.#words.length : next) - 1;
    if (active === this.#active) return;
    this.#marks[this.#active]?.classList.remove("active");
    this.#marks[active]?.classList.add("active");
    this.#active = active;
    if (active >= 0) this.#scrollTo(this.#marks[active]);
  }

  /** Show a word if the text is longer than its box. The page itself is not scrolled: the user may look elsewhere. */
  #scrollTo(mark) {
    const top = mark.offsetTop - this.view.offsetTop;
    const { scrollTop, clientHeight } = this.view;
    if (top < scrollTop || top + mark.offsetHeight > scrollTop + clientHeight) this.view.scrollTop = top;
  }

  #slice(start, end) {
    return this.#characters.slice(start, end).join("");
  }
}
