// The entry point of the page: creates its parts and handles user input.

import { Api } from "./api.js";
import { HistoryStore } from "./history_store.js";
import { Playback } from "./playback.js";
import { Cloning } from "./ui/cloning.js";
import { Code } from "./ui/code.js";
import { Controls } from "./ui/controls.js";
import { Converting } from "./ui/converting.js";
import { Documents, isDocument } from "./ui/documents.js";
import { byId, storage } from "./ui/dom.js";
import { acceptDrops } from "./ui/drops.js";
import { History } from "./ui/history.js";
import { Length } from "./ui/length.js";
import { QueueStatus } from "./ui/queue_status.js";
import { SeekBar } from "./ui/seek_bar.js";
import { readShared, Share } from "./ui/share.js";
import { SpokenText } from "./ui/spoken_text.js";
import { Stats } from "./ui/stats.js";
import { insertTag, showTags } from "./ui/tags.js";
import { startTheme } from "./ui/theme.js";
import { Voices } from "./ui/voices.js";
import { Waveform } from "./ui/waveform.js";

const DEFAULT_TEXT = "The nightingale sings at night, when other birds are still. Write something here, and hear it.";
const PREVIEW_TEXT = "Hello. This is how I sound.";
const STATUS_INTERVAL_MS = 700;
const SERVER_STATES = { cold: "starting", loading: "warming up", stopping: "shutting down", failed: "failed to load" };
const ANNOUNCEMENTS = { waiting: "Working.", speaking: "Speaking.", idle: "Stopped." };

const api = new Api(askKey);
const waveform = new Waveform(byId("waveform"));
const stats = new Stats();
const queue = new QueueStatus(announce);
const playback = new Playback({
  api,
  waveform,
  stats,
  spoken: new SpokenText(),
  onState: showState,
  onPosition: () => seekBar.show(),
  onQueued: (queued) => queue.show(queued),
});
const seekBar = new SeekBar(waveform, playback);
const history = new History(await HistoryStore.open(), {
  play: toggleReplay,
  reuse,
  encode: (pcm, format) => api.encode(pcm, format),
  showError,
});
const voices = new Voices({ preview: togglePreview, remove: removeVoice });
const controls = new Controls();
const text = byId("text");
let shared = readShared(location.hash); // what a link asks for, until it was applied
text.value = shared?.text ?? storage.get("text", DEFAULT_TEXT);
const length = new Length(text, announce);
const documents = new Documents({
  read: (file) => api.bookText(file),
  use: setText,
  limit: () => length.limit,
  announce,
  showError,
});
let model = null; // the entry of GET /v1/models, once it was requested
let statusTimer = 0;
let playingId = null; // id of the entry or voice whose button is a stop button
const previews = new Map(); // voice id -> its preview, so that it is requested only once

const cloning = new Cloning({
  takenNames: () => voices.names,
  save: saveVoice,
  play: (samples, sampleRateHz) => playback.playClip(samples, sampleRateHz),
});
new Converting({ voice: () => voices.chosen, convert });
new Share(() => ({ voice: voices.chosen, controls: controls.values, text: text.value.trim() }));
acceptDrops((file, dialog) => {
  if (dialog === cloning.dialog || (!dialog && !isDocument(file))) cloning.take(file);
  else if (!dialog) documents.open(file);
});
new Code(() => [currentRequest(), api.url("v1/audio/speech"), Boolean(api.key)]);
startTheme(() => {
  waveform.draw();
  history.draw();
});
addListeners();
pollStatus();

function addListeners() {
  text.addEventListener("input", () => storage.set("text", text.value));
  addEventListener("hashchange", () => {
    shared = readShared(location.hash);
    if (shared?.text) setText(shared.text);
    if (shared && model) loadChoices();
  });
  byId("speak").addEventListener("click", speak);
  byId("stop").addEventListener("click", stop);
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) speak();
    else if (event.key === "Escape") stop();
  });
  for (const button of document.querySelectorAll("[data-close]")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  // Not on a phone, where the keyboard would open and hide the page.
  if (matchMedia("(pointer: fine)").matches) text.focus();
}

/** Load the voices and the controls of the model. */
async function loadChoices() {
  try {
    const [models, known] = await Promise.all([api.models(), api.voices()]);
    model = models[0]; // the others are aliases of it
    length.limit = model.max_input_chars;
    showChoices(known);
    showTags(model, (tag) => insertTag(text, tag));
    byId("notice").textContent = model.notice ? sentence(model.notice) : "";
    byId("notice").hidden = !model.notice;
    history.showFormats(await api.formats());
  } catch (error) {
    showError(error);
  }
}

