"""Speech ids to mel frames."""

from __future__ import annotations

import torch
from torch import Tensor

from nightingale.clocks import CLOCKS
from nightingale.engine.randomness import NoiseTape
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.voices.voice import Voice

NOISE_BLOCK_FRAMES = 64


def audible(ids: list[int]) -> list[int]:
    """Only ids that name a sound: control ids never reach the flow, in any family."""
    return [token for token in ids if token < SPEECH_CODES]


@torch.inference_mode()
def render_mel(flow: Flow, ids: list[int], voice: Voice, *, seed: int) -> Tensor:
    """The mel of `ids` in this voice, rendered whole: (mel, frames)."""
    weight = flow.encoder_proj.weight
    device, dtype = weight.device, weight.dtype
    tokens = torch.cat([voice.flow_prompt_ids, torch.tensor(ids, dtype=torch.int64)])[None].to(device)
    tape = NoiseTape(seed, "flow", width=flow.config.mel_bands, block_rows=NOISE_BLOCK_FRAMES)
    noise = tape.read(0, tokens.shape[1] * CLOCKS.frames_per_token).T[None]
    mel: Tensor = flow(
        tokens,
        prompt_mel=voice.flow_prompt_mel.T[None].to(device, dtype),
        speaker=voice.flow_speaker[None].to(device, dtype),
        noise=noise.to(device, dtype),
    )
    return mel[0]
