"""`nightingale bench --share`: one line with the numbers of this machine, to be pasted into an issue or a chat."""

from __future__ import annotations

import platform
from typing import Any, Final

from nightingale import __version__
from nightingale.backends.selection import Plan
from nightingale.engine.tts import TTS
from nightingale_lab.bench.speed.bench_texts import SENTENCES
from nightingale_lab.bench.speed.cold import cold_start
from nightingale_lab.bench.speed.listeners import measure_listeners
from nightingale_lab.bench.speed.request import time_request
from nightingale_lab.bench.speed.targets import engine_target
from nightingale_lab.bench.store import cpu_name

WARMING: Final = 2
"""Sentences that are spoken before the measured ones: a GPU compiles functions for sizes it has not seen."""


def measure_share(
    model: str | None, profile: str | None, voice: str | None, load: dict[str, Any], options: dict[str, Any]
) -> str:
    """Return the line of a model and a profile: a few sentences, one after the other, and a fresh process."""
    fresh = cold_start({"model": model, "profile": profile, **load, **options}, SENTENCES[0])
    with TTS(model, profile=profile, **load, **options) as tts:
        target = engine_target(tts, voice)
        for _ in range(WARMING):
            for number, sentence in enumerate(SENTENCES):
                time_request(target, sentence, number)
        return share_line(tts.name, tts.plan, fresh, measure_listeners([target], SENTENCES, 1))


def share_line(model: str, plan: Plan, fresh: dict[str, Any], listener: dict[str, Any]) -> str:
    """Return one line of text without line breaks or tabs."""
    decoder, renderer = plan.choices
    parts = (
        f"nightingale {__version__}",
        f"{model} {plan.profile.name}",
        f"{cpu_name()}, {system_name()}",
        f"device {plan.machine.device} ({plan.machine.name}, {plan.machine.instructions})",
        f"T3 {decoder.backend.name} {decoder.precision}",
        f"flow and vocoder {renderer.backend.name} {renderer.precision}",
        f"real-time factor {listener['rtf_p50']}",
        f"first audio {listener['ttfa_ms_p50']:.0f} ms",
        f"underruns {listener['underruns']}",
        f"process to sound {fresh['process_to_sound_ms'] / 1000:.1f} s",
        f"peak memory {fresh['peak_memory_mb']:.0f} MB",
    )
    return " | ".join(" ".join(part.split()) for part in parts)


def system_name() -> str:
    macos = platform.mac_ver()[0]
    return f"macOS {macos}" if macos else f"{platform.system()} {platform.release()}"
