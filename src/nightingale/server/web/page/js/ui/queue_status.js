// The place of a request in the server's queue, while it waits.

import { byId } from "./dom.js";

const ORDINALS = new Intl.PluralRules("en", { type: "ordinal" });
const SUFFIXES = { one: "st", two: "nd", few: "rd", other: "th" };

export class QueueStatus {
  #position = 0;
  #startsMs = null; // when its turn is expected; null if that is not known
  #timer = 0;

  /** announce: called with a sentence when the position has changed. */
  constructor(announce) {
    this.announce = announce;
  }

  /** Show {position, estimated_wait_s}, of which the time may be null, and count the time down. */
  show({ position, estimated_wait_s: waitSeconds }) {
    const isNew = position !== this.#position;
    this.#position = position;
    this.#startsMs = Number.isFinite(waitSeconds) ? performance.now() + 1000 * waitSeconds : null;
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.#write(), 1000);
    this.#write();
    byId("queue-status").hidden = false;
    if (isNew) this.announce(`${byId("queue-status").textContent}.`);
  }

  clear() {
    clearInterval(this.#timer);
    byId("queue-status").hidden = true;
    this.#position = 0;
  }

  #write() {
    const place = this.#position > 0 ? `${ordinal(this.#position)} in line` : "Next in line";
    const seconds = Math.max(1, Math.round((this.#startsMs - performance.now()) / 1000));
    byId("queue-status").textContent = this.#startsMs === null ? place : `${place}, about ${seconds} s`;
  }
}

function ordinal(number) {
  return number + SUFFIXES[ORDINALS.select(number)];
}
