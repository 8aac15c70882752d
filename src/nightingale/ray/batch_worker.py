"""One worker of a batch: an engine that speaks the rows it is given, many at a time, and writes their audio."""

from __future__ import annotations

import io
import json
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from nightingale.audio.encoders.streaming import open_encoder
from nightingale.audio.samples import Samples, check_samples, wav_bytes
from nightingale.engine.requests.whole import audio_of
from nightingale.engine.session import Session
from nightingale.engine.tts import TTS
from nightingale.errors import EngineFault, NightingaleError, OutOfMemory, OutputError
from nightingale.ray.batch_output import BatchOutput
from nightingale.ray.batch_rows import file_name, split_units
from nightingale.types import Audio

BATCHES_AT_ONCE: Final = 2
"""Batches of one engine: while the last rows of one end, the other keeps the slots filled."""
FORMATS: Final = ("flac", "opus", "wav")
PARAGRAPH_PAUSE_S: Final = 0.3
"""Silence between the parts of a split text, as the engine has after a paragraph."""
SILENCE_PEAK: Final = 1e-3
CLIPPED_PEAK: Final = 0.999
CHARS_PER_S: Final = (4.0, 40.0)
"""Slower or faster speech is flagged: text was probably repeated or left out."""
MIN_FLAGGED_CHARS: Final = 20
MAX_DEATHS: Final = 3
"""Workers that a row may end, before it is a dead letter."""
NOT_THE_ROW = (OutputError, OutOfMemory, EngineFault)
"""Errors that end the run: another row would fail in the same way."""


@dataclass(slots=True)
class SpokenRow:
    """A row while its parts are spoken."""

    row: dict[str, Any]
    sessions: deque[Session] = field(default_factory=deque)
    parts: list[Audio] = field(default_factory=list)
    error: NightingaleError | None = None
    units: int = 0

    def fail(self, error: NightingaleError) -> None:
        self.error = self.error or error
        for session in self.sessions:
            session.cancel()
        self.sessions.clear()


def speak_rows(tts: TTS, rows: Sequence[dict[str, Any]]) -> Iterator[SpokenRow]:
    """Speak rows, a full set of slots at a time, and yield them in order as they end."""
    waiting = deque[SpokenRow]()
    opened = 0
    try:
        for row in rows:
            spoken = SpokenRow(row)
            waiting.append(spoken)
            request = json.loads(row["request"])
            units = split_units(row["text"])
            spoken.units = len(units)
            for number, unit in enumerate(units):
                while opened >= tts.at_once:
                    opened -= _finish_one(waiting)
                    while waiting and waiting[0] is not spoken and not waiting[0].sessions:
                        yield waiting.popleft()
                if spoken.error is not None:
                    break
                try:
                    session = tts.open(unit, **{**request, "seed": request["seed"] + number})
                except NightingaleError as error:
                    if isinstance(error, NOT_THE_ROW):
                        raise
                    opened -= len(spoken.sessions)
                    spoken.fail(error)
                    break
                session.plays = False
                spoken.sessions.append(session)
                opened += 1
        while waiting:
            while waiting[0].sessions:
                opened -= _finish_one(waiting)
            yield waiting.popleft()
    finally:
        for spoken in waiting:
            for session in spoken.sessions:
                session.cancel()


def _finish_one(waiting: deque[SpokenRow]) -> int:
    """Read the oldest session to its end; return how many sessions are closed by it."""
    spoken = next(one for one in waiting if one.sessions)
    session = spoken.sessions.popleft()
    try:
        spoken.parts.append(audio_of(session, session.chunks()))
    except NightingaleError as error:
        if isinstance(error, NOT_THE_ROW):
            raise
        closed = 1 + len(spoken.sessions)
        spoken.fail(error)
        return closed
    finally:
        session.cancel()
    return 1


def record_of(spoken: SpokenRow, rate_hz: int) -> tuple[dict[str, Any], Samples]:
    """Return the record of a row and its samples; a row without sound has an error, and is never written."""
    row, parts = spoken.row, spoken.parts
    pause = np.zeros(round(PARAGRAPH_PAUSE_S * rate_hz), np.float32)
    pieces = [piece for part in parts for piece in (part.samples, pause)][:-1]
    samples: Samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    peak = float(np.abs(samples).max()) if len(samples) else 0.0
    error = "" if spoken.error is None else str(spoken.error)
    if not error and peak < SILENCE_PEAK:
        error = f"the engine made silence: a peak of {peak:.1e} in {len(samples) / rate_hz:.2f} s"
    seconds, request = len(samples) / rate_hz, json.loads(row["request"])
    record = {
        "id": row["id"],
        "key": row["key"],
        "text": row["text"],
        "voice": request.get("voice"),
        "seed": request["seed"],
        "seconds": round(seconds, 6),
        "parts": spoken.units,
        "tokens": sum(part.metrics.tokens for part in parts),
        "flags": flags_of(row["text"], seconds, peak, sum(part.metrics.retries for part in parts)),
        "engine_ms": round(sum(part.metrics.total_ms - part.metrics.queue_ms for part in parts), 1),
        "queue_ms": round(sum(part.metrics.queue_ms for part in parts), 1),
        "ttfa_ms": round(parts[0].metrics.ttfa_ms, 1) if parts else 0.0,
        "error": error,
    }
    return record, samples


