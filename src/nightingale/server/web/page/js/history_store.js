// The history of utterances, in the browser's IndexedDB so that it survives a reload. Nothing is sent.

const DATABASE = "nightingale";
const STORE = "utterances";
const MAX_ENTRIES = 50; // older ones are deleted

export class HistoryStore {
  #database = null;
  #entries = []; // newest first

  static async open() {
    const store = new HistoryStore();
    try {
      store.#database = await completed(withStore(indexedDB.open(DATABASE, 1)));
      store.#entries = (await completed(store.#store("readonly").getAll())).reverse();
    } catch {
      // The browser forbids storage: the history is lost with the page.
    }
    return store;
  }

  get entries() {
    return [...this.#entries];
  }

  get isPersistent() {
    return this.#database !== null;
  }

  /** entry: {id, at, text, voice, request, sampleRateHz, seconds, firstAudioMs, realTimeFactor, peaks, words, srt, pcm} */
  async add(entry) {
    this.#entries.unshift(entry);
    try {
      if (this.#database) await completed(this.#store("readwrite").add(entry));
    } catch {
      this.#database = null; // storage is full: from now on the history is lost with the page
    }
    for (const old of this.#entries.slice(MAX_ENTRIES)) await this.remove(old.id);
  }

  async remove(id) {
    this.#entries = this.#entries.filter((entry) => entry.id !== id);
    if (this.#database) await completed(this.#store("readwrite").delete(id));
  }

  async clear() {
    this.#entries = [];
    if (this.#database) await completed(this.#store("readwrite").clear());
  }

  #store(mode) {
    return this.#database.transaction(STORE, mode).objectStore(STORE);
  }
}

function withStore(request) {
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return request;
}

function completed(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
