"""`nightingale bench`: measure latency and throughput of the engine or of an OpenAI-compatible server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from nightingale.cli import options
from nightingale.cli.console import loading, note, parse_options, progress_line
from nightingale.errors import ConfigError, NightingaleError
from nightingale_lab.cli.lab_console import Results, console, counter

INTERRUPTED = 130

Profiles = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="Profiles with commas: exact, balanced, fast; each may have switches (+cache=int8).",
        show_default="the model's",
    ),
]
Dtype = Annotated[str, typer.Option(help="T3's precision: auto, float32, bfloat16.")]
Concurrency = Annotated[str, typer.Option(help="Concurrent requests: numbers with commas; may be empty.")]
Texts = Annotated[str, typer.Option("--text", help="Lengths with commas: word, short, medium, long.")]
Rounds = Annotated[int, typer.Option(help="Requests per measurement.", min=1)]
Url = Annotated[
    str | None, typer.Option(help="Measure this OpenAI-compatible server instead.", show_default=False)
]
Peers = Annotated[
    str | None,
    typer.Option(
        "--peer",
        help="Also measure others, with commas: hibari, kokoro, espeak-ng (or all), upstream (or "
        "upstream:turbo, :english, :multilingual).",
        show_default=False,
    ),
]
UpstreamPython = Annotated[
    Path | None,
    typer.Option(
        help="Python of an environment with chatterbox-tts, for --peer upstream.",
        envvar="NIGHTINGALE_UPSTREAM_PYTHON",
        show_default="one is created",
    ),
]
Cold = Annotated[bool, typer.Option("--cold/--no-cold", help="Also measure the start of a process.")]
Distance = Annotated[bool, typer.Option("--distance", help="Compare each stage with its hardware limit.")]
Headline = Annotated[
    bool,
    typer.Option(
        "--table",
        help="Measure the few numbers that users notice instead: cold start, real-time factor, first audio, "
        "memory, and underruns of 1, 2 and 4 listeners.",
    ),
]
Quick = Annotated[bool, typer.Option("--quick", help="Two rounds, two lengths, two levels of concurrency.")]


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
    distance: Distance = False,
    quick: Quick = False,
    table: Headline = False,
    results: Results = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    choices: options.Choices = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure speed: print tables, then one line of JSON. Ctrl-C keeps the results so far."""
    from nightingale_lab.bench import store
    from nightingale_lab.bench.speed.bench_run import BenchPlan, new_result

    model_options = parse_options(choices)
    levels, lengths = parse_levels(concurrency), parse_lengths(texts)
    plan = BenchPlan(levels=levels, lengths=lengths, rounds=rounds)
    if quick:
        plan = BenchPlan(levels=levels[:2], lengths=lengths[:2], rounds=min(rounds, 2))
    if table:
        load = {"device": device, "dtype": dtype, "offline": offline}
        _measure_headline(
            model, parse_profiles(profile), voice, load, model_options, results, quick=quick, quiet=quiet
        )
        return
    about = {"model": str(model or "default"), "url": url, "dtype": dtype, "device": device}
    result = new_result(**about, rounds=plan.rounds)
    profiles, peers = parse_profiles(profile), parse_peers(peer)
    stopped: KeyboardInterrupt | NightingaleError | None = None
    try:
        if url:
            _measure_url(result, plan, url, model, voice, quiet)
        else:
            load = {"device": device, "dtype": dtype, "offline": offline}
            _measure_here(
                result,
                plan,
                model,
                profiles,
                voice,
                load,
                model_options,
                cold=cold,
                distance=distance,
                quiet=quiet,
            )
        if peers:
            _measure_peers(result, plan, peers, profiles, device, upstream_python, quiet)
        result["complete"] = True
    except (KeyboardInterrupt, NightingaleError) as stop:
        if not (result["lengths"] or result["concurrency"]):
            raise
        stopped = stop
        note("interrupted: these are the results so far")
    line = store.signed(result)
    store.append(line, "bench", results or store.results_folder())
    _print(line)
    if isinstance(stopped, NightingaleError):
        raise stopped
    if stopped:
        raise typer.Exit(INTERRUPTED)


def _measure_url(
    result: dict[str, Any], plan: Any, url: str, model: str | None, voice: str | None, quiet: bool
) -> None:
    from nightingale_lab.bench.speed.bench_run import measure
    from nightingale_lab.bench.speed.targets import server_target

    target = server_target(url, model=model, voice=voice)
    with counter(f"measuring {url}", plan.requests, quiet=quiet) as step:
        measure(result, target, plan, who=url, on_request=step)


