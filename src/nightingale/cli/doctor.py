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
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from nightingale import __version__
from nightingale.cli import options
from nightingale.cli.console import check_import_name, format_size
from nightingale.cli.options import option
from nightingale.errors import DeviceError, NightingaleError
from nightingale.install import install_command

EXTRAS = {
    "hub": "huggingface_hub", "cpu": "llvmlite", "ja": "pykakasi", "zh": "spacy_pkuseg", "he": "dicta_onnx",
}  # fmt: skip
MAX_GPUS = 16


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `ok` is None for plain information."""

    name: str
    detail: str
    ok: bool | None = None


def doctor(
    as_json: options.AsJson = False,
    quick: Annotated[bool, option("Skip the self test.", "--quick")] = False,
    plan: Annotated[
        str | None,
        option(
            "Print instead which backends would run a model here in this profile, and why.",
            metavar="PROFILE",
        ),
    ] = None,
    model: options.Model = None,
    device: options.Device = "auto",
) -> None:
    """Report on this machine and speak one sentence. Exits 1 if something is broken."""
    if plan is not None:
        _print_plan(plan, model, device, as_json=as_json)
        return
    findings = [*_software(), *_hardware(), *_files(), *([] if quick else [_self_test()])]
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
    """Print which backend runs each role, in which precision, and why others were skipped."""
    from nightingale.backends import BACKENDS
    from nightingale.engine.load import plan_named

    plan, missing = plan_named(model, profile, device=device)
    machine = plan.machine
    if as_json:
        choices = [
            {"role": choice.role, "backend": choice.backend.name, "precision": choice.precision}
            | {"skipped": [asdict(skipped) for skipped in choice.skipped]}
            for choice in plan.choices
        ]
        about = {"model": plan.model, "profile": plan.profile.name, "stream": plan.profile.stream}
        print(
            json.dumps({**about, "machine": asdict(machine), "choices": choices, "weights_missing": missing})
        )
        return
    print(plan.heading)
    if machine.auto_reason:
        print(f"auto      {machine.device}, because {machine.auto_reason}")
    for choice in plan.choices:
        print(f"{choice.role:<10}{choice}")
        for skipped in choice.skipped:
            print(f"{'':<10}skipped {skipped.backend} {skipped.precision}: {skipped.reason}")
        tried = {choice.backend.name, *(skipped.backend for skipped in choice.skipped)}
        if untried := [backend.name for backend in BACKENDS if backend.name not in tried]:
            print(f"{'':<10}not tried: {', '.join(untried)}")
    print(f"stream    {plan.profile.stream}")
    if machine.problem:
        print(f"note      {machine.problem}")
    print(f"weights   {'all here' if missing is None else f'missing: {missing}'}")


def _software() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    yield Finding("nightingale", f"{__version__} in {Path(__file__).parents[1]}")
    try:
        check_import_name()
    except NightingaleError as error:
        yield Finding("import name", str(error), ok=False)
    yield Finding("python", f"{platform.python_version()} ({sys.executable})", ok=True)
    try:
        yield Finding("torch", version("torch"), ok=True)
    except PackageNotFoundError:
        yield Finding("torch", f"absent: {install_command('torch')}, for the official models and GPUs")


def _hardware() -> Iterator[Finding]:
    from nightingale.backends import BACKENDS
    from nightingale.backends.selection import find_machine

    cpu = find_machine(BACKENDS, "cpu")
    yield Finding("system", platform.platform())
    yield Finding("cpu", f"{platform.machine()}, {os.cpu_count()} cores")
    yield Finding("instruction set", cpu.instructions)
    if cpu.problem:
        yield Finding("cuda", cpu.problem)
    for device in (*(f"cuda:{index}" for index in range(MAX_GPUS)), "mlx", "mps"):
        try:
            machine = find_machine(BACKENDS, device)
        except DeviceError:
            continue
        free = "" if machine.free_bytes is None else f", {format_size(machine.free_bytes)} free"
        detail = f"{machine.name}{free}, {machine.instructions}"
        yield Finding(device, machine.problem or detail, ok=not machine.problem)


def _files() -> Iterator[Finding]:
    from nightingale.hub.cards import CARDS
    from nightingale.hub.find import state
    from nightingale.hub.hub_cache import cache_root
    from nightingale.voices.home import voices_folder
    from nightingale.voices.library import entries

    root = cache_root()
    existing = next(folder for folder in (root, *root.parents) if folder.exists())
    complete = [card.name for card in CARDS.values() if state(card).complete]
    yield Finding("model cache", str(root))
    yield Finding("free disk", f"{format_size(shutil.disk_usage(existing).free)} at {existing}")
    yield Finding("models here", ", ".join(complete) or "none of " + ", ".join(CARDS))
    yield Finding("voices", f"{len(entries())} ({voices_folder()})")
    for extra, module in EXTRAS.items():
        absent = f"absent: {install_command(extra)}"
        yield Finding(f"extra {extra}", module if find_spec(module) else absent)


def _self_test() -> Finding:
    """Load the built-in model and speak; report any error."""
    start_s = time.perf_counter()
    try:
        from nightingale.engine import TTS

        tts = TTS(offline=True)
        audio = tts.say("One, two, three.", seed=0)
    except (NightingaleError, ImportError, RuntimeError, OSError) as error:
        return Finding("self test", f"{type(error).__name__}: {error}", ok=False)
    times = f"{audio.seconds:.2f} s of audio in {time.perf_counter() - start_s:.2f} s including loading"
    detail = f"{tts.name}: {times}, rtf {audio.metrics.rtf:.3f}"
    return Finding("self test", detail, ok=len(audio.samples) > 0)
