"""`nightingale bench`: how soon, how fast, how steadily; here, or at any OpenAI-compatible address."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nightingale.cli import options
from nightingale.cli.talk import busy, note, read_options
from nightingale.cli.watch import console, counting
from nightingale.errors import ConfigError, NightingaleError

INTERRUPTED = 130

Profiles = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="One or more of exact, balanced, fast, with commas; each may have switches (+cache=int8).",
        show_default="the model's",
    ),
]
Dtype = Annotated[str, typer.Option(help="T3's precision: auto, float32, bfloat16.")]
Concurrency = Annotated[str, typer.Option(help="Requests at a time: numbers with commas; empty for none.")]
Texts = Annotated[str, typer.Option("--text", help="Lengths of word, short, medium, long, with commas.")]
Rounds = Annotated[int, typer.Option(help="Requests of each kind.", min=1)]
Url = Annotated[
    str | None, typer.Option(help="Measure this OpenAI-compatible server instead.", show_default=False)
]
Peers = Annotated[
    str | None,
    typer.Option(
        "--peer",
        help="Also hibari, kokoro, espeak-ng (all of them: all), upstream (or upstream:turbo, :english, "
        ":multilingual), with commas.",
        show_default=False,
    ),
]
UpstreamPython = Annotated[
    Path | None,
    typer.Option(
        help="Python of an environment with chatterbox-tts, for --peer upstream.",
        envvar="NIGHTINGALE_UPSTREAM_PYTHON",
        show_default="one is made",
    ),
]
Cold = Annotated[bool, typer.Option("--cold/--no-cold", help="Also start a fresh process.")]
Far = Annotated[bool, typer.Option("--distance", help="Each stage's time over its physical floor.")]
Quick = Annotated[bool, typer.Option("--quick", help="Two rounds, two lengths, one and two at a time.")]


def bench(
    model: options.Model = None,
    profile: Profiles = None,
    dtype: Dtype = "auto",
    voice: options.VoiceName = None,
    concurrency: Concurrency = "1,2,4,8",
    texts: Texts = "word,short,medium,long",
    rounds: Rounds = 5,
    url: Url = None,
    peer: Peers = None,
    upstream_python: UpstreamPython = None,
    cold: Cold = True,
    distance: Far = False,
    quick: Quick = False,
    results: options.Results = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    choices: options.Choices = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure speed: tables for people, then one line of JSON, last. Ctrl-C keeps what was measured."""
    from nightingale_lab.bench import store
    from nightingale_lab.bench.speed.run import BenchPlan, new_result

    chosen = read_options(choices or [])
    levels, lengths = read_levels(concurrency), read_lengths(texts)
    plan = BenchPlan(levels=levels, lengths=lengths, rounds=rounds)
    if quick:
        plan = BenchPlan(levels=levels[:2], lengths=lengths[:2], rounds=min(rounds, 2))
    about = {"model": str(model or "default"), "url": url, "dtype": dtype, "device": device}
    result = new_result(**about, rounds=plan.rounds)
    profiles, peers = read_profiles(profile), read_peers(peer)
    stopped: KeyboardInterrupt | NightingaleError | None = None
    try:
        if url:
            _at_url(result, plan, url, model, voice, quiet)
        else:
            loading = {"device": device, "dtype": dtype, "offline": offline, **chosen}
            _here(result, plan, model, profiles, voice, loading, cold=cold, distance=distance, quiet=quiet)
        if peers:
            _beside(result, plan, peers, profiles, device, upstream_python, quiet)
        result["complete"] = True
    except (KeyboardInterrupt, NightingaleError) as stop:
        if not (result["lengths"] or result["concurrency"]):
            raise
        stopped = stop
        note("interrupted: what follows is what was measured until then")
    line = store.signed(result)
    store.append(line, "bench", results or store.results_folder())
    _print(line)
    if isinstance(stopped, NightingaleError):
        raise stopped
    if stopped:
        raise typer.Exit(INTERRUPTED)


def _at_url(
    result: dict[str, Any], plan: Any, url: str, model: str | None, voice: str | None, quiet: bool
) -> None:
    from nightingale_lab.bench.speed.run import measure
    from nightingale_lab.bench.speed.targets import server_target

    target = server_target(url, model=model, voice=voice)
    with counting(f"measuring {url}", plan.requests, quiet=quiet) as step:
        measure(result, target, plan, who=url, on_request=step)


