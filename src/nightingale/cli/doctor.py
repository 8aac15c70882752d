"""`nightingale doctor`: what this machine has, and whether it speaks."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from nightingale import __version__
from nightingale.cli import options
from nightingale.cli.talk import size
from nightingale.errors import NightingaleError

EXTRAS = {"ja": "pykakasi", "zh": "spacy_pkuseg", "he": "dicta_onnx", "cpu": "onnxruntime"}
SELF_TEST = "One, two, three."


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. `ok` is None where there is nothing to judge."""

    name: str
    detail: str
    ok: bool | None = None


def doctor(
    as_json: options.AsJson = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the spoken self test.")] = False,
    plan: Annotated[
        str | None,
        typer.Option(
            metavar="PROFILE",
            help="Print instead what would run a model here in this profile, and why.",
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
    """What runs where, in which precision, why, and what was refused."""
    from nightingale.backends.profiles import profile_named
    from nightingale.engine.load import plan_named

    made, missing = plan_named(model, profile_named(profile), device=device)
    if as_json:
        told = asdict(made) | {"parts": [asdict(part) for part in made.parts], "weights_missing": missing}
        print(json.dumps(told))
        return
    machine = made.machine
    print(f"{made.model}, {made.profile}, on {machine.device} ({machine.name}, {machine.instructions})")
    for part in made.parts:
        print(f"{part.stage:<10}{part.way:<9}{part.dtype:<10}{part.why}")
        for refusal in (*part.refused, *part.foregone):
            print(f"{'':<10}refused: {refusal}")
    if machine.obstacle:
        print(f"note      {machine.obstacle}")
    print(f"weights   {'all here' if missing is None else f'missing: {missing}'}")


def _software() -> list[Finding]:
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    return [
        Finding(name="nightingale", detail=f"{__version__} in {Path(__file__).parents[1]}"),
        Finding(
            name="python",
            detail=f"{platform.python_version()} ({sys.executable})",
            ok=sys.version_info >= (3, 11),
        ),
        Finding(name="torch", detail=f"{torch.__version__}, built for {built}", ok=True),
    ]


def _hardware() -> list[Finding]:
    import torch

    cpu = f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} torch threads"
    found = [
        Finding(name="system", detail=platform.platform()),
        Finding(name="cpu", detail=cpu),
        Finding(name="instruction set", detail=torch.backends.cpu.get_cpu_capability()),
    ]
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        arch = f"sm_{card.major}{card.minor}"
        known = arch in torch.cuda.get_arch_list()
        detail = (
            f"{card.name}, {size(card.total_memory)}, {arch}{'' if known else ' (not in this torch build)'}"
        )
        found.append(Finding(name=f"cuda:{index}", detail=detail, ok=known))
    if torch.backends.mps.is_available():
        found.append(Finding(name="mps", detail="available", ok=True))
    return found


def _files() -> list[Finding]:
    from nightingale.hub.cache import cache_root
    from nightingale.hub.cards import CARDS
    from nightingale.hub.find import state
    from nightingale.voices.home import voices_folder
    from nightingale.voices.library import entries

    root = cache_root()
    there = next(folder for folder in (root, *root.parents) if folder.exists())
    here = [one.name for card in CARDS.values() if (one := state(card)).complete]
    return [
        Finding(name="model cache", detail=str(root)),
        Finding(name="free disk", detail=f"{size(shutil.disk_usage(there).free)} at {there}"),
        Finding(name="models here", detail=", ".join(here) or "none of " + ", ".join(CARDS)),
        Finding(name="voices", detail=f"{len(entries())} ({voices_folder()})"),
    ]


def _extras() -> list[Finding]:
    found = []
    for extra, module in EXTRAS.items():
        absent = f"absent: pip install 'nightingale-tts[{extra}]'"
        found.append(Finding(name=f"extra {extra}", detail=module if find_spec(module) else absent))
    return found


def _self_test() -> Finding:
    """Load the embedded voice and speak; whatever goes wrong is the finding."""
    start = time.perf_counter()
    try:
        from nightingale.engine import TTS

        tts = TTS(offline=True)
        audio = tts.say(SELF_TEST, seed=0)
    except (NightingaleError, ImportError, RuntimeError, OSError) as error:
        return Finding(name="self test", detail=f"{type(error).__name__}: {error}", ok=False)
    took_s = time.perf_counter() - start
    detail = (
        f"{tts.name} spoke {audio.seconds:.2f} s in {took_s:.2f} s with loading, rtf {audio.metrics.rtf:.3f}"
    )
    return Finding(name="self test", detail=detail, ok=len(audio.samples) > 0)
