"""Copy synthesis through each stage, to find the stage that limits the quality.

    python -m nightingale_lab.bench.copy_synthesis CLIPS OUT [--model FOLDER]

CLIPS holds recordings. OUT gets three folders with the same file names: `original`, `vocoder` (the true mel
through the vocoder) and `flow` (the true speech tokens through flow and vocoder, with the voice of the clip).
The rest of the distance to the engine's output is T3's. Score each folder with
`python -m nightingale_lab.bench.score OUT/flow TEXTS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from nightingale.audio.read import read_audio
from nightingale.audio.resample import resample
from nightingale.audio.samples import wav_bytes
from nightingale.backends.torch.weights import load_voice_encoders
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.engine.load import Model
from nightingale.models.layers.mel import FlowMel
from nightingale.types import Samples
from nightingale_lab import reference

STAGES = ("original", "vocoder", "flow")
SEED = 1


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="nightingale_lab.bench.copy_synthesis", description=__doc__)
    parser.add_argument("clips", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default=None, help="default: the model in the package")
    options = parser.parse_args(argv)
    model = reference.load(options.model)
    for stage in STAGES:
        (options.out / stage).mkdir(parents=True, exist_ok=True)
    for path in sorted(options.clips.glob("*.wav")):
        for stage, samples in copies(model, path).items():
            (options.out / stage / path.name).write_bytes(wav_bytes(samples, CLOCKS.sample_rate_hz))


@torch.inference_mode()
def copies(model: Model, clip: Path) -> dict[str, Samples]:
    """Return the clip, its copy by the vocoder alone, and its copy by flow and vocoder."""
    samples, rate_hz = read_audio(clip)
    original = resample(samples, rate_hz, CLOCKS.sample_rate_hz)
    mel = FlowMel()(torch.from_numpy(original)[None])[0]  # (mel, frames)
    analysed = torch.from_numpy(resample(original, CLOCKS.sample_rate_hz, ANALYSIS_RATE_HZ))
    ids = load_voice_encoders(model.source).speech_tokenizer.tokenize(analysed).tolist()
    flow_mel = reference.mel_of(model, ids, seed=SEED, voice=clip)
    return {
        "original": original,
        "vocoder": reference.samples_of(model, mel, seed=SEED),
        "flow": reference.samples_of(model, flow_mel, seed=SEED),
    }


if __name__ == "__main__":
    main()
