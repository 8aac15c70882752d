"""`nightingale bench`: measure latency and throughput of the engine or of an OpenAI-compatible server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nightingale.cli import options
from nightingale.cli.console import loading, note, parse_options, progress_line
from nightingale.errors import ConfigError, NightingaleError
from nightingale_lab.cli.bench_listeners import (
    measure_headline,
    measure_listeners_and_capacity,
    measure_server,
)
from nightingale_lab.cli.lab_console import Results, console, counter

if TYPE_CHECKING:
    from nightingale_lab.bench.speed.listeners_run import ListenersPlan

INTERRUPTED = 130

Profiles = Annotated[
    str | None,
    typer.Option(
        "--profile",
        help="Profiles with commas: default, exact, balanced, fast; each may have switches (+flow_steps=6).",
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
        help="Also measure others, with commas: hibari, kokoro, espeak-ng, piper (or all), upstream (or "
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
Share = Annotated[
    bool,
    typer.Option(
        "--share", help="Measure a few sentences, and print one line for each profile that can be pasted."
    ),
]
Listeners = Annotated[
    str | None,
    typer.Option(help="Measure listeners at once instead: numbers with commas.", show_default=False),
]
Voices = Annotated[
    str, typer.Option(help="Voices of the listeners: own (one each), one (the same for all), or a number.")
]
VoiceClips = Annotated[
    list[Path] | None,
    typer.Option(
        "--clip", help="A recording to clone a listener's voice from.", show_default="derived voices"
    ),
]
StreamMode = Annotated[
    str | None,
    typer.Option("--stream", help="Stream by segment or by block.", show_default="the profile's"),
]
ArrivalPattern = Annotated[
    str, typer.Option("--arrivals", help="together (all at once) or poisson (callers at random).")
]
FindCapacity = Annotated[
    bool, typer.Option("--capacity", help="Search for the most listeners that are served in time.")
]
LimitMs = Annotated[float, typer.Option(help="Limit of first audio, p95, for --capacity.", min=1.0)]
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
    share: Share = False,
    listeners: Listeners = None,
    voices: Voices = "own",
    clips: VoiceClips = None,
    stream: StreamMode = None,
    arrivals: ArrivalPattern = "together",
    capacity: FindCapacity = False,
    limit_ms: LimitMs = 500.0,
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
    load = {"device": device, "dtype": dtype, "offline": offline}
    profiles, peers = parse_profiles(profile, stream), parse_peers(peer)
    if table:
        measure_headline(model, profiles, voice, load, model_options, results, quick=quick, quiet=quiet)
        return
    if share:
        from nightingale_lab.bench.speed.share import measure_share

        for one in profiles:
            with progress_line(f"measuring {one} …", quiet=quiet):
                pasted = measure_share(model, one, voice, load, model_options)
            print(pasted)
        return
    if listeners or capacity:
        asked = listeners_plan(listeners, voices, arrivals, plan.rounds, capacity=capacity, limit_ms=limit_ms)
        if url:
            measure_server(asked, url, model, voice, results, quiet=quiet)
            return
        measure_listeners_and_capacity(
            asked, model, profiles, voice, clips or [], load, model_options, results,
            cold=cold, quiet=quiet,
        )  # fmt: skip
        return
    about = {"model": str(model or "default"), "url": url, "dtype": dtype, "device": device}
    result = new_result(**about, rounds=plan.rounds)
    stopped: KeyboardInterrupt | NightingaleError | None = None
    try:
        if url:
            _measure_url(result, plan, url, model, voice, quiet)
        else:
            _measure_here(
                result, plan, model, profiles, voice, load, model_options,
                cold=cold, distance=distance, quiet=quiet,
            )  # fmt: skip
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
    from nightingale_lab.bench.speed.cold import cold_rows
    from nightingale_lab.bench.speed.floor import distances
    from nightingale_lab.bench.speed.memory import gpu_peak_mb, peak_memory_mb
    from nightingale_lab.bench.speed.targets import engine_target

    with progress_line(loading(model), quiet=quiet):
        from nightingale.backends.profiles import profile_named
        from nightingale.engine.load import default_model, load_model
        from nightingale.engine.tts import TTS

        started_s = time.perf_counter()
        loaded = load_model(model or default_model(), offline=load["offline"], options=model_options)
        result["load_ms"] = round(1000 * (time.perf_counter() - started_s), 1)
    if loaded.notice is not None:
        note(f"note: {loaded.notice}")
    result["model"] = loaded.name
    names = [profile_named(name, default=loaded.defaults.profile).name for name in profiles]
    result["cold"], result["distance"] = [], []
    for name in names:
        tts = TTS.over(loaded, name, device=load["device"], dtype=load["dtype"])
        with tts, counter(f"measuring {name}", plan.requests, quiet=quiet) as step:
            measure(result, engine_target(tts, voice), plan, who=name, on_request=step)
    if cold:
        with progress_line("starting new processes …", quiet=quiet):
            for name in names:
                settings = {"model": model, "profile": name, **load, **model_options}
                result["cold"] += [{"who": name, **row} for row in cold_rows(settings, TEXTS["short"])]
    if distance:
        with progress_line("measuring the hardware limits …", quiet=quiet):
            result["distance"] = [one.row() for one in distances(loaded, TEXTS["medium"], load["device"])]
    memory = {"peak_memory_mb": peak_memory_mb(), "gpu_peak_mb": gpu_peak_mb()}
    result["memory"] = {key: value for key, value in memory.items() if value is not None}


def parse_profiles(names: str | None, stream: str | None = None) -> list[str]:
    """Return the names of profiles that exist, with the stream mode as an option of each."""
    from nightingale.backends.profiles import DEFAULT, profile_named, with_options

    asked = [name.strip() for name in (names or "").split(",") if name.strip()]
    spelled = [with_options(name, {"stream": stream}) for name in asked or [DEFAULT]]
    for name in spelled:
        profile_named(name)
    return spelled


def listeners_plan(
    levels: str | None, voices: str, arrivals: str, rounds: int, *, capacity: bool, limit_ms: float
) -> ListenersPlan:
    from nightingale_lab.bench.speed.capacity import CapacityLimits
    from nightingale_lab.bench.speed.listeners import ARRIVALS
    from nightingale_lab.bench.speed.listeners_run import ListenersPlan

    if arrivals not in ARRIVALS:
        known = ", ".join(ARRIVALS)
        raise ConfigError("unknown pattern of arrivals", got=repr(arrivals), allowed=known)
    return ListenersPlan(
        levels=parse_levels(levels or "", option="--listeners"),
        voices=voices,
        arrivals=arrivals,
        rounds=rounds,
        capacity=capacity,
        limits=CapacityLimits(first_audio_ms=limit_ms),
    )


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


def parse_levels(spelled: str, option: str = "--concurrency") -> list[int]:
    try:
        levels = [int(number) for number in spelled.split(",") if number.strip()]
    except ValueError:
        levels = [0]
    if any(level < 1 for level in levels):
        raise ConfigError(
            "invalid numbers of concurrent requests",
            got=repr(spelled),
            allowed="positive integers, with commas",
            fix=f"For example: {option} 1,2,4,8",
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
