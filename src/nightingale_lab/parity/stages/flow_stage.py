"""The flow: speech ids to mel, with the same noise on both sides.

Upstream samples its noise from torch's global generator. Setting its seed and repeating the calls in their
order gives both sides the same noise, and proves the order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale_lab.parity.hooks import outputs_of
from nightingale_lab.parity.table import Rows
from nightingale_lab.upstream.families import SPEECH_CODES
from nightingale_lab.upstream.networks import quiet

PROMPT_TOKENS = 60
TOKENS = 45
SEED = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowCase:
    ids: Tensor
    """(1, prompt and spoken tokens)"""
    prompt_mel: Tensor
    """(1, frames, 80)"""
    speaker: Tensor


def random_case() -> FlowCase:
    rng = torch.Generator().manual_seed(SEED)
    return FlowCase(
        ids=torch.randint(0, SPEECH_CODES, (1, PROMPT_TOKENS + TOKENS), generator=rng),
        prompt_mel=torch.randn(1, 2 * PROMPT_TOKENS, 80, generator=rng) * 2 - 5,
        speaker=torch.randn(1, 192, generator=rng),
    )


def run_theirs(s3gen: Any, case: FlowCase) -> tuple[Tensor, Tensor]:
    """Return the encoder's output mu and the mel, both (1, 80, frames)."""
    voice = {
        "prompt_token": case.ids[:, :PROMPT_TOKENS],
        "prompt_token_len": torch.tensor([PROMPT_TOKENS]),
        "prompt_feat": case.prompt_mel,
        "prompt_feat_len": None,
        "embedding": case.speaker,
    }
    torch.manual_seed(SEED)
    with quiet(), outputs_of(s3gen.flow.encoder_proj) as mu:
        mel = s3gen.flow_inference(case.ids[:, PROMPT_TOKENS:], ref_dict=voice, finalize=True)
    return mu[0].transpose(1, 2), mel


@torch.inference_mode()
def run_ours(flow: Flow, case: FlowCase, noise: Tensor) -> tuple[Tensor, Tensor]:
    prompt_mel = case.prompt_mel.transpose(1, 2)
    mel = flow(case.ids, prompt_mel=prompt_mel, speaker=case.speaker, noise=noise)
    return flow.encode(case.ids), mel


def draw_noise(
    *, meanflow: bool, prompt_tokens: int = PROMPT_TOKENS, tokens: int = TOKENS, seed: int = SEED
) -> Tensor:
    """Repeat upstream's calls in its order: a meanflow samples the spoken part first, then everything."""
    torch.manual_seed(seed)
    spoken = torch.randn(1, 80, 2 * tokens) if meanflow else None
    noise = torch.randn(1, 80, 2 * (prompt_tokens + tokens))
    if spoken is not None:
        noise[..., 2 * prompt_tokens :] = spoken
    return noise


def compare(
    rows: Rows, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], *, meanflow: bool
) -> None:
    rows.close("flow encoder (mu)", ours[0], theirs[0], relative=1e-5)
    steps = "2-step meanflow" if meanflow else "10-step guided"
    rows.close(f"mel, {steps}", ours[1], theirs[1], relative=1e-5)


def compare_networks(rows: Rows, theirs: Any, ours: Flow) -> Tensor:
    """Compare, and return upstream's mel for the vocoder."""
    case, meanflow = random_case(), ours.config.meanflow
    reference = run_theirs(theirs, case)
    compare(rows, run_ours(ours, case, draw_noise(meanflow=meanflow)), reference, meanflow=meanflow)
    return reference[1]
