// A link that opens the page with the same voice, controls and, if wanted, text.
//
// They are in the fragment of the URL, which browsers do not send to servers. The API key is never part of it.

import { byId, copyText } from "./dom.js";

const WORDS = ["voice", "text", "language"];

/** The settings in a fragment such as #voice=emma&speed=1.2, or null if it has none. */
export function readShared(fragment) {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const controls = {};
  for (const [name, text] of given) {
    const value = Number(text || NaN);
    if (!WORDS.includes(name) && Number.isFinite(value)) controls[name] = value;
  }
  if (given.get("language")) controls.language = given.get("language");
  const shared = { voice: given.get("voice"), text: given.get("text"), controls };
  return shared.voice || shared.text || Object.keys(controls).length ? shared : null;
}

export class Share {
  /** describe: () => {voice, controls, text} */
  constructor(describe) {
    this.describe = describe;
    byId("share-link").addEventListener("click", () => this.#open());
    byId("share-text").addEventListener("change", () => this.#show());
    byId("share-copy").addEventListener("click", () => this.#copy());
  }

  #open() {
    this.#show();
    byId("sharing").showModal();
  }

  #show() {
    const { voice, controls, text } = this.describe();
    const named = new URLSearchParams();
    if (voice) named.set("voice", voice);
    for (const [name, value] of Object.entries(controls)) named.set(name, value);
    if (byId("share-text").checked && text) named.set("text", text);
    const url = new URL(document.baseURI);
    url.search = "";
    url.hash = named.toString();
    byId("share-url").textContent = url.href;
    byId("share-copied").textContent = "";
  }

  async #copy() {
    byId("share-copied").textContent = await copyText(byId("share-url"));
  }
}