def _measure_here(
    result: dict[str, Any],
    plan: Any,
    model: str | None,
    profiles: list[str],
    voice: str | None,
    load: dict[str, Any],
    model_options: dict[str, Any],
    *,
    cold: bool,
    distance: bool,
    quiet: bool,
) -> None:
    import time

    from nightingale_lab.bench.speed.bench_run import measure
    from nightingale_lab.bench.speed.bench_texts import TEXTS
    from nightingale_lab.bench.speed.cold import cold_start, gpu_peak_mb, peak_memory_mb
    from nightingale_lab.bench.speed.floor import distances
    from nightingale_lab.bench.speed.targets import engine_target

    with progress_line(loading(model), quiet=quiet):
        from nightingale.engine.load import default_model, load_model
        from nightingale.engine.tts import TTS

        started_s = time.perf_counter()
        loaded = load_model(model or default_model(), offline=load["offline"], options=model_options)
        result["load_ms"] = round(1000 * (time.perf_counter() - started_s), 1)
    if loaded.notice is not None:
        note(f"note: {loaded.notice}")
    result["model"] = loaded.name
    names = profiles or [loaded.defaults.profile]
    result["cold"], result["distance"] = [], []
    for name in names:
        tts = TTS.over(loaded, name, device=load["device"], dtype=load["dtype"])
        with tts, counter(f"measuring {name}", plan.requests, quiet=quiet) as step:
            measure(result, engine_target(tts, voice), plan, who=name, on_request=step)
    if cold:
        with progress_line("starting new processes …", quiet=quiet):
            for name in names:
                settings = {"model": model, "profile": name, **load, **model_options}
                result["cold"].append({"who": name, **cold_start(settings, TEXTS["short"])})
    if distance:
        with progress_line("measuring the hardware limits …", quiet=quiet):
            result["distance"] = [one.row() for one in distances(loaded, TEXTS["medium"], load["device"])]
    memory = {"peak_memory_mb": peak_memory_mb(), "gpu_peak_mb": gpu_peak_mb()}
    result["memory"] = {key: value for key, value in memory.items() if value is not None}


def _measure_headline(
    model: str | None,
    profiles: list[str],
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
    from nightingale_lab.bench import store
    from nightingale_lab.bench.speed.bench_texts import SENTENCES, TEXTS
    from nightingale_lab.bench.speed.cold import cold_start
    from nightingale_lab.bench.speed.headline import LEVELS, UNDERRUN, cold_say, headline_rows
    from nightingale_lab.bench.speed.listeners import measure_listeners
    from nightingale_lab.bench.speed.request import time_request
    from nightingale_lab.bench.speed.speed_tables import tables
    from nightingale_lab.bench.speed.targets import engine_target

    sentences = SENTENCES[:2] if quick else SENTENCES
    names: list[str | None] = [*profiles] or [None]
    for profile in names:
        result: dict[str, Any] = {"kind": "headline", **load, "lengths": [], "concurrency": []}
        with progress_line("starting new processes …", quiet=quiet):
            result["say"] = cold_say(model, profile)
            result["fresh"] = cold_start(
                {"model": model, "profile": profile, **load, **model_options}, TEXTS["medium"]
            )
        tts = TTS(model, profile=profile, **load, **model_options)
        result |= {"model": tts.name, "profile": tts.plan.renderer.setup.profile.name, "listeners": []}
        requests = sum(LEVELS) * (len(sentences) + 1)
        with tts, counter(f"measuring {result['profile']}", requests, quiet=quiet) as step:
            target = engine_target(tts, voice)
            time_request(target, SENTENCES[0], 0)
            for level in LEVELS:
                result["listeners"].append(measure_listeners(target, sentences, level, on_request=step))
        line = store.signed({**result, "headline": headline_rows(result)})
        store.append(line, "headline", results or store.results_folder())
        for one in tables(line):
            console().print(one)
        print("\n".join(UNDERRUN))
        print(json.dumps(line))


def parse_profiles(names: str | None) -> list[str]:
    from nightingale.backends.profiles import profile_named

    return [profile_named(name.strip()).name for name in (names or "").split(",") if name.strip()]


def parse_peers(spelled: str | None) -> list[Any]:
    from nightingale_lab.bench.peers.install import peer_named
    from nightingale_lab.bench.peers.peer_list import ALL

    names = [name.strip() for name in (spelled or "").split(",") if name.strip()]
    return [peer_named(one) for name in names for one in (ALL if name == "all" else [name])]


def _measure_peers(
    result: dict[str, Any],
    plan: Any,
    peers: list[Any],
    profiles: list[str],
    device: str,
    upstream_python: Path | None,
    quiet: bool,
) -> None:
    """Measure the same texts with other engines, with the same number of threads."""
    import torch

    from nightingale_lab.bench.peers.measure_peers import PeerSettings, measure_peers

    settings = PeerSettings(
        threads=torch.get_num_threads(),
        profiles=profiles,
        device=device,
        upstream_python=upstream_python,
        report=(lambda _: None) if quiet else note,
    )
    measure_peers(
        result, plan, peers, settings, lambda who: counter(f"measuring {who}", plan.requests, quiet=quiet)
    )


def parse_levels(spelled: str) -> list[int]:
    try:
        levels = [int(number) for number in spelled.split(",") if number.strip()]
    except ValueError:
        levels = [0]
    if any(level < 1 for level in levels):
        raise ConfigError(
            "invalid numbers of concurrent requests",
            got=repr(spelled),
            allowed="positive integers, with commas",
            fix="For example: --concurrency 1,2,4,8",
        )
    return levels


def parse_lengths(spelled: str) -> list[str]:
    from nightingale_lab.bench.speed.bench_texts import TEXTS

    names = [name.strip() for name in spelled.split(",") if name.strip()]
    if unknown := [name for name in names if name not in TEXTS]:
        raise ConfigError(
            "unknown length of text",
            got=", ".join(unknown),
            allowed=", ".join(TEXTS),
            fix="For example: --text short,long",
        )
    return names


def _print(line: dict[str, Any]) -> None:
    from nightingale_lab.bench.speed.speed_tables import CAPTION, tables

    shown = console()
    for table in tables(line):
        shown.print(table)
    print("\n".join(CAPTION))
    print(json.dumps(line))
