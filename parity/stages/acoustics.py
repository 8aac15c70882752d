"""The flow: speech ids to mel, for the same noise.

Upstream draws its noise from torch's global generator. Setting that generator's seed and repeating the draws
in their order gives both sides the same noise, and proves the order besides.
"""

from __future__ import annotations

import torch
from chatterbox.models.s3gen import S3Gen
from table import Rows
from taps import outputs_of
from torch import Tensor
from upstream import hushed

from nightingale.models.chatterbox.s3gen.flow import Flow

PROMPT_TOKENS = 60
TOKENS = 45
SEED = 11


def compare(rows: Rows, theirs: S3Gen, ours: Flow) -> Tensor:
    """Also gives upstream's mel, for the vocoder to sing."""
    draw = torch.Generator().manual_seed(SEED)
    prompt_ids = torch.randint(0, 6561, (1, PROMPT_TOKENS), generator=draw)
    ids = torch.randint(0, 6561, (1, TOKENS), generator=draw)
    prompt_mel = torch.randn(1, 2 * PROMPT_TOKENS, 80, generator=draw) * 2 - 5
    speaker = torch.randn(1, 192, generator=draw)
    voice = {
        "prompt_token": prompt_ids,
        "prompt_token_len": torch.tensor([PROMPT_TOKENS]),
        "prompt_feat": prompt_mel,
        "prompt_feat_len": None,
        "embedding": speaker,
    }
    torch.manual_seed(SEED)
    with hushed(), outputs_of(theirs.flow.encoder_proj) as mu:
        mel: Tensor = theirs.flow_inference(ids, ref_dict=voice, finalize=True)
    with torch.inference_mode():
        whole = torch.cat([prompt_ids, ids], dim=1)
        rows.close("flow encoder (mu)", ours.encode(whole), mu[0].transpose(1, 2), relative=1e-5)
        our_mel = ours(
            whole,
            prompt_mel=prompt_mel.transpose(1, 2),
            speaker=speaker,
            noise=draw_noise(ours, whole.shape[1]),
        )
    steps = "2-step meanflow" if ours.config.meanflow else "10-step guided"
    rows.close(f"mel, {steps}", our_mel, mel, relative=1e-5)
    return mel


def draw_noise(ours: Flow, tokens: int) -> Tensor:
    """Upstream's draws in upstream's order: a meanflow first draws the spoken part, then everything."""
    torch.manual_seed(SEED)
    spoken = torch.randn(1, 80, 2 * TOKENS) if ours.config.meanflow else None
    noise = torch.randn(1, 80, 2 * tokens)
    if spoken is not None:
        noise[..., 2 * PROMPT_TOKENS :] = spoken
    return noise
