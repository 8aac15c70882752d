"""Passages of a book, spoken by several workers of a Ray cluster into the cache of sentences.

The cache is a folder that all nodes reach. The command then makes the book as usual, and finds every passage there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from nightingale.book.narration import Narrator
from nightingale.book.passages import Passage
from nightingale.book.sentence_cache import SentenceCache
from nightingale.engine import TTS
from nightingale.ray.connection import connected

MAX_RESTARTS: Final = 3
"""A worker that dies so often ends the run; the sentences that were spoken stay in the cache."""


class BookWorker:
    """The class of Ray's actors: an engine with the settings of the book."""

    def __init__(self, engine: dict[str, Any], cache: Path, narrator: dict[str, Any]) -> None:
        """engine: arguments of `TTS`. narrator: those of `Narrator` besides the engine and the cache."""
        self._narrator = Narrator(TTS(**engine), SentenceCache(cache, clean=False), **narrator)

    def speak(self, passage: Passage) -> int:
        """Speak a passage into the cache; return its number of characters. One that fails is not in the cache."""
        self._narrator.speak(passage)
        return len(passage.text)


def speak_passages(
    passages: Sequence[Passage],
    *,
    workers: int,
    gpus_per_worker: float = 0.0,
    address: str | None = None,
    engine: dict[str, Any],
    cache: Path,
    narrator: dict[str, Any],
    on_spoken: Callable[[int], None],
) -> None:
    """Speak passages by several workers, in any order.

    Args:
        passages: Passages that are not in the cache.
        workers: The number of workers, each with an engine of its own.
        gpus_per_worker: GPUs that each worker reserves.
        address: The address of a cluster; None for RAY_ADDRESS, or for Ray on this machine.
        engine: Arguments of `TTS`.
        cache: The folder of the cache.
        narrator: Arguments of `Narrator` besides the engine and the cache.
        on_spoken: Called with the number of characters of each passage when it was spoken.
    """
    if not passages:
        return
    with connected(address) as ray:
        from ray.util import ActorPool

        worker = ray.remote(BookWorker).options(
            num_cpus=1, num_gpus=gpus_per_worker, max_restarts=MAX_RESTARTS, max_task_retries=MAX_RESTARTS
        )
        count = min(workers, len(passages))
        pool = ActorPool([worker.remote(engine, cache.absolute(), narrator) for _ in range(count)])
        for chars in pool.map_unordered(lambda actor, passage: actor.speak.remote(passage), passages):
            on_spoken(chars)