/** Show voices and controls with the values of a link or of the last visit. */
function showChoices(known) {
  const missing = shared?.voice && !known.some((voice) => voice.id === shared.voice) ? shared.voice : null;
  voices.show(known, shared?.voice ?? undefined);
  controls.show(model, shared?.controls);
  if (missing) showError({ message: `This server has no voice ${missing}, which the link asks for.` });
  // The page is as the link says: from now on the user's changes count, also after a reload.
  if (shared) window.history.replaceState(null, "", location.pathname + location.search);
  if (shared?.text) storage.set("text", shared.text);
  shared = null;
}

/** Poll the server while it is loading or speaking, not while the page is idle. */
async function pollStatus() {
  clearTimeout(statusTimer);
  const status = await api.status().catch(() => ({ ready: false, state: "not reachable" }));
  byId("server").dataset.ready = status.ready;
  byId("server").textContent = status.ready ? status.model : (SERVER_STATES[status.state] ?? status.state);
  if (playback.utterance) stats.showQueue(status.waiting);
  if (status.ready && !model) await loadChoices();
  if (playback.utterance || !status.ready) statusTimer = setTimeout(pollStatus, STATUS_INTERVAL_MS);
}

/** The body of the next request, which is also shown as code. */
function currentRequest() {
  return {
    ...(model && { model: model.id }),
    ...(voices.chosen && { voice: voices.chosen }),
    input: text.value.trim(),
    ...controls.values,
  };
}

async function speak() {
  const request = currentRequest();
  if (length.isOver) showError({ message: length.problem });
  else if (request.input) await play(request);
  else text.focus();
}

/** Speak a recording in the chosen voice. */
async function convert(recording, name) {
  const { seed } = controls.values;
  await play({ voice: voices.chosen ?? "default", input: `Recording: ${name}`, recording, ...(seed !== undefined && { seed }) });
}

async function play(request) {
  hideError();
  try {
    const entry = await playback.speak(request, { timed: model?.times_words && !request.recording });
    if (entry) await history.add(entry);
  } catch (error) {
    showError(error);
  }
}

function stop() {
  playback.stop();
}

async function toggleReplay(entry) {
  if (playingId === entry.id) return stop();
  hideError();
  await playback.replay(entry);
  showPlaying(entry.id);
}

async function togglePreview(voice) {
  if (playingId === voice) return stop();
  hideError();
  try {
    if (previews.has(voice)) {
      await playback.replay(previews.get(voice));
      showPlaying(voice);
      return;
    }
    const spoken = playback.speak({ model: model.id, voice, input: PREVIEW_TEXT });
    showPlaying(voice);
    const entry = await spoken;
    if (entry && !entry.stopped) previews.set(voice, entry);
  } catch (error) {
    showError(error);
  }
}

function reuse(entry) {
  if (entry.request.converted) return;
  setText(entry.text);
  if (voices.names.includes(entry.voice)) voices.choose(entry.voice);
  text.focus();
  text.scrollIntoView({ block: "center" });
}

async function saveVoice(name, wav) {
  await api.addVoice(name, wav);
  voices.show(await api.voices(), name);
  announce(`The voice ${name} is ready.`);
}

async function removeVoice(id) {
  if (!confirm(`Delete the voice ${id}?`)) return;
  try {
    await api.removeVoice(id);
    previews.delete(id);
    voices.show(await api.voices());
  } catch (error) {
    showError(error);
  }
}

function setText(value) {
  text.value = value;
  text.dispatchEvent(new Event("input"));
  text.scrollTop = 0;
}

function showState(state) {
  document.body.dataset.state = state;
  byId("stop").disabled = state === "idle";
  if (state === "idle" || state === "waiting") showPlaying(null);
  if (state !== "waiting") queue.clear();
  if (state in ANNOUNCEMENTS) announce(ANNOUNCEMENTS[state]);
  if (state === "waiting" || state === "idle") pollStatus();
}

/** Turn the button of the voice or entry that is playing into a stop button. */
function showPlaying(id) {
  playingId = id;
  voices.showPlaying(id);
  history.showPlaying(id);
}

function announce(message) {
  byId("announcer").textContent = message;
}

function hideError() {
  byId("error").hidden = true;
}

function showError(error) {
  const wait = error.retryMs ? ` Try again in ${(error.retryMs / 1000).toFixed(1)} s.` : "";
  byId("error-text").textContent = sentence(error.message) + wait;
  byId("error").hidden = false;
  byId("error").scrollIntoView({ block: "nearest" });
}

function sentence(message) {
  const capitalized = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?]$/.test(capitalized) ? capitalized : `${capitalized}.`;
}

/** Ask for the API key; resolves to an empty string if the user cancels. */
function askKey() {
  const dialog = byId("locked");
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue && byId("key").value.trim()), { once: true });
  });
}
