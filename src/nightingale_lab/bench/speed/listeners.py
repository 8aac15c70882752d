"""Listeners who ask at the same moment, each with a player of its own that starts at the first chunk.

An underrun is counted as a player sees it: it plays in real time from its first chunk on, and each time it has
played everything before the next chunk arrives, although the utterance has not ended, counts one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from nightingale_lab.bench.speed.load import percentile
from nightingale_lab.bench.speed.request import RequestTimes, Target, open_request


def speak_together(target: Target, texts: Sequence[str], seed: int) -> list[RequestTimes]:
    """Open a request for each text, one right after the other, read them all, and return them in this order."""
    times: list[RequestTimes | BaseException] = [RuntimeError("not read")] * len(texts)

    def read(place: int, finish: Callable[[], RequestTimes]) -> None:
        try:
            times[place] = finish()
        except BaseException as error:
            times[place] = error

    threads = []
    for place, text in enumerate(texts):
        finish = open_request(target, text, seed + place)
        threads.append(threading.Thread(target=read, args=(place, finish), daemon=True))
        threads[-1].start()
    for thread in threads:
        thread.join()
    spoken = []
    for one in times:
        if isinstance(one, BaseException):
            raise one
        spoken.append(one)
    return spoken


def measure_listeners(
    target: Target,
    sentences: Sequence[str],
    listeners: int,
    *,
    on_request: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Let so many listeners ask at once for each of the sentences in turn; return a row of the results.

    A first round is not counted: the engine measures its rate in it.
    """
    rounds: list[list[RequestTimes]] = []
    begun = time.perf_counter()
    for number in range(-1, len(sentences)):
        if number == 0:
            rounds, begun = [], time.perf_counter()
        texts = [sentences[(number + place) % len(sentences)] for place in range(listeners)]
        rounds.append(speak_together(target, texts, seed=100 * (number + 1)))
        for _ in texts:
            on_request()
    wall_s = time.perf_counter() - begun
    spoken = [one for together in rounds for one in together]
    audio_s = sum(one.audio_seconds for one in spoken)
    return {
        "listeners": listeners,
        "sentences": len(spoken),
        "underruns": sum(one.playback.underruns for one in spoken),
        "stalled_s": round(sum(one.playback.stalled_s for one in spoken), 3),
        "ttfa_ms_p50": percentile([one.ttfa_ms for one in spoken], 0.5),
        "ttfa_ms_by_arrival": [
            percentile([together[place].ttfa_ms for together in rounds], 0.5) for place in range(listeners)
        ],
        "rtf_p50": percentile([one.rtf for one in spoken], 0.5, 4),
        "audio_seconds_per_s": round(audio_s / wall_s, 3),
    }
