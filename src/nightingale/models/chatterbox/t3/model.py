"""T3: text ids and a voice in, logits of the next speech token out.

The prompt is  conditioning ‖ text ‖ start-of-speech;  the speech tokens generated so far follow it. With
classifier-free guidance two rows run side by side: the first sees the text, the second zeros in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.backbone import Gpt2Backbone, LlamaBackbone
from nightingale.models.chatterbox.t3.conditioning import Conditioning
from nightingale.models.chatterbox.t3.config import START_SPEECH, LlamaConfig, T3Config
from nightingale.models.layers.kv_cache import DenseKVCache, KVCache, lazy_zeros


class PositionTable(nn.Module):
    """A learned table, nested once because the checkpoint's name is."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(rows, width)

    def forward(self, count: int) -> Tensor:
        """Return the first `count` rows."""
        return self.emb.weight[:count]


class T3(nn.Module):
    def __init__(self, config: T3Config) -> None:
        super().__init__()
        width = config.backbone.width
        self.config = config
        self.tfmr: LlamaBackbone | Gpt2Backbone = (
            LlamaBackbone(config.backbone)
            if isinstance(config.backbone, LlamaConfig)
            else Gpt2Backbone(config.backbone)
        )
        self.cond_enc = Conditioning(config)
        self.text_emb = nn.Embedding(config.text_vocab, width)
        self.speech_emb = nn.Embedding(config.speech_vocab, width)
        if config.learned_positions is not None:
            text_rows, speech_rows = config.learned_positions
            self.text_pos_emb = PositionTable(text_rows, width)
            self.speech_pos_emb = PositionTable(speech_rows, width)
        self.speech_head = nn.Linear(width, config.speech_vocab, bias=config.head_bias)

    def new_kv_cache(self, *, rows: int, capacity: int) -> list[DenseKVCache]:
        """Return empty KV caches for `rows` utterances of at most `capacity` positions, prompt included."""
        backbone, weight = self.config.backbone, self.speech_head.weight
        shape = (rows, backbone.heads, capacity, backbone.width // backbone.heads)
        zeros = partial(lazy_zeros, shape, weight.dtype, weight.device)
        return [DenseKVCache(zeros(), zeros()) for _ in range(backbone.layers)]

    def prompt(
        self, text: Tensor, *, speaker: Tensor, prompt_ids: Tensor, exaggeration: Tensor, guided: bool
    ) -> Tensor:
        """Embed everything before the first generated token: (1, time, width), or two rows when guided.

        `text` (1, n) are framed text ids, `prompt_ids` (1, m) speech tokens of the reference clip, `speaker`
        is (1, speaker_width) and `exaggeration` (1,). The second row has no text.
        """
        conditioning = self.conditioning(speaker=speaker, prompt_ids=prompt_ids, exaggeration=exaggeration)
        return self.conditioned_prompt(text, conditioning, guided=guided)

    def conditioning(self, *, speaker: Tensor, prompt_ids: Tensor, exaggeration: Tensor) -> Tensor:
        """Embed what comes before the text, which depends on the voice: (1, time, width)."""
        prompt = self.speech_emb(prompt_ids)
        # PARITY: only the perceiver's prompt has learned positions; Turbo's has none.
        #         tests/models/test_t3.py::test_turbos_prompt_has_no_positions
        if self.config.learned_positions is not None:
            prompt = prompt + self.speech_pos_emb(prompt.shape[1])
        conditioning: Tensor = self.cond_enc(speaker, prompt, exaggeration)
        return conditioning

    def conditioned_prompt(self, text: Tensor, conditioning: Tensor, *, guided: bool) -> Tensor:
        """Embed the text and put it after the conditioning; see `prompt`."""
        embedded = self.text_emb(text)
        if guided:
            embedded = torch.cat([embedded, torch.zeros_like(embedded)])
        if self.config.learned_positions is not None:
            embedded = embedded + self.text_pos_emb(embedded.shape[1])
        rows = len(embedded)
        start = self.embed_speech(torch.full((rows, 1), START_SPEECH, device=text.device), 0)
        return torch.cat([conditioning.expand(rows, -1, -1), embedded, *[start] * self.config.starts], dim=1)

    def embed_speech(self, ids: Tensor, position: int) -> Tensor:
        """Embed (rows, n) speech tokens, the first at `position` after the start token."""
        at = torch.arange(position, position + ids.shape[1], device=ids.device)
        return self.embed_speech_at(ids, at)

    def embed_speech_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Embed (rows, n) speech tokens at positions (n,) or (rows, n) after the start token."""
        x = self.speech_emb(ids)
        if self.config.learned_positions is not None:
            x = x + self.speech_pos_emb.emb(positions)
        return x

    def forward(self, x: Tensor, kv_caches: Sequence[KVCache]) -> Tensor:
        """Return the logits after each embedding: (rows, time, width) -> (rows, time, speech_vocab)."""
        return self.speech_head(self.tfmr(x, kv_caches))

    def next_logits(self, x: Tensor, kv_caches: Sequence[KVCache]) -> Tensor:
        """Return the logits after the last embedding only: (rows, speech_vocab)."""
        return self.speech_head(self.tfmr(x, kv_caches)[:, -1])