def flags_of(text: str, seconds: float, peak: float, retries: int) -> list[str]:
    """Return what a listener should check."""
    slowest, fastest = CHARS_PER_S
    is_long = len(text) >= MIN_FLAGGED_CHARS and seconds > 0
    found = {
        "retried": retries > 0,
        "clipped": peak >= CLIPPED_PEAK,
        "slow": is_long and len(text) / seconds < slowest,
        "fast": is_long and len(text) / seconds > fastest,
    }
    return [name for name, is_so in found.items() if is_so]


def encode(samples: Samples, file_format: str, rate_hz: int) -> bytes:
    """Return the contents of an audio file, with its length in the header where the format has one."""
    check_samples(samples)
    if file_format == "wav":
        return wav_bytes(samples, rate_hz)
    if file_format == "flac":
        import soundfile

        buffer = io.BytesIO()
        soundfile.write(buffer, samples, rate_hz, "PCM_16", format="FLAC")
        return buffer.getvalue()
    encoder = open_encoder(file_format, sample_rate_hz=rate_hz)
    return encoder.feed(samples) + encoder.finish()


class BatchWorker:
    """The class of Ray Data's actors: a batch of rows in, their records out."""

    def __init__(self, server: dict[str, Any], out: str, file_format: str, shards: bool, tally: Any) -> None:
        """tally: the actor that counts (`batch_tally.Tally`); its calls wait for the answer."""
        from nightingale.server.service.model_loading import load_engine
        from nightingale.server.settings import ServerSettings

        self._tts = load_engine(ServerSettings(**server))
        self._out, self._format, self._shards, self._tally = BatchOutput(out), file_format, shards, tally

        self._places, self._alone = threading.Semaphore(BATCHES_AT_ONCE), threading.Lock()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._speak_batch(batch)
        except NightingaleError as error:  # Ray Data would hand on its text only
            self._tally.fail(error)
            raise

    def _speak_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        rows = [{name: _plain(value) for name, value in row.items()} for row in rows]
        speakable = [row for row in rows if not row["error"]]
        deaths = dict(zip(tally_names(speakable), self._tally.begin(tally_names(speakable)), strict=True))
        fresh = [row for row in speakable if deaths[row["row"]] == 0]
        suspects = [row for row in speakable if 0 < deaths[row["row"]] < MAX_DEATHS]
        lost = [row for row in speakable if deaths[row["row"]] >= MAX_DEATHS]
        records = [_refused(row, row["error"]) for row in rows if row["error"]]
        records += [_refused(row, f"it ended its worker {MAX_DEATHS} times") for row in lost]
        with self._places:
            records += self._speak(fresh)
        self._tally.end(tally_names(fresh))
        self._store(records)
        for row in suspects:
            records += self._speak_alone(row)
        return {
            "key": [record["key"] for record in records],
            "error": [record["error"] for record in records],
        }

    def _speak_alone(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        """Speak a row while this process speaks no other: if it dies, it is known which row was at fault."""
        with self._alone:
            for _ in range(BATCHES_AT_ONCE):
                self._places.acquire()
            try:
                self._tally.begin_again(row["row"])
                records = self._speak([row])
                self._store(records)
                self._tally.settle(row["row"])
            finally:
                self._places.release(BATCHES_AT_ONCE)
        return records

    def _store(self, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        self._out.write_records(records)
        spoken = [record for record in records if not record["error"]]
        seconds, chars = sum(r["seconds"] for r in spoken), sum(len(r["text"]) for r in records)
        self._tally.add(len(records), len(records) - len(spoken), chars, seconds)

    def _speak(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Speak rows, write their audio, and return their records."""
        records, files, rate_hz = [], dict[str, bytes](), self._tts.sample_rate_hz
        for spoken in speak_rows(self._tts, rows):
            record, samples = record_of(spoken, rate_hz)
            records.append(record)
            if record["error"]:
                continue
            name = record["file"] = file_name(record["key"], self._format)
            data = encode(samples, self._format, rate_hz)
            if self._shards:
                files[name] = data
            else:
                self._out.write(name, data)
        if files:
            shard = self._out.write_shard(files)
            for record in records:
                if not record["error"]:
                    record["shard"] = shard
        return records


def tally_names(rows: list[dict[str, Any]]) -> list[str]:
    """Return the names by which the tally knows rows; unlike hashes, they differ also for equal rows."""
    return [row["row"] for row in rows]


def _refused(row: dict[str, Any], reason: str) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "key", "text")} | {"seconds": 0.0, "error": reason}


def _plain(value: Any) -> Any:
    """Return a value of numpy as Python's own."""
    return value.item() if isinstance(value, np.generic) else value
