// Live statistics of an utterance, measured in the browser.

import { byId, storage } from "./dom.js";

const EMPTY = "–";
const NARROW = "(max-width: 560px)"; // a phone, as in css/layout.css

export class Stats {
  constructor() {
    const details = byId("developers");
    details.open = storage.get("developers", !matchMedia(NARROW).matches);
    byId("developers-title").addEventListener("click", () => storage.set("developers", !details.open)); // before it toggles
    this.clear();
  }

  clear() {
    for (const name of ["first", "rtf", "tokens", "buffer", "queue"]) show(name, EMPTY, "");
    byId("buffer-bar").value = 0;
  }

  /** Show the measurements of an utterance so far. */
  showUtterance(utterance) {
    const { firstAudioMs, realTimeFactor, tokensPerSecond } = utterance;
    if (firstAudioMs !== null) {
      const slow = firstAudioMs >= 1000;
      show("first", slow ? (firstAudioMs / 1000).toFixed(2) : firstAudioMs.toFixed(0), slow ? "s" : "ms");
    }
    if (realTimeFactor !== null) show("rtf", realTimeFactor.toFixed(2), "");
    if (tokensPerSecond !== null) show("tokens", tokensPerSecond.toFixed(0), "/s");
  }

  /** Show the seconds that were received and not yet played. */
  showBuffer(seconds, waiting) {
    show("buffer", seconds.toFixed(1), waiting ? "s, waiting" : "s");
    byId("buffer-bar").value = Math.min(seconds, byId("buffer-bar").max);
  }

  /** Show the length of the server's queue. */
  showQueue(waiting) {
    show("queue", String(waiting), "waiting");
  }
}

function show(name, value, unit) {
  const cell = byId(`figure-${name}`);
  cell.firstElementChild.textContent = value;
  cell.lastElementChild.textContent = unit;
  cell.toggleAttribute("data-empty", value === EMPTY);
}
