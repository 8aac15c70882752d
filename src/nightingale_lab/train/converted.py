"""Stage `converted`: the corpus in other voices, as the model renders it, and the tokens that are read from that.

Voice conversion reads tokens from speech, and renders them in another voice. Tokens that are read from what the
model rendered differ from those of recordings, and the flow lost words there even where the voice stayed the same
(dev/LOG.md). So every clip is rendered in the voice of another one, or in its own, and tokenized again; the flow
learns to render the recording from these tokens too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nightingale.models.chatterbox.encoders.speech_tokenizer import SpeechTokenizer
from nightingale.models.frame_vocoder.network import FrameVocoder
from nightingale_lab.train.bank import FULL_SCALE, HOP
from nightingale_lab.train.corpus import Corpus, whole_clips
from nightingale_lab.train.tokenizer import tokenize_corpus
from nightingale_lab.train.vocoder import render_samples

CONVERTED: Final = "tokens_converted.npy"
"""The file of a part of the corpus, beside its tokens."""
OWN_VOICE: Final = 0.3
"""Share of the clips that keep their voice."""
BATCH_TOKENS: Final = 6_400


def other_speakers(speaker: NDArray[np.float16], *, seed: int) -> NDArray[np.float16]:
    """Return for each clip the speaker vector of another clip, or its own. speaker: (clips, 256)."""
    random = np.random.default_rng(seed)
    chosen = random.permutation(len(speaker))
    own = random.random(len(speaker)) < OWN_VOICE
    return speaker[np.where(own, np.arange(len(speaker)), chosen)]


@torch.no_grad()
def render_audio(
    net: FrameVocoder, mels: NDArray[np.float16], corpus: Corpus, *, device: torch.device, seed: int
) -> NDArray[np.int16]:
    """Return audio of the layout of the corpus's bank. mels: (frames, bands), two frames per token."""
    offsets, flat = torch.from_numpy(corpus.token_offsets), torch.from_numpy(mels).to(device)
    counts, generator = offsets.diff(), torch.Generator(device).manual_seed(seed)
    out = torch.zeros(len(corpus.bank.audio), dtype=torch.int16, device=device)
    for rows, length in whole_clips(counts, batch_tokens=BATCH_TOKENS):
        start, real = 2 * offsets[rows].to(device), 2 * counts[rows].to(device)
        frame = torch.arange(2 * length, device=device)
        # The last frame fills up a shorter clip; the network is causal but for a few frames.
        index = start[:, None] + torch.minimum(frame[None], real[:, None] - 1)
        samples = render_samples(net, flat[index].float().transpose(1, 2), generator)
        sample = torch.arange(samples.shape[1], device=device)
        inside = sample[None] < real[:, None] * HOP
        scaled = (samples.clamp(-1, 1) * (FULL_SCALE - 1)).round().to(torch.int16)
        out[(start[:, None] * HOP + sample)[inside]] = scaled[inside]
    return out.cpu().numpy()


def converted_tokens(
    net: SpeechTokenizer,
    vocoder: FrameVocoder,
    mels: NDArray[np.float16],
    corpus: Corpus,
    *,
    device: torch.device,
    seed: int,
) -> Tensor:
    """Return the tokens (tokens,) that are read from a vocoder's rendering of mels of the whole corpus."""
    audio = render_audio(vocoder, mels, corpus, device=device, seed=seed)
    return tokenize_corpus(net, replace(corpus, bank=replace(corpus.bank, audio=audio)), device=device)