def _here(
    result: dict[str, Any],
    plan: Any,
    model: str | None,
    profiles: list[str],
    voice: str | None,
    loading: dict[str, Any],
    *,
    cold: bool,
    distance: bool,
    quiet: bool,
) -> None:
    import time

    from nightingale_lab.bench.speed.cold import cold_start, gpu_peak_mb, peak_memory_mb
    from nightingale_lab.bench.speed.floor import distances
    from nightingale_lab.bench.speed.run import measure
    from nightingale_lab.bench.speed.targets import engine_target
    from nightingale_lab.bench.speed.texts import TEXTS

    with busy(f"loading {model or 'the voice in the box'} …", quiet=quiet):
        from nightingale.engine.load import load_model
        from nightingale.engine.model import default_model
        from nightingale.engine.tts import TTS

        begun = time.perf_counter()
        plain = {key: loading[key] for key in ("device", "dtype", "offline")}
        extra = {key: value for key, value in loading.items() if key not in plain}
        loaded = load_model(model or default_model(), **plain, options=extra)
        result["load_ms"] = round(1000 * (time.perf_counter() - begun), 1)
    if loaded.notice is not None:
        note(f"note: {loaded.notice}")
    result["model"] = loaded.name
    names = profiles or [loaded.defaults.profile]
    result["cold"], result["distance"] = [], []
    for name in names:
        with TTS.over(loaded, name) as tts, counting(f"measuring {name}", plan.requests, quiet=quiet) as step:
            measure(result, engine_target(tts, voice), plan, who=name, on_request=step)
    if cold:
        with busy("starting fresh processes …", quiet=quiet):
            for name in names:
                settings = {"model": model, "profile": name, **loading}
                result["cold"].append({"who": name, **cold_start(settings, TEXTS["short"])})
    if distance:
        with busy("measuring the floor …", quiet=quiet):
            result["distance"] = [one.row() for one in distances(loaded, TEXTS["medium"])]
    memory = {"peak_memory_mb": peak_memory_mb(), "gpu_peak_mb": gpu_peak_mb()}
    result["memory"] = {key: value for key, value in memory.items() if value is not None}


def read_profiles(spelled: str | None) -> list[str]:
    from nightingale.backends.profiles import profile_named

    return [profile_named(name.strip()).name for name in (spelled or "").split(",") if name.strip()]


def read_peers(spelled: str | None) -> list[Any]:
    from nightingale_lab.bench.peers.install import peer_named
    from nightingale_lab.bench.peers.table import ALL

    names = [name.strip() for name in (spelled or "").split(",") if name.strip()]
    return [peer_named(one) for name in names for one in (ALL if name == "all" else [name])]


def _beside(
    result: dict[str, Any],
    plan: Any,
    peers: list[Any],
    profiles: list[str],
    device: str,
    upstream_python: Path | None,
    quiet: bool,
) -> None:
    """The same texts by others, on as many threads as we have."""
    import torch

    from nightingale_lab.bench.peers.beside import Setting, beside

    setting = Setting(
        threads=torch.get_num_threads(),
        profiles=profiles,
        device=device,
        upstream_python=upstream_python,
        say=(lambda _: None) if quiet else note,
    )
    beside(result, plan, peers, setting, lambda who: counting(f"measuring {who}", plan.requests, quiet=quiet))


def read_levels(spelled: str) -> list[int]:
    try:
        levels = [int(number) for number in spelled.split(",") if number.strip()]
    except ValueError:
        levels = [0]
    if any(level < 1 for level in levels):
        raise ConfigError(
            "not numbers of requests at a time",
            got=repr(spelled),
            allowed="whole numbers from 1 on, with commas",
            fix="For example: --concurrency 1,2,4,8",
        )
    return levels


def read_lengths(spelled: str) -> list[str]:
    from nightingale_lab.bench.speed.texts import TEXTS

    names = [name.strip() for name in spelled.split(",") if name.strip()]
    if unknown := [name for name in names if name not in TEXTS]:
        raise ConfigError(
            "no text of that length",
            got=", ".join(unknown),
            allowed=", ".join(TEXTS),
            fix="For example: --text short,long",
        )
    return names


def _print(line: dict[str, Any]) -> None:
    from nightingale_lab.bench.speed.table import CAPTION, tables

    shown = console()
    for table in tables(line):
        shown.print(table)
    print("\n".join(CAPTION))
    print(json.dumps(line))
