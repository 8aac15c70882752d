"""Measure peers on the same texts: small models, and upstream over the same random weights as ours."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nightingale_lab.bench.peers.client import PeerProcess
from nightingale_lab.bench.peers.install import homes, install
from nightingale_lab.bench.peers.peer_list import Peer
from nightingale_lab.bench.speed.bench_run import BenchPlan, measure
from nightingale_lab.bench.speed.targets import engine_target
from nightingale_lab.upstream.families import TOKENS_PER_TEXT_ID

Progress = Callable[[str], AbstractContextManager[Callable[[], object]]]
"""Opens a progress bar for a target, and returns the function to call after each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """Settings that all peers share."""

    threads: int
    profiles: Sequence[str] = ()
    """Our profiles to compare with upstream; the model's default if empty."""
    device: str = "auto"
    upstream_python: Path | None = None
    """The Python of an environment that has upstream; otherwise one is made."""
    report: Callable[[str], object] = lambda _: None


def measure_peers(
    result: dict[str, Any],
    plan: BenchPlan,
    peers: Sequence[tuple[Peer, str]],
    settings: PeerSettings,
    progress: Progress,
) -> None:
    """Add the rows of each peer to the result, and its description under `peers`."""
    result["peers"] = []
    for peer, size in peers:
        home = homes() / peer.name
        given = settings.upstream_python if peer.sizes else None
        python = given or install(peer, home, settings.report)
        if size:
            _measure_upstream(result, plan, peer, size, python, settings, progress)
            continue
        with (
            PeerProcess(peer, home, python, threads=settings.threads) as process,
            progress(peer.name) as step,
        ):
            result["peers"].append({"who": peer.name, "what": peer.what, "load_ms": process.load_ms})
            measure(result, process.synthesize, plan, who=peer.name, on_request=step)


def _measure_upstream(
    result: dict[str, Any],
    plan: BenchPlan,
    peer: Peer,
    size: str,
    python: Path,
    settings: PeerSettings,
    progress: Progress,
) -> None:
    """Measure upstream, then our engine, one at a time in memory. The gigabytes of weights are deleted."""
    with tempfile.TemporaryDirectory(prefix="nightingale-upstream-") as folder:
        weights, who = Path(folder), f"{peer.name} {size}"
        settings.report(f"making random weights of {size}'s size …")
        with (
            PeerProcess(peer, weights, python, size, folder, threads=settings.threads) as process,
            progress(who) as step,
        ):
            result["peers"].append({"who": who, "what": f"{peer.what}; random weights"})
            measure(result, process.synthesize, plan, who=who, on_request=step)
        model = same_weights(weights, size)
        from nightingale.engine.tts import TTS

        for profile in settings.profiles or ["default"]:
            tts = TTS.over(model, profile, device=settings.device)
            who = f"ours {size} {tts.plan.profile.name}"
            with tts, progress(who) as step:
                result["peers"].append({"who": who, "what": "Nightingale, over upstream's weights"})
                measure(result, engine_target(tts), plan, who=who, on_request=step)


def same_weights(folder: Path, size: str) -> Any:
    """Load our model from the files that upstream wrote (a nightingale.engine.load.Model).

    A tokenizer cannot be random: on both sides each byte of the text is an id. Random weights do not stop by
    themselves, so both sides make a number of tokens that depends on the length of the text.
    """
    from nightingale.engine.noise_model import ByteTokenizer
    from nightingale.text.frontend import Frontend
    from nightingale_lab.reference import load

    for name, text in EMPTY_TOKENIZERS.items():
        (folder / name).write_text(text, encoding="utf-8")
    model = load(folder, kind=size)
    model = model.with_defaults(guarded=False, split_chars=None, tokens_per_text_id=TOKENS_PER_TEXT_ID)
    return replace(model, frontend=Frontend(tokenizer=ByteTokenizer()))


_TAGS = {tag: number for number, tag in enumerate(("[STOP]", "[UNK]", "[SPACE]", "[START]"))}
_EMPTY = json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": _TAGS, "merges": []}})
EMPTY_TOKENIZERS = {
    "tokenizer.json": _EMPTY,
    "grapheme_mtl_merged_expanded_v1.json": _EMPTY,
    "vocab.json": "{}",
    "merges.txt": "#version: 0.2\n",
    "added_tokens.json": "{}",
}
"""Files that the loader requires; no text is encoded with them."""
