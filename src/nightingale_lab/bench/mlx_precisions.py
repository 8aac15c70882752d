"""Wren by MLX beside wren by PyTorch: errors of T3's logits, CPU time, and words that recognizers get wrong.

    python -m nightingale_lab.bench.mlx_precisions [--sentences 100] [--recognizers tiny,moonshine]

Wren speaks the same sentences with the same seeds by PyTorch in float32, then by MLX: T3 in each precision, flow and
vocoder in float32 unless their precision is the subject. CPU time is that of all threads, over the seconds of audio;
on a Mac the GPU's time is not in it. Needs the judges (`make judges`) unless there are no recognizers
(`--recognizers ""`); `--sentences 0` measures logits only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import soundfile

from nightingale.backends.mlx.capabilities import missing_reason
from nightingale.backends.profiles import PROFILES, Preference
from nightingale.engine.load import load_model
from nightingale.engine.tts import TTS
from nightingale.errors import DeviceError
from nightingale_lab.bench.judges.client import judges_python
from nightingale_lab.bench.quality import Clip, ask_with, measure
from nightingale_lab.bench.sentences import sentences
from nightingale_lab.bench.wren import render

LIMITS: Final = {"int8": 0.02, "int4": 0.15}
"""Largest RMS error of the logits over their spread."""
MLX: Final = Preference("mlx", "float32")
SPOKEN: Final = {
    "PyTorch float32": (Preference("torch", "float32"), Preference("torch", "float32")),
    "MLX float32": (MLX, MLX),
    "MLX int8": (Preference("mlx", "int8"), MLX),
    "MLX int4": (Preference("mlx", "int4"), MLX),
    "MLX float32, renderer in float16": (MLX, Preference("mlx", "float16")),
}
"""Name -> preferences for T3, and for flow and vocoder."""


def speak(name: str, lines: list[str], folder: Path) -> tuple[list[Clip], float]:
    """Return the recordings, and the CPU time per second of audio."""
    asked = SPOKEN[name]
    profile = replace(PROFILES["balanced"], name=name, decoder=asked[:1], renderer=asked[1:])
    device = "mlx" if MLX in asked else "cpu"
    with TTS.over(load_model("wren", offline=True, options={}), profile, device=device) as tts:
        used = [(choice.backend.name, choice.precision) for choice in tts.plan.choices]
        assert used == [(one.backend, one.precision) for one in asked], used
        started = time.process_time()
        clips, _ = render(tts, lines, folder)
        cpu_s = time.process_time() - started
    return clips, cpu_s / sum(soundfile.info(clip.wav).duration for clip in clips)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--recognizers", default="tiny,moonshine")
    parser.add_argument("--only", nargs="*", default=list(SPOKEN), choices=list(SPOKEN))
    asked = parser.parse_args()
    if (reason := missing_reason()) is not None:
        raise DeviceError("MLX cannot be used", got=reason)
    # After `missing_reason`, which loads a fast BLAS: the first import of MLX decides which one it uses.
    from nightingale_lab.bench.mlx_logits import logit_error

    for precision, limit in LIMITS.items():
        error = 100 * logit_error(precision)
        _tell(f"logits in {precision}: {error:.2f} % of their spread, at most {100 * limit:g} %")
    lines, recognizers = sentences("wren_200")[: asked.sentences], asked.recognizers.split(",")
    reference: dict[str, float] = {}
    for name in asked.only if lines else ():
        with tempfile.TemporaryDirectory() as folder:
            clips, cpu_time = speak(name, lines, Path(folder))
            rates = {"CPU time": cpu_time}
            if asked.recognizers:
                quality = measure(clips, ask_with(judges_python()), recognizers)
                rates |= {one: 100 * (quality.wer(one) or 0.0) for one in recognizers}
        reference = reference or rates
        words = [
            f"{one} {rates[one]:.2f} % ({rates[one] - reference[one]:+.2f})"
            for one in rates
            if one != "CPU time"
        ]
        told = f"CPU time {cpu_time:.2f} ({cpu_time / reference['CPU time']:.2f} times the first)"
        _tell(f"{len(lines)} sentences, {name}: {', '.join([told, *words])}")


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
