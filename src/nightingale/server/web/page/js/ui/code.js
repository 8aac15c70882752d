// The dialog that shows the request as code.

import { byId, copyText } from "./dom.js";
import { asCurl, asPython } from "./snippets.js";

const KINDS = { curl: asCurl, python: asPython };

export class Code {
  /** describe: () => [request, url, locked] */
  constructor(describe) {
    this.describe = describe;
    this.dialog = byId("code");
    for (const kind of Object.keys(KINDS)) {
      byId(`copy-${kind}`).addEventListener("click", () => this.#open(kind));
      byId(`code-${kind}`).addEventListener("change", () => this.#show(kind));
    }
    byId("code-copy").addEventListener("click", () => this.#copy());
  }

  async #open(kind) {
    byId(`code-${kind}`).checked = true;
    this.#show(kind);
    this.dialog.showModal();
    await this.#copy();
  }

  #show(kind) {
    byId("code-text").textContent = KINDS[kind](...this.describe());
    byId("code-copied").textContent = "";
  }

  async #copy() {
    byId("code-copied").textContent = await copyText(byId("code-text"));
  }
}
