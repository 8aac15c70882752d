"""Speak a library of text on a cluster: Ray Data reads the rows and feeds a pool of engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from nightingale.errors import ConfigError, EngineFault
from nightingale.ray.batch_output import BatchOutput
from nightingale.ray.batch_rows import prepare_row
from nightingale.ray.batch_tally import RemoteTally, Tally
from nightingale.ray.batch_worker import BATCHES_AT_ONCE, FORMATS
from nightingale.ray.connection import connected

BATCH_ROWS: Final = 64
POLL_S: Final = 1.0
SUFFIXES: Final = (".jsonl", ".json", ".parquet", ".csv", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """The input of a batch, how it is spoken, and where the audio goes."""

    source: str
    out: str
    file_format: str = "flac"
    defaults: dict[str, Any] = field(default_factory=dict)
    """Voice, language, seed and controls of rows that have none."""
    server: dict[str, Any] = field(default_factory=dict)
    """Settings of the engine: model, option, device, profile, offline, slots."""
    workers: int = 1
    gpus_per_worker: float = 0.0
    cpus_per_worker: float = 1.0
    batch_rows: int = BATCH_ROWS
    shards: bool = False
    voices: str | None = None
    worker: str = "nightingale.ray.batch_worker:BatchWorker"
    """Import path of the workers' class; tests replace it."""

    @property
    def model(self) -> str:
        """Return what of the engine's settings changes its audio."""
        return repr(sorted((name, str(self.server.get(name))) for name in ("model", "option", "profile")))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """The outcome of a run."""

    rows: int
    """Rows of the manifest, those of earlier runs included."""
    dead: int
    skipped: int
    """Rows that an earlier run had done."""
    seconds: float
    """Audio that this run has made."""
    took_s: float
    speaking_s: float
    """Time from the first row to the last one, without the start of the workers."""


Progress = Callable[[dict[str, float], float, float], None]
"""Called every second with the totals, the characters that are to be spoken, and the seconds since the start."""


def run_batch(settings: BatchSettings, address: str | None, progress: Progress) -> BatchResult:
    """Speak all rows that are not done yet, then write the manifest and the dead letters."""
    check_settings(settings)
    output = BatchOutput(settings.out)
    output.check()
    done = {(record["id"], record["key"]) for record in output.records() if not record["error"]}
    with connected(address) as ray, plain_errors(ray):
        silence_progress(ray)
        rows, skipped = _rows_left(ray, settings, done)
        started_s = time.monotonic()
        totals = _speak(ray, settings, rows, progress) if rows is not None else Tally().totals()
        took_s = time.monotonic() - started_s
    kept, dead = output.finish()
    made_s, speaking_s = totals["seconds"], totals["speaking_s"]
    return BatchResult(
        rows=kept, dead=dead, skipped=skipped, seconds=made_s, took_s=took_s, speaking_s=speaking_s
    )


def check_settings(settings: BatchSettings) -> None:
    """Raise ConfigError for what cannot work."""
    if settings.file_format not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise ConfigError("unknown audio format", got=repr(settings.file_format), allowed=allowed)
    if "://" not in settings.source:
        path = Path(settings.source)
        if not path.exists():
            raise ConfigError("the input does not exist", got=settings.source, fix="Check the path.")
        if path.is_file() and path.suffix not in SUFFIXES:
            raise ConfigError("unknown kind of input", got=path.name, allowed=", ".join(SUFFIXES))


def _read(ray: Any, source: str) -> Any:
    """Return the rows of a file, of a folder of text files, or of a folder of tables."""
    suffix = Path(source).suffix
    if suffix in (".jsonl", ".json"):
        return ray.data.read_json(source, lines=True)
    if suffix == ".parquet":
        return ray.data.read_parquet(source)
    if suffix == ".csv":
        return ray.data.read_csv(source)
    files = ray.data.read_binary_files(source, include_paths=True, file_extensions=["txt"])
    return files.map(
        lambda row: {"id": Path(row["path"]).stem, "text": row["bytes"].decode("utf-8", "replace")}
    )


def _rows_left(ray: Any, settings: BatchSettings, done: set[tuple[str, str]]) -> tuple[Any, int]:
    """Return the rows that must be spoken, or None if there are none, and how many are done."""
    defaults, model = {**settings.defaults, "format": settings.file_format}, settings.model
    known = ray.put(done)

    def prepare(row: dict[str, Any]) -> dict[str, Any]:
        return prepare_row(row, defaults, model)

    def is_left(row: dict[str, Any]) -> bool:
        return (row["id"], row["key"]) not in ray.get(known)

    prepared = _read(ray, settings.source).map(prepare).materialize()
    left = prepared.filter(is_left).materialize() if done else prepared
    count, total = left.count(), prepared.count()
    return (left if count else None), total - count


def _speak(ray: Any, settings: BatchSettings, rows: Any, progress: Progress) -> dict[str, float]:
    tally = ray.remote(num_cpus=0)(Tally).remote()
    # Not `rows.sum`, which shuffles.
    chars = float(sum(batch["chars"].sum() for batch in rows.iter_batches(batch_size=None)))
    started_s = time.monotonic()
    # Blocks of one batch each: otherwise one block, and so one worker, would have a small input for itself.
    blocks = max(1, -(-rows.count() // settings.batch_rows))
    variables = {"NIGHTINGALE_VOICES": settings.voices} if settings.voices else {}
    module, _, name = settings.worker.partition(":")
    spoken = rows.repartition(blocks).map_batches(
        getattr(import_module(module), name),
        batch_size=settings.batch_rows,
        compute=ray.data.ActorPoolStrategy(
            size=settings.workers,
            max_concurrent_calls_per_actor=BATCHES_AT_ONCE,
            enable_true_multi_threading=True,
        ),
        num_cpus=settings.cpus_per_worker,
        num_gpus=settings.gpus_per_worker or None,
        runtime_env={"env_vars": variables},
        fn_constructor_kwargs={
            "server": settings.server,
            "out": settings.out,
            "file_format": settings.file_format,
            "shards": settings.shards,
            "tally": RemoteTally(tally),
        },
    )
    shown_s = 0.0
    try:
        for _ in spoken.iter_batches(batch_size=None):
            if time.monotonic() - shown_s >= POLL_S:
                shown_s = time.monotonic()
                progress(ray.get(tally.totals.remote()), chars, shown_s - started_s)
    except ray.exceptions.RayError as error:
        if (reason := ray.get(tally.failure.remote())) is not None:
            raise reason from error
        raise
    totals: dict[str, float] = ray.get(tally.totals.remote())
    progress(totals, chars, time.monotonic() - started_s)
    return totals


def silence_progress(ray: Any) -> None:
    """Turn off the progress of Ray Data: the command has its own."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False


@contextmanager
def plain_errors(ray: Any) -> Iterator[None]:
    """Raise an error of this package where the cluster has failed."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise EngineFault(
            "the batch has stopped",
            got=str(error).strip().splitlines()[-1][:300],
            fix="Run the same command again: what is done is kept.",
        ) from error
