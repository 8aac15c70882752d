"""The modes of `nightingale bench` with listeners: `--table`, `--listeners` and `--capacity`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nightingale.cli.console import loading, note, progress_line
from nightingale.errors import ConfigError
from nightingale_lab.cli.lab_console import console, counter

if TYPE_CHECKING:
    from nightingale_lab.bench.speed.listeners_run import ListenersPlan


def measure_headline(
    model: str | None,
    profiles: Sequence[str],
    voice: str | None,
    load: dict[str, Any],
    model_options: dict[str, Any],
    results: Path | None,
    *,
    quick: bool,
    quiet: bool,
) -> None:
    """Measure and print the table of each profile; one line of JSON each."""
    from nightingale.engine.tts import TTS
    from nightingale_lab.bench.speed.bench_texts import SENTENCES, TEXTS
    from nightingale_lab.bench.speed.cold import cold_start
    from nightingale_lab.bench.speed.headline import LEVELS, UNDERRUN, cold_say, headline_rows
    from nightingale_lab.bench.speed.listeners import measure_listeners
    from nightingale_lab.bench.speed.request import time_request
    from nightingale_lab.bench.speed.targets import engine_target

    sentences = SENTENCES[:2] if quick else SENTENCES
    for profile in profiles:
        result: dict[str, Any] = {"kind": "headline", **load, "listeners": []}
        with progress_line("starting new processes …", quiet=quiet):
            result["say"] = cold_say(model, profile)
            result["fresh"] = cold_start(
                {"model": model, "profile": profile, **load, **model_options}, TEXTS["medium"]
            )
        tts = TTS(model, profile=profile, **load, **model_options)
        result |= {"model": tts.name, "profile": tts.plan.renderer.setup.profile.name}
        requests = sum(LEVELS) * (len(sentences) + 1)
        with tts, counter(f"measuring {result['profile']}", requests, quiet=quiet) as step:
            target = engine_target(tts, voice)
            time_request(target, SENTENCES[0], 0)
            for level in LEVELS:
                result["listeners"].append(measure_listeners([target], sentences, level, on_request=step))
        _finish({**result, "headline": headline_rows(result)}, "headline", results, caption=UNDERRUN)


def measure_server(
    plan: ListenersPlan, url: str, model: str | None, voices: str | None, results: Path | None, *, quiet: bool
) -> None:
    """Measure listeners of a server. voices: names of the server's voices with commas, shared by listeners."""
    from nightingale_lab.bench.speed.headline import UNDERRUN
    from nightingale_lab.bench.speed.listeners_run import measure_levels
    from nightingale_lab.bench.speed.targets import server_target

    names = [name.strip() for name in (voices or "").split(",")]
    targets = [server_target(url, model=model, voice=name or None) for name in names]
    result: dict[str, Any] = {"kind": "listeners", "model": model, "url": url, "arrivals": plan.arrivals}
    result |= {"listeners": [], "capacity": []}
    with counter(f"measuring {url}", 0, quiet=quiet) as step:
        measure_levels(result, lambda count: targets[:count], plan, who=url, on_request=step)
    _finish(result, "listeners", results, caption=UNDERRUN)


def measure_listeners_and_capacity(
    plan: ListenersPlan,
    model: str | None,
    profiles: Sequence[str],
    voice: str | None,
    clips: Sequence[Path],
    load: dict[str, Any],
    model_options: dict[str, Any],
    results: Path | None,
    *,
    cold: bool,
    quiet: bool,
) -> None:
    """Measure listeners with their own voices, and print a line of JSON."""
    from nightingale_lab.bench.speed.bench_texts import TEXTS
    from nightingale_lab.bench.speed.cold import cold_rows
    from nightingale_lab.bench.speed.headline import UNDERRUN
    from nightingale_lab.bench.speed.listeners_run import measure_voices

    with progress_line(loading(model), quiet=quiet):
        from nightingale.engine.load import default_model, load_model
        from nightingale.engine.tts import TTS

        loaded = load_model(model or default_model(), offline=load["offline"], options=model_options)
    if loaded.notice is not None:
        note(f"note: {loaded.notice}")
    result: dict[str, Any] = {
        "kind": "listeners",
        "model": loaded.name,
        **load,
        "arrivals": plan.arrivals,
        "listeners": [],
        "capacity": [],
        "new_voice": [],
        "cold": [],
    }
    for profile in profiles:
        tts = TTS.over(loaded, profile, device=load["device"], dtype=load["dtype"])
        name = tts.plan.profile.name
        with tts, counter(f"measuring {name}", 0, quiet=quiet) as step:
            own = tts.voice(voice) if voice else tts.default_voice
            voices = [tts.voice(clip) for clip in clips] or ([own] if own else [])
            if not voices:
                raise ConfigError(
                    "this model has no voice of its own", fix="Name one with --voice or --clip."
                )
            measure_voices(result, tts, plan, who=name, voices=voices, on_request=step)
        if cold:
            with progress_line("starting new processes …", quiet=quiet):
                settings = {"model": model, "profile": profile, **load, **model_options}
                result["cold"] += [{"who": name, **row} for row in cold_rows(settings, TEXTS["short"])]
    _finish(result, "listeners", results, caption=UNDERRUN)


def _finish(result: dict[str, Any], kind: str, results: Path | None, *, caption: Sequence[str]) -> None:
    from nightingale_lab.bench import store
    from nightingale_lab.bench.speed.speed_tables import tables

    line = store.signed(result)
    store.append(line, kind, results or store.results_folder())
    for one in tables(line):
        console().print(one)
    print("\n".join(caption))
    print(json.dumps(line))
