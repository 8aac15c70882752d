"""Judge wren and other small engines on the same sentences: words, Distill-MOS and DNSMOS.

    make judges
    python -m nightingale_lab.bench peer_quality                  # wren and all peers, 200 sentences
    python -m nightingale_lab.bench peer_quality --every 10 --engine kokoro

Each engine speaks with its default voice. The sentences, recognizers and rules are those of
`python -m nightingale_lab.bench.wren`. Times are not measured, so the machine may be busy.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nightingale import TTS
from nightingale_lab.bench import runner
from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.peers.client import PeerProcess
from nightingale_lab.bench.peers.install import homes, install
from nightingale_lab.bench.peers.peer_list import ALL, PEERS
from nightingale_lab.bench.quality import Ask, Clip, ask_with, measure
from nightingale_lab.bench.runner import option
from nightingale_lab.bench.sentences import sentences

JUDGES = ("tiny", "base", "distillmos", "dnsmos")
Speak = Callable[[str, int, Path], object]


def judged(speak: Speak, lines: Sequence[str], folder: Path, ask: Ask | None) -> dict[str, Any]:
    """Speak the lines into a folder and judge them."""
    folder.mkdir()
    clips = [Clip(wav=folder / f"{number:03d}.wav", text=line) for number, line in enumerate(lines)]
    for seed, clip in enumerate(clips):
        speak(clip.text, seed, clip.wav)
    judges = JUDGES if ask else ()
    found = measure(clips, ask, judges, lambda done, of: sys.stderr.write(f"\r{folder.name} {done}/{of} "))
    kept = ("clips", "audio_seconds", "wer", "distill_mos", "dnsmos", "errors")
    return {key: found.summary()[key] for key in kept}


def speak_with(tts: TTS) -> Speak:
    return lambda text, seed, wav: tts.say(text, seed=seed).save(wav)


def judge_engines(options: argparse.Namespace) -> dict[str, Any]:
    names = options.engine.split(",")
    ask = None if options.tiny else ask_with(judges_python(), options.workers)
    lines = sentences("wren_200")[:: options.every][: 1 if options.tiny else None]
    engines: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            folder = Path(scratch) / name
            if name == "wren":
                with TTS() as tts:
                    engines[name] = judged(speak_with(tts), lines, folder, ask)
            else:
                home = homes() / name
                python = install(PEERS[name], home, lambda line: sys.stderr.write(f"{line}\n"))
                with PeerProcess(PEERS[name], home, python, threads=2) as process:
                    engines[name] = judged(process.save, lines, folder, ask)
    head = ("engine", "clips", "WER, tiny.en", "WER, base", "Distill-MOS", "lowest tenth", "DNSMOS")
    rows = [
        (
            name,
            row["clips"],
            *(row["wer"].get(judge) for judge in ("tiny", "base")),
            *(row["distill_mos"].get(part) for part in ("mean", "p10")),
            row["dnsmos"].get("ovrl"),
        )
        for name, row in engines.items()
    ]
    runner.print_table("Quality", head, rows)
    return {"engines": engines, "sentences": "wren_200", "every": options.every}


def main(arguments: Sequence[str] | None = None) -> None:
    runner.run(
        __doc__,
        "peers",
        judge_engines,
        option("--every", type=int, default=1, help="only every so many sentences"),
        option("--workers", type=int, default=1, help="processes of judges"),
        option("--engine", default=",".join(("wren", *ALL)), help="which engines"),
        tiny={"engine": "wren"},
        arguments=arguments,
    )
