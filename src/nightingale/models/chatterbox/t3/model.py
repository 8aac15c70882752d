"""T3: text ids and a voice in, scores of the next speech token out.

The prompt is  conditioning ‖ text ‖ start-of-speech;  after it stand the speech tokens spoken so far. With
guidance two rows run side by side: the first is told the text, the second sees zeros in its place.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from nightingale.models.chatterbox.t3.backbone_gpt2 import Gpt2Backbone
from nightingale.models.chatterbox.t3.backbone_llama import LlamaBackbone
from nightingale.models.chatterbox.t3.conditioning import Conditioning
from nightingale.models.chatterbox.t3.config import START_SPEECH, LlamaConfig, T3Config
from nightingale.models.chatterbox.t3.draft_head import halfway
from nightingale.models.layers.kv_cache import DenseKVCache, KVCache


class Positions(nn.Module):
    """A learned table, nested once because the checkpoint's name is."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.emb = nn.Embedding(rows, width)

    def forward(self, start: int, count: int) -> Tensor:
        return self.emb.weight[start : start + count]


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
            self.text_pos_emb = Positions(text_rows, width)
            self.speech_pos_emb = Positions(speech_rows, width)
        self.speech_head = nn.Linear(width, config.speech_vocab, bias=config.head_bias)

    def new_kv_cache(self, *, rows: int, capacity: int) -> list[KVCache]:
        """Empty memory for `rows` utterances of at most `capacity` positions, prompt included."""
        backbone, weight = self.config.backbone, self.speech_head.weight
        return [
            DenseKVCache(
                rows=rows,
                heads=backbone.heads,
                capacity=capacity,
                width=backbone.width // backbone.heads,
                dtype=weight.dtype,
                device=weight.device,
            )
            for _ in range(backbone.layers)
        ]

    def first_layers(self, count: int) -> T3:
        """The same weights without the later layers: the norm and the head follow earlier."""
        part = copy.copy(self)
        part._modules = {**self._modules, "tfmr": self.tfmr.first(count)}
        part.config = replace(self.config, backbone=replace(self.config.backbone, layers=count))
        return part

    def prompt_length(self, text_ids: int) -> int:
        """How many positions `prompt` takes at most, for so many text ids."""
        return self.config.prompt_length(text_ids)

    def frame_text(self, text_ids: list[int]) -> list[int]:
        return self.config.frame_text(text_ids)

    def prompt(
        self, text: Tensor, *, speaker: Tensor, prompt_ids: Tensor, exaggeration: Tensor, guided: bool
    ) -> Tensor:
        """Embeddings of everything before the first generated token.

        text: (1, n) framed ids; speaker: (1, speaker_width); prompt_ids: (1, m); exaggeration: (1,).
        Gives (1, time, width), or (2, time, width) when guided.
        """
        shown = self.speech_emb(prompt_ids)
        # PARITY: only the perceiver's prompt is given learned positions; Turbo's stands bare.
        #         tests/models/test_t3.py::test_turbos_prompt_stands_bare
        if self.config.learned_positions is not None:
            shown = shown + self.speech_pos_emb(0, shown.shape[1])
        told = self.text_emb(text)
        if guided:
            told = torch.cat([told, torch.zeros_like(told)])
        if self.config.learned_positions is not None:
            told = told + self.text_pos_emb(0, told.shape[1])
        rows = len(told)
        cond = self.cond_enc(speaker, shown, exaggeration).expand(rows, -1, -1)
        start = torch.full((rows, 1), START_SPEECH, device=text.device)
        return torch.cat([cond, told, *[self.embed_speech(start, 0)] * self.config.starts], dim=1)

    def embed_speech(self, ids: Tensor, position: int) -> Tensor:
        """(rows, n) speech ids, the first standing at `position` after the start token."""
        at = torch.arange(position, position + ids.shape[1], device=ids.device)
        return self.embed_speech_at(ids, at)

    def embed_speech_at(self, ids: Tensor, positions: Tensor) -> Tensor:
        """(rows, n) speech ids at positions (n,) or (rows, n) after the start token."""
        x = self.speech_emb(ids)
        if self.config.learned_positions is not None:
            x = x + self.speech_pos_emb.emb(positions)
        return x

    def forward(self, x: Tensor, memory: Sequence[KVCache]) -> Tensor:
        """Embeddings (rows, time, width) -> scores after each of them (rows, time, speech_vocab)."""
        return self.speech_head(self.tfmr(x, memory))

    def hidden_states(self, x: Tensor, memory: Sequence[KVCache]) -> list[Tensor]:
        """What the head would read, and T3's stream on the way there: each (rows, time, width)."""
        heard: list[Tensor] = []
        thought = self.tfmr(x, memory, heard)
        return [thought, *(heard[place] for place in halfway(len(heard)))]

    def next_logits(self, x: Tensor, memory: Sequence[KVCache]) -> Tensor:
        """Logits after the last embedding only: (rows, speech_vocab)."""
        return self.speech_head(self.tfmr(x, memory)[:, -1])
