"""Peers beside us, on the same texts: those of wren's class, and upstream over the same random weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nightingale_lab.bench.peers import upstream
from nightingale_lab.bench.peers.client import PeerProcess
from nightingale_lab.bench.peers.install import homes, install
from nightingale_lab.bench.peers.table import Peer
from nightingale_lab.bench.speed.run import Plan, measure
from nightingale_lab.bench.speed.speakers import engine_speaks

Bar = Callable[[str], AbstractContextManager[Callable[[], object]]]
"""Opens something, by who is measured, that is told of each request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all of them share."""

    threads: int
    profiles: Sequence[str] = ()
    """Ours, where we are measured beside upstream; the model's own if none."""
    device: str = "auto"
    upstream_python: Path | None = None
    """Of an environment that has upstream already; else one is made."""
    say: Callable[[str], object] = lambda _: None


def beside(
    result: dict[str, Any], plan: Plan, peers: Sequence[tuple[Peer, str]], setting: Setting, bar: Bar
) -> None:
    """Adds the rows of each to the result, and what each is under `peers`."""
    result["peers"] = []
    for peer, size in peers:
        home = homes() / peer.name
        given = setting.upstream_python if peer.sizes else None
        python = given or install(peer, home, setting.say)
        if size:
            _beside_upstream(result, plan, peer, size, python, setting, bar)
            continue
        with PeerProcess(peer, home, python, threads=setting.threads) as process, bar(peer.name) as step:
            result["peers"].append({"who": peer.name, "what": peer.what, "load_ms": process.load_ms})
            measure(result, process.speaks, plan, who=peer.name, on_request=step)


def _beside_upstream(
    result: dict[str, Any], plan: Plan, peer: Peer, size: str, python: Path, setting: Setting, bar: Bar
) -> None:
    """First upstream, then we, each alone in memory. The weights, gigabytes, do not outlive the run."""
    with tempfile.TemporaryDirectory(prefix="nightingale-upstream-") as folder:
        weights, who = Path(folder), f"{peer.name} {size}"
        setting.say(f"making random weights of {size}'s size …")
        with (
            PeerProcess(peer, weights, python, size, folder, threads=setting.threads) as process,
            bar(who) as step,
        ):
            result["peers"].append({"who": who, "what": f"{peer.what}; random weights"})
            measure(result, process.speaks, plan, who=who, on_request=step)
        model = same_weights(weights, size, setting.device)
        from nightingale.engine.tts import TTS

        for profile in setting.profiles or [model.defaults.profile]:
            who = f"ours {size} {profile}"
            with TTS.over(model, profile) as tts, bar(who) as step:
                result["peers"].append({"who": who, "what": "Nightingale, over upstream's weights"})
                measure(result, engine_speaks(tts), plan, who=who, on_request=step)


def same_weights(folder: Path, size: str, device: str) -> Any:
    """Our model of the files that upstream left in a folder: nightingale.engine.load.Model.

    A tokenizer cannot be random: on both sides each byte of the text is an id. And where random weights would
    end nobody knows, so that is told as well.
    """
    from nightingale.engine.load import load_model
    from nightingale.engine.standin import ByteTokenizer
    from nightingale.text.frontend import Frontend

    for name, text in EMPTY_TOKENIZERS.items():
        (folder / name).write_text(text, encoding="utf-8")
    model = load_model(folder, device=device, dtype="auto", offline=True, options={"kind": size})
    defaults = replace(
        model.defaults,
        guarded=False,
        split_chars=None,
        tokens_per_text_id=upstream.TOKENS_PER_TEXT_ID,
    )
    return replace(model, defaults=defaults, frontend=Frontend(tokenizer=ByteTokenizer()))


_TAGS = {tag: number for number, tag in enumerate(("[STOP]", "[UNK]", "[SPACE]", "[START]"))}
_EMPTY = json.dumps({"version": "1.0", "model": {"type": "BPE", "vocab": _TAGS, "merges": []}})
EMPTY_TOKENIZERS = {
    "tokenizer.json": _EMPTY,
    "grapheme_mtl_merged_expanded_v1.json": _EMPTY,
    "vocab.json": "{}",
    "merges.txt": "#version: 0.2\n",
    "added_tokens.json": "{}",
}
"""So that the loader finds what it looks for; nothing is read with them."""
