// The page: puts its parts together and listens to the reader.

import { Api } from "./api.js";
import { Cloning } from "./cloning.js";
import { Code } from "./code.js";
import { Controls } from "./controls.js";
import { byId, memory } from "./dom.js";
import { History } from "./history.js";
import { Shelf } from "./shelf.js";
import { Stage } from "./stage.js";
import { Strip } from "./strip.js";
import { startTheme } from "./theme.js";
import { Voices } from "./voices.js";
import { Waveform } from "./waveform.js";

const GREETING = "The nightingale sings at night, when other birds are still. Write something here, and hear it.";
const PREVIEW = "Hello. This is how I sound.";
const STATUS_EVERY_MS = 700;
const CHARACTERS_A_SECOND = 15; // ordinary reading pace
const SERVER = { cold: "starting", loading: "warming up", stopping: "shutting down", failed: "failed to load" };
const ANNOUNCED = { waiting: "Working.", speaking: "Speaking.", idle: "Silent." };

const api = new Api(askKey);
const waveform = new Waveform(byId("waveform"));
const strip = new Strip();
const stage = new Stage({ api, waveform, strip, onState: showState });
const history = new History(await Shelf.open(), { play: toggleReplay, reuse });
const voices = new Voices({ preview: togglePreview, remove: removeVoice });
const controls = new Controls();
const text = byId("text");
let model = null; // the entry of GET /v1/models, once it was asked for
let nextLook = 0;
let heardNow = null; // id of the entry or voice whose button would stop it
const previews = new Map(); // voice id -> what it said: the second hearing costs nothing

new Cloning({
  taken: () => voices.names,
  save: saveVoice,
  hear: (samples, sampleRateHz) => stage.hear(samples, sampleRateHz),
});
new Code(() => [currentRequest(), api.url("v1/audio/speech"), Boolean(api.key)]);
startTheme(() => {
  waveform.draw();
  history.draw();
});
listen();
watchStatus();

function listen() {
  text.value = memory.get("text", GREETING);
  text.addEventListener("input", () => {
    memory.set("text", text.value);
    showLength();
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
  showLength();
  // On a phone the keyboard would jump up and hide the page.
  if (matchMedia("(pointer: fine)").matches) text.focus();
}

/** Ask what there is to choose from. */
async function meet() {
  try {
    const [models, known] = await Promise.all([api.models(), api.voices()]);
    model = models[0]; // the others are aliases of it
    voices.show(known);
    controls.show(model);
    byId("notice").textContent = model.notice ? sentence(model.notice) : "";
    byId("notice").hidden = !model.notice;
  } catch (error) {
    fail(error);
  }
}

/** Again and again while something is awaited; a page that only lies open asks for nothing. */
async function watchStatus() {
  clearTimeout(nextLook);
  const status = await api.status().catch(() => ({ ready: false, state: "out of reach" }));
  byId("server").dataset.ready = status.ready;
  byId("server").textContent = status.ready ? status.model : (SERVER[status.state] ?? status.state);
  if (stage.utterance) strip.queued(status.waiting);
  if (status.ready && !model) await meet();
  if (stage.utterance || !status.ready) nextLook = setTimeout(watchStatus, STATUS_EVERY_MS);
}

/** What would be asked of the server now; also what is shown as code. */
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
  if (!request.input) {
    text.focus();
    return;
  }
  quiet();
  try {
    const entry = await stage.speak(request);
    if (entry) await history.add(entry);
  } catch (error) {
    fail(error);
  }
}

function stop() {
  stage.stop();
}

async function toggleReplay(entry) {
  if (heardNow === entry.id) return stop();
  quiet();
  await stage.replay(entry);
  sounding(entry.id);
}

async function togglePreview(voice) {
  if (heardNow === voice) return stop();
  quiet();
  try {
    if (previews.has(voice)) {
      await stage.replay(previews.get(voice));
      sounding(voice);
      return;
    }
    const said = stage.speak({ model: model.id, voice, input: PREVIEW });
    sounding(voice);
    const entry = await said;
    if (entry && !entry.stopped) previews.set(voice, entry);
  } catch (error) {
    fail(error);
  }
}

function reuse(entry) {
  text.value = entry.text;
  memory.set("text", entry.text);
  showLength();
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
  if (!confirm(`Forget the voice ${id}?`)) return;
  try {
    await api.removeVoice(id);
    previews.delete(id);
    voices.show(await api.voices());
  } catch (error) {
    fail(error);
  }
}

function showState(state) {
  document.body.dataset.state = state;
  byId("stop").disabled = state === "idle";
  if (state === "idle" || state === "waiting") sounding(null);
  if (state in ANNOUNCED) announce(ANNOUNCED[state]);
  if (state === "waiting" || state === "idle") watchStatus();
}

/** Which voice or entry is being heard, so that its button can stop it. */
function sounding(id) {
  heardNow = id;
  voices.sounding(id);
  history.sounding(id);
}

function showLength() {
  const letters = text.value.trim().length;
  const seconds = Math.round(letters / CHARACTERS_A_SECOND);
  byId("length").textContent = letters ? `${letters} characters, about ${seconds} s` : "";
}

function announce(message) {
  byId("announcer").textContent = message;
}

function quiet() {
  byId("problem").hidden = true;
}

function fail(error) {
  const wait = error.retryMs ? ` Try again in ${(error.retryMs / 1000).toFixed(1)} s.` : "";
  byId("problem-text").textContent = sentence(error.message) + wait;
  byId("problem").hidden = false;
}

function sentence(message) {
  const begun = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

/** Ask for the API key; an empty answer is no answer. */
function askKey() {
  const dialog = byId("locked");
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue && byId("key").value.trim()), { once: true });
  });
}
