"""Voice conversion: upstream's ChatterboxVC on a recording, against our tokens, flow and vocoder.

Upstream samples its noise from torch's global generator; setting its seed and repeating the calls in their order
gives both sides the same noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nightingale.audio.crossfade import apply_fade_in
from nightingale.audio.resample import resample
from nightingale.backends.torch.encoders import TorchEncoders
from nightingale.clocks import ANALYSIS_RATE_HZ, CLOCKS
from nightingale.engine.requests.recordings import read_recording
from nightingale.models.chatterbox.build import VoiceEncoders
from nightingale.models.chatterbox.hift.generator import Hift
from nightingale.voices.voice import Voice
from nightingale_lab.parity.clips import clip
from nightingale_lab.parity.hooks import arguments_of
from nightingale_lab.parity.stages import flow_stage, vocoder_stage
from nightingale_lab.parity.table import Rows
from nightingale_lab.parity.upstream_weights import UpstreamNetworks
from nightingale_lab.random_models import Networks
from nightingale_lab.upstream.networks import quiet

SEED = 17
SECONDS, RATE_HZ = 6.3, 22_050


@dataclass(frozen=True, slots=True)
class Converted:
    ids: Tensor
    """(tokens,): the speech tokens of the recording."""
    samples: Tensor
    """(1, samples)"""


def write_recording(folder: Path) -> Path:
    """Write a mono recording at a rate that no network uses."""
    import soundfile

    path = folder / "recording.wav"
    soundfile.write(path, clip(SECONDS, RATE_HZ, 3), RATE_HZ, subtype="PCM_16")
    return path


def run_theirs(networks: UpstreamNetworks, reference: dict[str, Any], path: Path) -> Converted:
    """Convert by upstream's public class, built without the watermark it would load."""
    from chatterbox.vc import ChatterboxVC

    wrapper = ChatterboxVC.__new__(ChatterboxVC)
    wrapper.s3gen, wrapper.sr, wrapper.device = networks.s3gen, CLOCKS.sample_rate_hz, "cpu"
    wrapper.ref_dict = dict(reference)
    wrapper.watermarker = SimpleNamespace(apply_watermark=lambda wav, sample_rate: wav)  # noqa: ARG005
    torch.manual_seed(SEED)
    with quiet(), arguments_of(networks.s3gen.flow.input_embedding, 0) as embedded:
        samples = wrapper.generate(str(path))
    prompt = reference["prompt_token"].shape[1]
    return Converted(embedded[0][0, prompt:], samples)


@torch.inference_mode()
def run_ours(networks: Networks, encoders: VoiceEncoders, voice: Voice, path: Path) -> Converted:
    samples, rate_hz = read_recording(path)
    ids = TorchEncoders(encoders).tokenize(resample(samples, rate_hz, ANALYSIS_RATE_HZ))
    prompt = len(voice.flow_prompt_ids)
    flow, hift = networks.flow, networks.vocoder
    assert isinstance(hift, Hift)
    noise = flow_stage.draw_noise(
        meanflow=flow.config.meanflow, prompt_tokens=prompt, tokens=len(ids), seed=SEED
    )
    mel = flow(
        torch.tensor([[*voice.flow_prompt_ids.tolist(), *ids.tolist()]]),
        prompt_mel=torch.tensor(voice.flow_prompt_mel.T[None]),
        speaker=torch.tensor(voice.flow_speaker[None]),
        noise=noise,
    )
    excitation = vocoder_stage.draw_excitation(mel.shape[2], seed=None)  # after the flow's noise
    _, _, wav = vocoder_stage.run_ours(hift, mel, *excitation)
    return Converted(torch.from_numpy(ids), torch.from_numpy(apply_fade_in(wav[0].numpy(), 0))[None])


def compare(rows: Rows, ours: Converted, theirs: Converted) -> None:
    rows.same_ids("conversion: speech ids", ours.ids, theirs.ids, distinct=50)
    rows.close("conversion: waveform", ours.samples, theirs.samples, absolute=1e-3)
