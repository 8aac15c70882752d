"""A blind A/B page: pairs of clips in random order, without labels until the last answer.

One static file that needs no network. The browser shuffles the pairs, and the two clips of each, whenever the
page is opened; it counts answers and prints the share of each side with a confidence interval and an exact
binomial test.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nightingale.audio.loudness import integrated_loudness
from nightingale.audio.read import read_audio
from nightingale.errors import ConfigError
from nightingale_lab.bench.report.listen import mp3_uri
from nightingale_lab.bench.report.rows import Line

HERE = Path(__file__).parent
STYLE = """
#page figure { padding: .5rem 0; } #page figcaption { font-size: 1.2rem; color: inherit; }
.answers { display: flex; flex-wrap: wrap; gap: .5rem; } .count, .hint { color: var(--dim); }
button { font: inherit; padding: .6rem 1.2rem; border: 1px solid var(--dim); border-radius: .4rem;
  background: none; color: inherit; cursor: pointer; } button:disabled { opacity: .4; cursor: default; }
textarea { width: 100%; font: .8rem monospace; } td { white-space: normal; }
"""
BEFORE = (
    "Two clips of the same text, in random order. Nothing tells which is which until the last answer. "
    "Answer by what you hear; “no difference” is an answer."
)


def folders_of(verify: Sequence[Line]) -> tuple[Path, Path, list[str]]:
    """Return the recordings of the newest comparison of `verify`: both folders, and the texts.

    Raises:
        ConfigError: There is none, or its recordings are gone.
    """
    for line in reversed(verify):
        wavs = [Path(wav) for wav in line["facts"].get("wavs", ())]
        if line.get("against") and wavs and wavs[0].is_file():
            own = wavs[0].parent
            return own, own.parent / line["against"], list(line["facts"].get("texts", ()))
    raise ConfigError(
        "no recordings of two profiles",
        allowed="a run of `nightingale verify --against PROFILE`, or two folders",
        fix="Run it, or name two folders of WAV files: --folder A --folder B.",
    )


def blind_page(first: Path, second: Path, texts: Sequence[str] = (), *, most: int = 20) -> str:
    """Return the page of two folders with recordings of the same names.

    Raises:
        ConfigError: They have no file name in common.
    """
    names = sorted({path.name for path in first.glob("*.wav")} & {path.name for path in second.glob("*.wav")})
    if not names:
        raise ConfigError(
            "nothing to compare",
            got=f"{first}, {second}",
            allowed="two folders with WAV files of the same names",
        )
    spoken = dict(zip(names, texts, strict=False)) if len(texts) == len(names) else {}
    pairs = [
        {"text": spoken.get(name, name), "sounds": equally_loud(first / name, second / name)}
        for name in names[:most]
    ]
    # In a script element, only "</" could end the data early.
    data = json.dumps({"labels": [first.name, second.name], "pairs": pairs}).replace("</", "<\\/")
    style = (HERE / "style.css").read_text(encoding="utf-8") + STYLE
    script = (HERE / "blind.js").read_text(encoding="utf-8")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Nightingale: blind A/B</title><style>{style}</style></head>"
        f'<body><h1>Which one is better?</h1><p>{BEFORE}</p><main id="page"></main>'
        f'<script type="application/json" id="pairs">{data}</script><script>{script}</script></body></html>'
    )


def equally_loud(*wavs: Path) -> list[str]:
    """Return clips as data URIs, all as loud as the quietest, because the louder one is preferred otherwise."""
    clips = [read_audio(wav) for wav in wavs]
    levels = [integrated_loudness(samples, rate_hz) for samples, rate_hz in clips]
    quietest = min(levels)
    return [
        mp3_uri(
            samples * np.float32(10 ** ((quietest - level) / 20)) if np.isfinite(quietest) else samples,
            rate_hz,
        )
        for (samples, rate_hz), level in zip(clips, levels, strict=True)
    ]
