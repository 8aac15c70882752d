// Opens a text file or an EPUB. The server reads it, and the page shows one chapter at a time.

import { byId, element } from "./dom.js";

const SUFFIXES = /\.(txt|text|md|markdown|x?html?|epub)$/i;

/** Whether a file is read as text; others are clips. */
export function isDocument(file) {
  return SUFFIXES.test(file.name) || file.type.startsWith("text/");
}

export class Documents {
  #parts = []; // {title, text}, each short enough for one request

  /** actions: read(file) -> the book, use(text), limit() -> characters of one request, announce(message), showError(error). */
  constructor(actions) {
    this.actions = actions;
    byId("open-file").addEventListener("change", (event) => {
      if (event.target.files[0]) this.open(event.target.files[0]);
      event.target.value = ""; // so that the same file can be chosen again
    });
    byId("chapter").addEventListener("change", () => this.#use());
    byId("close-document").addEventListener("click", () => {
      this.#show("", []);
      byId("text").focus();
    });
  }

  async open(file) {
    this.actions.announce("Reading the file.");
    try {
      const book = await this.actions.read(file);
      const parts = book.chapters.flatMap((chapter) => splitChapter(chapter, this.actions.limit()));
      const title = book.title || file.name;
      this.#show(title, parts);
      this.#use();
      this.actions.announce(parts.length > 1 ? `${title}, ${parts.length} parts.` : `${title}.`);
    } catch (error) {
      this.actions.showError(error);
    }
  }

  #show(title, parts) {
    this.#parts = parts;
    byId("document-title").textContent = title;
    byId("chapter").replaceChildren(...parts.map((part, i) => element("option", { value: i }, part.title)));
    byId("document").hidden = parts.length < 2;
  }

  #use() {
    this.actions.use(this.#parts[Number(byId("chapter").value)].text);
  }
}

/** Divide a chapter that is too long for one request, between paragraphs where possible. */
export function splitChapter({ title, text }, limit) {
  const parts = [];
  for (const paragraph of text.split("\n\n").flatMap((whole) => splitParagraph(whole, limit))) {
    const joined = parts.length ? `${parts.at(-1)}\n\n${paragraph}` : null;
    if (joined !== null && joined.length <= limit) parts[parts.length - 1] = joined;
    else parts.push(paragraph);
  }
  if (parts.length < 2) return [{ title, text }];
  return parts.map((part, i) => ({ title: `${title}, part ${i + 1} of ${parts.length}`, text: part }));
}

/** Divide a paragraph after a sentence, or else between words. */
function splitParagraph(paragraph, limit) {
  const parts = [];
  let rest = paragraph;
  while (rest.length > limit) {
    const head = rest.slice(0, limit);
    const sentence = Math.max(...[". ", "! ", "? ", "。", "！", "？"].map((stop) => head.lastIndexOf(stop) + 1));
    const cut = sentence || head.lastIndexOf(" ") || limit;
    parts.push(rest.slice(0, cut > 0 ? cut : limit));
    rest = rest.slice(parts.at(-1).length).trimStart();
  }
  return [...parts, rest];
}
