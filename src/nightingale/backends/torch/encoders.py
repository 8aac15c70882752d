"""The voice encoders in PyTorch: a reference clip to the arrays of a voice."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from nightingale.models.chatterbox.build import VoiceEncoders
from nightingale.models.layers.mel import FlowMel
from nightingale.types import Samples


class TorchEncoders:
    def __init__(self, networks: VoiceEncoders) -> None:
        self._networks = networks

    @torch.inference_mode()
    def tokenize(self, samples_16k: Samples, max_tokens: int | None = None) -> NDArray[np.int64]:
        tokenizer = self._networks.speech_tokenizer
        return tokenizer.tokenize(torch.from_numpy(samples_16k), max_tokens=max_tokens).numpy()

    @torch.inference_mode()
    def speaker(self, samples_16k: Samples) -> NDArray[np.float32]:
        return self._networks.voice_encoder.embed(torch.from_numpy(samples_16k)).numpy()

    @torch.inference_mode()
    def flow_speaker(self, samples_16k: Samples) -> NDArray[np.float32] | None:
        xvector = self._networks.xvector
        return None if xvector is None else xvector.embed(torch.from_numpy(samples_16k)).numpy()

    @torch.inference_mode()
    def flow_mel(self, samples_24k: Samples) -> NDArray[np.float32]:
        mel: NDArray[np.float32] = FlowMel()(torch.from_numpy(samples_24k)[None])[0].T.numpy()
        return mel
