"""The draft head in PyTorch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.decoding.sampling import Logits
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3


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
