"""Copy-synthesis through each stage: which one limits the quality, and by how much?

    python -m nightingale_lab.bench.stages CLIPS OUT [--model FOLDER]

CLIPS holds recordings at 24 kHz. OUT gets three folders of the same names: `original`, `vocoder` (the true
mel through the vocoder) and `flow` (the true speech tokens through flow and vocoder, the voice taken from the
clip). What T3 adds is the distance from there to what the engine says. Each folder is then judged by
`python -m nightingale_lab.bench.score OUT/flow TEXTS`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from nightingale.audio.read import read_audio
from nightingale.audio.resample import resample
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.audio.encoders.wav import wav_bytes
from nightingale.backends.torch.mel_stream import render_mel
from nightingale.engine.load import load_model
from nightingale.engine.model import Model, default_model
from nightingale.backends.torch.sample_stream import render_samples
from nightingale.engine.voice_lookup import VoiceResolver
from nightingale.models.layers.mel import FlowMel
from nightingale.types import Samples

STAGES = ("original", "vocoder", "flow")
SEED = 1


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="nightingale_lab.bench.stages", description=__doc__)
    parser.add_argument("clips", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default=None, help="default: the model in the package")
    options = parser.parse_args(argv)
    model = load_model(
        options.model or default_model(), device="cpu", dtype="float32", offline=True, options={}
    )
    for stage in STAGES:
        (options.out / stage).mkdir(parents=True, exist_ok=True)
    for path in sorted(options.clips.glob("*.wav")):
        for stage, samples in copies(model, path).items():
            (options.out / stage / path.name).write_bytes(wav_bytes(samples, CLOCKS.sample_rate_hz))


@torch.inference_mode()
def copies(model: Model, clip: Path) -> dict[str, Samples]:
    """The clip as it is, after the vocoder alone, and after flow and vocoder."""
    samples, rate_hz = read_audio(clip)
    original = resample(samples, rate_hz, CLOCKS.sample_rate_hz)
    mel = FlowMel()(torch.from_numpy(original)[None])[0]  # (mel, frames)
    heard = torch.from_numpy(resample(original, CLOCKS.sample_rate_hz, ANALYSIS_RATE_HZ))
    ids = model.encoders().speech_tokenizer.tokenize(heard).tolist()
    voice = VoiceResolver(model).find(clip)
    return {
        "original": original,
        "vocoder": render_samples(model.networks.hift, mel, seed=SEED),
        "flow": render_samples(
            model.networks.hift, render_mel(model.networks.flow, ids, voice, seed=SEED), seed=SEED
        ),
    }


if __name__ == "__main__":
    main()
