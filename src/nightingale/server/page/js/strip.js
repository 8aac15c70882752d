// The live strip: five numbers that say how fast it is, measured here, where they are felt.

import { byId } from "./dom.js";

const NOTHING = "–";

export class Strip {
  constructor() {
    this.clear();
  }

  clear() {
    for (const name of ["first", "rtf", "tokens", "buffer", "queue"]) put(name, NOTHING, "");
    byId("buffer-bar").value = 0;
  }

  /** What the stream has shown so far. */
  measured(utterance) {
    const { firstAudioMs, realTimeFactor, tokensPerSecond } = utterance;
    if (firstAudioMs !== null) {
      const slow = firstAudioMs >= 1000;
      put("first", slow ? (firstAudioMs / 1000).toFixed(2) : firstAudioMs.toFixed(0), slow ? "s" : "ms");
    }
    if (realTimeFactor !== null) put("rtf", realTimeFactor.toFixed(2), "");
    if (tokensPerSecond !== null) put("tokens", tokensPerSecond.toFixed(0), "/s");
  }

  /** Seconds received and not yet heard. */
  buffered(seconds, waiting) {
    put("buffer", seconds.toFixed(1), waiting ? "s, waiting" : "s");
    byId("buffer-bar").value = Math.min(seconds, byId("buffer-bar").max);
  }

  /** How many requests stand in line at the server. */
  queued(waiting) {
    put("queue", String(waiting), "waiting");
  }
}

function put(name, value, unit) {
  const place = byId(`figure-${name}`);
  place.firstElementChild.textContent = value;
  place.lastElementChild.textContent = unit;
  place.toggleAttribute("data-empty", value === NOTHING);
}
