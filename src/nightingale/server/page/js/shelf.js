// What was said, kept in the browser's own database (IndexedDB) so that it survives a reload. Nothing is sent.

const DATABASE = "nightingale";
const STORE = "utterances";
const KEPT = 50; // older ones make room

export class Shelf {
  #database = null;
  #entries = []; // newest first

  static async open() {
    const shelf = new Shelf();
    try {
      shelf.#database = await settled(withStore(indexedDB.open(DATABASE, 1)));
      shelf.#entries = (await settled(shelf.#store("readonly").getAll())).reverse();
    } catch {
      // A browser that forbids storage: the history then lasts as long as the page does.
    }
    return shelf;
  }

  get entries() {
    return [...this.#entries];
  }

  get lasts() {
    return this.#database !== null;
  }

  /** entry: {id, at, text, voice, request, sampleRateHz, seconds, firstAudioMs, realTimeFactor, peaks, pcm} */
  async add(entry) {
    this.#entries.unshift(entry);
    try {
      if (this.#database) await settled(this.#store("readwrite").add(entry));
    } catch {
      this.#database = null; // no room left: from here on the history lasts as long as the page
    }
    for (const old of this.#entries.slice(KEPT)) await this.remove(old.id);
  }

  async remove(id) {
    this.#entries = this.#entries.filter((entry) => entry.id !== id);
    if (this.#database) await settled(this.#store("readwrite").delete(id));
  }

  async clear() {
    this.#entries = [];
    if (this.#database) await settled(this.#store("readwrite").clear());
  }

  #store(mode) {
    return this.#database.transaction(STORE, mode).objectStore(STORE);
  }
}

function withStore(request) {
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return request;
}

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
