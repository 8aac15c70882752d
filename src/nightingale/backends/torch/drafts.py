"""Drafts that compute with T3's own layers in PyTorch: early exit, and the draft head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.backends.torch.runner import TorchRunner
from nightingale.decoding.decoding import DraftedTokens
from nightingale.decoding.drafting import Draft, DraftRequest, extend
from nightingale.decoding.runner import StepInput
from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3


class ExitDraft(Draft):
    """T3 without its later layers. It uses the utterance's own KV cache, so it needs none."""

    def __init__(self, runner: TorchRunner, *, layers: int) -> None:
        self._runner, self._t3 = runner, runner.t3.first_layers(layers)

    def propose(self, requests: Sequence[DraftRequest]) -> list[list[int]]:
        shallow = self._runner.shallow(self._t3)
        positions = {r.slot: shallow.caches[r.slot][0].position for r in requests}
        try:
            inputs = [StepInput(r.slot, r.decoding.history[-1], len(r.decoding.history)) for r in requests]
            drafted = [DraftedTokens(request.decoding) for request in requests]
            for tokens, logits in zip(drafted, shallow.step(inputs), strict=True):
                tokens.sample(logits)
            extend(shallow, requests, drafted)
        finally:
            for slot, position in positions.items():
                for cache in shallow.caches[slot]:
                    cache.rewind(position)
        return [tokens.tokens for tokens in drafted]


class TorchDraftHead:
    """Run a draft head in the precision of T3's weights."""

    def __init__(self, t3: T3, head: DraftHead) -> None:
        self._t3, self._head = t3, head.to(t3.speech_head.weight)

    @torch.inference_mode()
    def start(self, hidden: NDArray[np.float32]) -> Tensor:
        return self._head.start(torch.from_numpy(hidden).to(self._t3.speech_head.weight))

    @torch.inference_mode()
    def step(self, state: Tensor, token: int, position: int) -> tuple[Tensor, Logits]:
        ids = torch.full((len(state), 1), token, device=state.device)
        following = self._head(state, self._t3.embed_speech(ids, position)[:, 0])
        return following, self._t3.speech_head(following).float().cpu().numpy()
