// The place of a request in the server's queue, while it waits.

import { byId } from "./dom.js";

const ORDINALS = new Intl.PluralRules("en", { type: "ordinal" });
const SUFFIXES = { one: "st", two: "nd", few: "rd", other: "th" };

export class QueueStatus {
  #announced = 0; // the position that was announced last

  /** announce: called with a sentence when the position has changed. */
  constructor(announce) {
    this.announce = announce;
  }

  /** Show {position, estimated_wait_s}, of which the time may be null. */
  show({ position, estimated_wait_s: waitSeconds }) {
    const text = describe(position, waitSeconds);
    byId("queue-status").textContent = text;
    byId("queue-status").hidden = false;
    if (position !== this.#announced) this.announce(`${text}.`);
    this.#announced = position;
  }

  clear() {
    byId("queue-status").hidden = true;
    this.#announced = 0;
  }
}

function describe(position, waitSeconds) {
  const place = position > 0 ? `${position}${SUFFIXES[ORDINALS.select(position)]} in line` : "Next in line";
  if (waitSeconds === null || waitSeconds === undefined) return place;
  return `${place}, about ${Math.max(1, Math.round(waitSeconds))} s`;
}
