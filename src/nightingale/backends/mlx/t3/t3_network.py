"""T3 on MLX: the prompt's embeddings, the backbone and the speech head. The reference is models/chatterbox/t3."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from nightingale.backends.mlx.arrays import (
    join_heads,
    named_arrays,
    read,
    split_heads,
    take_linear,
    take_norm,
)
from nightingale.backends.mlx.t3.transformer import KVCaches, Precision, Transformer
from nightingale.backends.mlx.weight_files import NetworkWeights
from nightingale.decoding.attention_trace import AttentionTrace
from nightingale.decoding.decoding import Prompt
from nightingale.models.chatterbox.t3.config import PERCEIVER_HEADS, PERCEIVER_QUERIES, START_SPEECH, T3Config


class PromptPerceiver:
    """Compress an embedded prompt (1, tokens, width) to 32 vectors."""

    def __init__(self, weights: NetworkWeights, width: int) -> None:
        name = "cond_enc.perceiver"
        self.query = weights.take(f"{name}.pre_attention_query", 1, PERCEIVER_QUERIES, width)
        self.norm = take_norm(weights, f"{name}.attn.norm", width)
        self.to_q, self.to_k, self.to_v, self.out = (
            take_linear(weights, f"{name}.attn.{part}", width, width)
            for part in ("to_q", "to_k", "to_v", "proj_out")
        )

    def __call__(self, prompt: mx.array) -> mx.array:
        # PARITY: the one block is applied twice, first to the prompt, then to its own output.
        #         tests/models/test_t3.py::test_the_perceiver_uses_its_block_twice
        x = self._attend(self.query, prompt)
        return self._attend(x, x)

    def _attend(self, x: mx.array, context: mx.array) -> mx.array:
        queries, keys = self.norm(x), self.norm(context)
        q, k, v = (
            split_heads(y, PERCEIVER_HEADS) for y in (self.to_q(queries), self.to_k(keys), self.to_v(keys))
        )
        return x + self.out(
            join_heads(mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5))
        )


class MlxT3:
    """T3's weights. The conditioning is computed in float32, all else in `precision`."""

    def __init__(self, config: T3Config, weights: NetworkWeights, precision: Precision) -> None:
        width, dtype = config.backbone.width, precision.dtype
        self.config, self.dtype = config, dtype
        self.backbone = Transformer(config.backbone, weights, precision)
        self.speaker = take_linear(weights, "cond_enc.spkr_enc", config.speaker_width, width)
        self.perceiver: PromptPerceiver | None = None
        if config.perceiver:
            self.perceiver = PromptPerceiver(weights, width)
            self.emotion = take_linear(weights, "cond_enc.emotion_adv_fc", 1, width, bias=False)
        self.text = weights.take("text_emb.weight", config.text_vocab, width).astype(dtype)
        self.speech = weights.take("speech_emb.weight", config.speech_vocab, width).astype(dtype)
        self.text_positions: mx.array | None = None
        self.speech_positions: mx.array | None = None
        if config.learned_positions is not None:
            rows = config.learned_positions
            self.text_positions, self.speech_positions = (
                weights.take(f"{name}_pos_emb.emb.weight", count, width).astype(dtype)
                for name, count in zip(("text", "speech"), rows, strict=True)
            )
        head = take_linear(weights, "speech_head", width, config.speech_vocab, bias=config.head_bias)
        self.head = head.cast(dtype)
        arrays = {**vars(self), "backbone": vars(self.backbone)}
        if self.perceiver is not None:
            arrays["perceiver"] = vars(self.perceiver)
        weights.finish(named_arrays(arrays))

    def embed_prompt(self, prompt: Prompt, *, max_new_tokens: int) -> mx.array:
        """Return the embeddings (rows, time, width) of everything before the first speech token."""
        voice, config = prompt.voice, self.config
        text = self.text[
            mx.array(self.config.checked_text(prompt.text_ids, max_new_tokens=max_new_tokens), mx.int32)
        ][None]
        ids = mx.array(voice.prompt_ids[: config.prompt_tokens].astype("int32"))
        reference = self.speech[ids][None]
        if prompt.guided:
            text = mx.concatenate([text, mx.zeros_like(text)])
        # PARITY: only the perceiver's prompt has learned positions; Turbo's has none.
        #         tests/models/test_t3.py::test_turbos_prompt_has_no_positions
        if self.text_positions is not None and self.speech_positions is not None:
            reference = reference + self.speech_positions[: reference.shape[1]]
            text = text + self.text_positions[: text.shape[1]]
        parts = [self.speaker(mx.array(voice.speaker[None].astype("float32")))[:, None]]
        if self.perceiver is None:
            parts.append(reference)
        else:
            parts.append(self.perceiver(reference.astype(mx.float32)))
            parts.append(self.emotion(mx.full((1, 1, 1), prompt.exaggeration)))
        start = self.embed_speech(mx.array([START_SPEECH]), mx.array([0]))[None]
        rows = len(text)
        conditioning, start = (
            mx.broadcast_to(part.astype(self.dtype), (rows, *part.shape[1:]))
            for part in (mx.concatenate([p.astype(mx.float32) for p in parts], axis=1), start)
        )
        return mx.concatenate([conditioning, text, *[start] * config.starts], axis=1)

    def embed_speech(self, tokens: mx.array, positions: mx.array) -> mx.array:
        """Embed speech tokens (n,) at positions (n,) after the start token: (n, width)."""
        x = self.speech[tokens]
        return x if self.speech_positions is None else x + self.speech_positions[positions]

    def trace(self, prompt: mx.array, trace: AttentionTrace) -> None:
        """Store the queries of a trace, by a pass over the prompt (1, time, width) and its tokens."""
        length, count = prompt.shape[1], len(trace.tokens)
        speech = self.embed_speech(mx.array(trace.tokens, mx.int32), mx.arange(1, count + 1))
        x = mx.concatenate([prompt, speech[None]], axis=1) if count else prompt
        layers = self.backbone.queries_and_keys(x, 1 + max(trace.layers))
        text = trace.text_positions(length)
        trace.set_keys(
            [read(layers[layer][1][0, head, text].astype(mx.float32)) for layer, head in trace.heads]
        )
        queries = [layers[layer][0][0, head, length - 1 :].astype(mx.float32) for layer, head in trace.heads]
        trace.set_queries(0, [read(one) for one in queries])

    def read(self, x: mx.array, last: mx.array, caches: KVCaches) -> tuple[mx.array, KVCaches]:
        """Read a prompt (rows, time, width), padded after position `last`; return its logits (rows, vocab)."""
        hidden, caches = self.backbone.read(x, caches)
        return self.head(mx.take(hidden, last, axis=1)).astype(mx.float32), caches

    def step(
        self,
        tokens: mx.array,
        positions: mx.array,
        lengths: mx.array,
        slots: Sequence[KVCaches],
        span: int,
    ) -> tuple[mx.array, list[KVCaches]]:
        """Append a token to each slot; return the logits (rows of all slots, vocab) and the caches."""
        rows = mx.array([slot for slot, caches in enumerate(slots) for _ in range(len(caches[0][0]))])
        x = self.embed_speech(tokens[rows], positions[rows])
        hidden, updated = self.backbone.step(x, lengths, slots, span)
        return self.head(hidden).astype(mx.float32), updated
