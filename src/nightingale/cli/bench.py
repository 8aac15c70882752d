"""`nightingale bench`: how soon, how fast, how steadily; here, or at any OpenAI-compatible address."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from nightingale.cli import options
from nightingale.cli.talk import busy, note, read_options
from nightingale.errors import ConfigError

INTERRUPTED = 130

Profiles = Annotated[
    str | None,
    typer.Option("--profile", help="One or more of exact, balanced: a,b.", show_default="the model's"),
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
    typer.Option("--peer", help="Also hibari, kokoro, espeak-ng, with commas, or all.", show_default=False),
]
Cold = Annotated[bool, typer.Option("--cold/--no-cold", help="Also start a fresh process.")]
Far = Annotated[bool, typer.Option("--distance", help="Each stage's time over its physical floor.")]
Quick = Annotated[bool, typer.Option("--quick", help="Two rounds, two lengths, one and two at a time.")]
Results = Annotated[
    Path | None,
    typer.Option(
        help="Add the line of JSON to bench.jsonl here.", show_default="benchmarks/results in a checkout"
    ),
]


def bench(
    model: options.Model = None,
    profiles: Profiles = None,
    dtype: Dtype = "auto",
    voice: options.VoiceName = None,
    concurrency: Concurrency = "1,2,4,8",
    texts: Texts = "word,short,medium,long",
    rounds: Rounds = 5,
    url: Url = None,
    peer: Peers = None,
    cold: Cold = True,
    distance: Far = False,
    quick: Quick = False,
    results: Results = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    choices: options.Choices = None,
    quiet: options.Quiet = False,
) -> None:
    """Measure speed: tables for people, then one line of JSON, last. Ctrl-C keeps what was measured."""
    from nightingale.bench import store
    from nightingale.bench.speed.run import Plan, new_result

    chosen = read_options(choices or [])
    levels, lengths = read_levels(concurrency), read_lengths(texts)
    plan = Plan(levels=levels, lengths=lengths, rounds=rounds)
    if quick:
        plan = Plan(levels=levels[:2], lengths=lengths[:2], rounds=min(rounds, 2))
    about = {"model": str(model or "default"), "url": url, "dtype": dtype, "device": device}
    result = new_result(**about, rounds=plan.rounds)
    peers = read_peers(peer)
    interrupted = False
    try:
        if url:
            _at_url(result, plan, url, model, voice, quiet)
        else:
            loading = {"device": device, "dtype": dtype, "offline": offline, **chosen}
            _here(result, plan, model, profiles, voice, loading, cold=cold, distance=distance, quiet=quiet)
        _beside(result, plan, peers, quiet)
        result["complete"] = True
    except KeyboardInterrupt:
        interrupted = True
        note("interrupted: what follows is what was measured until then")
    line = store.signed(result)
    store.append(line, "bench", results or store.results_folder())
    _print(line)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _at_url(
    result: dict[str, Any], plan: Any, url: str, model: str | None, voice: str | None, quiet: bool
) -> None:
    from nightingale.bench.speed.run import measure
    from nightingale.bench.speed.speakers import url_speaks

    speaks = url_speaks(url, model=model, voice=voice)
    with _bar(plan.requests, quiet=quiet) as step:
        measure(result, speaks, plan, who=url, on_request=step)


def _here(
    result: dict[str, Any],
    plan: Any,
    model: str | None,
    profiles: str | None,
    voice: str | None,
    loading: dict[str, Any],
    *,
    cold: bool,
    distance: bool,
    quiet: bool,
) -> None:
    from nightingale.engine.profiles import profile_named

    wanted = [name for name in (profiles or "").split(",") if name]
    for name in wanted:
        profile_named(name)
    import time

    from nightingale.bench.speed.cold import cold_start, gpu_peak_mb, peak_memory_mb
    from nightingale.bench.speed.floor import distances
    from nightingale.bench.speed.run import measure
    from nightingale.bench.speed.speakers import engine_speaks
    from nightingale.bench.speed.texts import TEXTS

    with busy(f"loading {model or 'the voice in the box'} …", quiet=quiet):
        from nightingale.engine.load import default_model, load_model
        from nightingale.engine.tts import TTS

        begun = time.perf_counter()
        plain = {key: loading[key] for key in ("device", "dtype", "offline")}
        extra = {key: value for key, value in loading.items() if key not in plain}
        loaded = load_model(model or default_model(), **plain, options=extra)
        result["load_ms"] = round(1000 * (time.perf_counter() - begun), 1)
    if loaded.notice is not None:
        note(f"note: {loaded.notice}")
    result["model"] = loaded.name
    names = wanted or [loaded.habits.profile]
    result["cold"], result["distance"] = [], []
    with _bar(plan.requests * len(names), quiet=quiet) as step:
        for name in names:
            with TTS.over(loaded, name) as tts:
                measure(result, engine_speaks(tts, voice), plan, who=name, on_request=step)
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


def read_peers(spelled: str | None) -> list[Any]:
    from nightingale.bench.peers.install import peer_named
    from nightingale.bench.peers.table import PEERS

    names = list(PEERS) if spelled == "all" else [name.strip() for name in (spelled or "").split(",")]
    return [peer_named(name) for name in names if name]


def _beside(result: dict[str, Any], plan: Any, peers: list[Any], quiet: bool) -> None:
    """The same texts by others, on as many threads as we have."""
    if not peers:
        return
    import torch

    from nightingale.bench.peers.client import PeerProcess
    from nightingale.bench.peers.install import homes, install
    from nightingale.bench.speed.run import measure

    result["peers"] = []
    for peer in peers:
        home = homes() / peer.name
        python = install(peer, home, (lambda _: None) if quiet else note)
        with (
            PeerProcess(peer, home, python, threads=torch.get_num_threads()) as process,
            _bar(plan.requests, quiet=quiet) as step,
        ):
            result["peers"].append({"who": peer.name, "what": peer.what, "load_ms": process.load_ms})
            measure(result, process.speaks, plan, who=peer.name, on_request=step)


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
    from nightingale.bench.speed.texts import TEXTS

    names = [name.strip() for name in spelled.split(",") if name.strip()]
    if unknown := [name for name in names if name not in TEXTS]:
        raise ConfigError(
            "no text of that length",
            got=", ".join(unknown),
            allowed=", ".join(TEXTS),
            fix="For example: --text short,long",
        )
    return names


@contextmanager
def _bar(requests: int, *, quiet: bool) -> Iterator[Callable[[], object]]:
    if quiet or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("measuring", total=requests)
        yield lambda: bars.advance(bar)


def _print(line: dict[str, Any]) -> None:
    from rich.console import Console

    from nightingale.bench.speed.table import CAPTION, tables

    # Where nobody watches there is no edge to keep to, and a table wrapped at 80 cannot be read.
    console = Console(width=None if sys.stdout.isatty() else 120)
    for table in tables(line):
        console.print(table)
    print("\n".join(CAPTION))
    print(json.dumps(line))
