"""`nightingale doctor`: report what this machine has, and whether synthesis works."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nightingale import __version__
from nightingale.cli import options
from nightingale.cli.console import format_size
from nightingale.errors import DeviceError, NightingaleError

if TYPE_CHECKING:
    from nightingale.engine.plan import Machine

EXTRAS = {"ja": "pykakasi", "zh": "spacy_pkuseg", "he": "dicta_onnx", "cpu": "onnxruntime"}
SELF_TEST_TEXT = "One, two, three."


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `ok` is None for plain information."""

    name: str
    detail: str
    ok: bool | None = None


def doctor(
    as_json: options.AsJson = False,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the self test.")] = False,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="Print instead which backends would run a model here in this profile, and why.",
            show_default=False,
        ),
    ] = None,
    model: options.Model = None,
    device: options.Device = "auto",
) -> None:
    """Report on this machine and speak one sentence. Exits 1 if something is broken."""
    if plan is not None:
        _print_plan(plan, model, device, as_json=as_json)
        return
    findings = [*_software(), *_hardware(), *_files(), *_extras()]
    if not quick:
        findings.append(_self_test())
    healthy = all(finding.ok is not False for finding in findings)
    if as_json:
        print(json.dumps({"healthy": healthy, "findings": [asdict(finding) for finding in findings]}))
    else:
        for finding in findings:
            mark = {True: "ok", False: "BROKEN", None: ""}[finding.ok]
            print(f"{finding.name:<18}{mark:<8}{finding.detail}")
    if not healthy:
        raise typer.Exit(1)


def _print_plan(profile: str, model: str | None, device: str, *, as_json: bool) -> None:
    """Print what runs where, in which precision, and why."""
    from nightingale.engine.load import plan_named
    from nightingale.engine.profiles import profile_named

    plan, missing = plan_named(model, profile_named(profile), device=device)
    if as_json:
        parts = [asdict(part) for part in plan.parts]
        print(json.dumps(asdict(plan) | {"parts": parts, "weights_missing": missing}))
        return
    machine = plan.machine
    print(f"{plan.model}, {plan.profile}, on {machine.device} ({machine.name}, {machine.instructions})")
    for part in plan.parts:
        print(f"{part.stage:<10}{part.way:<9}{part.dtype:<10}{part.why}")
        for reason in (*part.refused, *part.foregone):
            print(f"{'':<10}refused: {reason}")
    if machine.obstacle:
        print(f"note      {machine.obstacle}")
    print(f"weights   {'all here' if missing is None else f'missing: {missing}'}")


def _machine(device: str) -> Machine:
    """Describe a device. Raises DeviceError if it cannot be used."""
    from nightingale.engine.load import plan_named
    from nightingale.engine.profiles import profile_named

    plan, _ = plan_named("wren", profile_named("exact"), device=device)
    return plan.machine


def _software() -> list[Finding]:
    try:
        torch = Finding("torch", version("torch"), ok=True)
    except PackageNotFoundError:
        torch = Finding("torch", "absent")
    supported = sys.version_info >= (3, 11)
    return [
        Finding("nightingale", f"{__version__} in {Path(__file__).parents[1]}"),
        Finding("python", f"{platform.python_version()} ({sys.executable})", ok=supported),
        torch,
    ]


def _hardware() -> Iterator[Finding]:
    yield Finding("system", platform.platform())
    yield Finding("cpu", f"{platform.machine()}, {os.cpu_count()} cores")
    cpu = _machine("cpu")
    yield Finding("instruction set", cpu.instructions)
    if cpu.obstacle:
        yield Finding("cuda", cpu.obstacle)
    for index in count():
        try:
            gpu = _machine(f"cuda:{index}")
        except DeviceError:
            break
        free = "" if gpu.free_bytes is None else f", {format_size(gpu.free_bytes)} free"
        obstacle = f" ({gpu.obstacle})" if gpu.obstacle else ""
        detail = f"{gpu.name}{free}, {gpu.instructions}{obstacle}"
        yield Finding(gpu.device, detail, ok=not gpu.obstacle)


def _files() -> list[Finding]:
    from nightingale.hub.cards import CARDS
    from nightingale.hub.files import cache_root
    from nightingale.hub.find import state
    from nightingale.voices.home import voices_folder
    from nightingale.voices.library import entries

    root = cache_root()
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    complete = [one.name for card in CARDS.values() if (one := state(card)).complete]
    return [
        Finding("model cache", str(root)),
        Finding("free disk", f"{format_size(shutil.disk_usage(existing).free)} at {existing}"),
        Finding("models here", ", ".join(complete) or "none of " + ", ".join(CARDS)),
        Finding("voices", f"{len(entries())} ({voices_folder()})"),
    ]


def _extras() -> Iterator[Finding]:
    for extra, module in EXTRAS.items():
        absent = f"absent: pip install 'nightingale-tts[{extra}]'"
        yield Finding(f"extra {extra}", module if find_spec(module) else absent)


def _self_test() -> Finding:
    """Load the built-in model and speak; report any error."""
    start = time.perf_counter()
    try:
        from nightingale.engine import TTS

        tts = TTS(offline=True)
        audio = tts.say(SELF_TEST_TEXT, seed=0)
    except (NightingaleError, ImportError, RuntimeError, OSError) as error:
        return Finding("self test", f"{type(error).__name__}: {error}", ok=False)
    seconds = time.perf_counter() - start
    times = f"{audio.seconds:.2f} s of audio in {seconds:.2f} s including loading"
    detail = f"{tts.name}: {times}, rtf {audio.metrics.rtf:.3f}"
    return Finding("self test", detail, ok=len(audio.samples) > 0)
