"""The flow as two graphs: the token encoder, run once per block, and the estimator, run once per solver step.

Token encoder (models/chatterbox/s3gen/token_encoder.py):

    x = √width · norm(linear(embedded))                          (rows, tokens + 3, width)
    x = x + causal_conv(leaky_relu(conv over 4 tokens from here on))
    for each block:   x += relative_attention(norm(x));  x += ffn(norm(x))
    x = √width · norm(linear(causal_conv(each token twice)))     (rows, 2 · tokens, width)
    for each block:   as above
    conditioning = proj(norm(x)) ‖ speaker ‖ prompt mel          (rows, frames, 3 · mel)

Estimator (models/chatterbox/s3gen/estimator.py):

    resnet(x) = mish(norm(causal_conv(mish(norm(causal_conv(x))) + time))) + conv1x1(x)
    h = x ‖ conditioning
    h = stage(h);  skip = h;  h = causal_conv(h)                 stage: a resnet, then transformer blocks
    h = stage(h) for each middle stage
    h = causal_conv(stage(h ‖ skip))
    next_x = x + step · final_conv1x1(mish(norm(causal_conv(h))))

Inputs that depend on sizes only are computed by flow_stream.py and kept: the projected distance encodings of
relative attention, the embeddings of the solver's times, and masks.

It is fast because there are few operations, since each costs some microseconds and small blocks consist of
little else: attention with its cache is one operation, a residual sum and the next norm another one, a
convolution is one product over windows of its inputs, and products take the weights as they are stored. In int8
they also take the stored integers, and quantize their inputs.
"""

from __future__ import annotations

import math

import numpy as np

from nightingale.backends.onnx.network_graph import NetworkGraph, Residual
from nightingale.backends.onnx.numpy_weights import PackedWeights
from nightingale.backends.onnx.protobuf import CONTRIB, FLOAT
from nightingale.models.chatterbox.s3gen.config import LOOKAHEAD_TOKENS, FlowConfig

HEAD_WIDTH = 64
"""The width of a head in the estimator's attention."""
BLOCK_EPSILON, EPSILON = 1e-12, 1e-5
ESTIMATOR = "decoder.estimator"


class TokenEncoderGraph(NetworkGraph):
    """Inputs and outputs, besides the caches:

    embedded      (rows, tokens + 3, width)    token embeddings, those that are looked ahead to included
    tail          (rows, 0 or 3, width)        zeros after the last token of an utterance
    speaker       (rows, 1, mel)
    prompt_mel    (rows, 2 · tokens, mel)      normalized; zeros after the prompt
    mask.0, mask.1                             of the blocks before and after the doubling of the rate
    NAME.distances  (heads, head_width, cached + 2 · positions)   of each attention layer
    conditioning  (rows, 2 · tokens, 3 · mel)
    """

    def __init__(self, config: FlowConfig, weights: PackedWeights, *, int8: bool) -> None:
        super().__init__(weights, int8=int8)
        self.config = config
        width, mel = config.encoder_width, config.mel_bands
        self.input("embedded", FLOAT, ("rows", "tokens_ahead", width))
        self.input("tail", FLOAT, ("rows", "tail", width))
        self.input("speaker", FLOAT, ("rows", 1, mel))
        self.input("prompt_mel", FLOAT, ("rows", "frames", mel))
        x = self._pre_lookahead(self._embedding("embedded", "encoder.embed.out"))
        x = self._blocks(x, "encoder.encoders", config.encoder_blocks, 0)
        twice = self.node("Reshape", [self.node("Concat", [x, x], axis=2), self.ints(0, -1, width)])
        x = self._embedding(self.causal_conv(twice, "encoder.up_layer.conv"), "encoder.up_embed.out")
        x = self._blocks(x, "encoder.up_encoders", config.encoder_up_blocks, 1)
        mu = self.linear(self.layer_norm(x, "encoder.after_norm", EPSILON), "encoder_proj")
        speaker = self.node("Expand", ["speaker", self.node("Shape", [mu])])
        self.node("Concat", [mu, speaker, "prompt_mel"], ["conditioning"], axis=2)
        self.output("conditioning", FLOAT, ("rows", "frames", 3 * mel))

    def _embedding(self, x: str, name: str) -> str:
        scale = math.sqrt(self.config.encoder_width)
        return self.layer_norm(self.linear(x, f"{name}.0"), f"{name}.1", EPSILON, gain=scale)

    def _pre_lookahead(self, x: str) -> str:
        name = "encoder.pre_lookahead_layer"
        x = self.node("Concat", [x, "tail"], axis=1)
        y = self.node("LeakyRelu", [self.conv_of_windows(x, f"{name}.conv1")], alpha=0.01)
        known = self.slice(x, 0, -LOOKAHEAD_TOKENS, 1)
        return self.node("Add", [known, self.causal_conv(y, f"{name}.conv2")])

    def _blocks(self, x: str, name: str, count: int, rate: int) -> str:
        mask = self.input(f"mask.{rate}", FLOAT, ("rows", 1, f"time.{rate}", f"positions.{rate}"))
        residual: Residual = None
        for number in range(count):
            at = f"{name}.{number}"
            attention, ffn = f"{at}.self_attn", f"{at}.feed_forward"
            normed, x = self.add_layer_norm(x, residual, f"{at}.norm_mha", BLOCK_EPSILON)
            residual = self._relative_attention(normed, attention, mask, 1 + rate), f"{attention}.linear_out"
            normed, x = self.add_layer_norm(x, residual, f"{at}.norm_ff", BLOCK_EPSILON)
            silu = self.node("QuickGelu", [self.linear(normed, f"{ffn}.w_1")], domain=CONTRIB, alpha=1.0)
            residual = self.matmul(silu, f"{ffn}.w_2"), f"{ffn}.w_2"
        return self.add_residual(x, residual)

    def _relative_attention(self, x: str, name: str, mask: str, positions_per_token: int) -> str:
        """Add a score by distance to the score by content: (q + u)·k + (q + v)·distance."""
        heads, width = self.config.encoder_heads, self.config.encoder_width
        head_width = width // heads
        qkv = [self.matmul(x, f"{name}.linear_{part}") for part in "qkv"]
        by_distance, by_content = (
            self.weights[f"{name}.pos_bias_{part}"].reshape(-1) + self.weights[f"{name}.linear_q.bias"]
            for part in "vu"
        )
        biases = [by_content, *(self.weights[f"{name}.linear_{part}.bias"] for part in "kv")]
        input_bias = self.tensor(f"{name}.input_bias", np.concatenate(biases))
        distances = self.input(
            f"{name}.distances", FLOAT, (heads, head_width, f"spans.{positions_per_token}")
        )
        q_v = self.node("Add", [qkv[0], self.tensor(f"{name}.distance_bias", by_distance)])
        q_v = self.node("Reshape", [q_v, self.ints(0, 0, heads, head_width)])
        q_v = self.node("Transpose", [q_v], perm=(0, 2, 1, 3))
        scores = self._align_distances(self.node("MatMul", [q_v, distances]), mask)
        attended = self.attention(
            qkv,
            name,
            heads=heads,
            head_width=head_width,
            positions_per_token=positions_per_token,
            max_positions=self.config.left_context,
            score_bias=self.node("Add", [scores, mask]),
            input_bias=input_bias,
        )
        return self.matmul(attended, f"{name}.linear_out")

    def _align_distances(self, scores: str, mask: str) -> str:
        """Convert scores by distance, farthest first, to scores by key: row i starts at column queries-1-i.

        (…, queries, spans) -> (…, queries, keys), where spans = keys + queries. In memory, score (i, j) is at
        i·(spans - 1) + (queries - 1) + j: rows that are one shorter, from queries - 1 on.
        """
        shape = self.node("Shape", [scores])
        lead, queries, spans = (self.slice(shape, *span, 0) for span in ((0, 2), (2, 3), (3, 4)))
        start = self.node("Sub", [queries, self.ints(1)])
        length = self.node("Sub", [spans, self.ints(1)])
        flat = self.node("Reshape", [scores, self.ints(0, 0, -1)])
        end = self.node("Add", [start, self.node("Mul", [queries, length])])
        flat = self.node("Slice", [flat, start, end, self.ints(2)])
        rows = self.node("Reshape", [flat, self.node("Concat", [lead, queries, length], axis=0)])
        keys = self.node("Shape", [mask], start=3)
        return self.node("Slice", [rows, self.ints(0), keys, self.ints(3)])


class EstimatorGraph(NetworkGraph):
    """Inputs and outputs, besides the caches:

    x             (rows, frames, mel)
    conditioning  (rows, frames, 3 · mel)        of the token encoder
    mask          (rows, 1, frames, cached + frames)
    STAGE.time    (width,)                       of each stage: its time embedding in this step
    next_x        (rows, frames, mel)            after the step
    """

    def __init__(self, config: FlowConfig, weights: PackedWeights, step: float, *, int8: bool) -> None:
        """step: the length of a solver step."""
        super().__init__(weights, int8=int8)
        self.config = config
        mel = config.mel_bands
        self.input("x", FLOAT, ("rows", "frames", mel))
        self.input("conditioning", FLOAT, ("rows", "frames", 3 * mel))
        self.input("mask", FLOAT, ("rows", 1, "frames", "positions"))
        down, *middle, up = stages(config)
        skip = self._stage(self.node("Concat", ["x", "conditioning"], axis=2), down)
        h = self.causal_conv(skip, f"{down}.2")
        for stage in middle:
            h = self._stage(h, stage)
        h = self._stage(self.node("Concat", [h, skip], axis=2), up)
        h = self._conv_block(self.causal_conv(h, f"{up}.2"), f"{ESTIMATOR}.final_block")
        name = f"{ESTIMATOR}.final_proj"
        proj = self.tensor("final_proj", step * self.weights[f"{name}.weight"][..., 0])
        product = self.node("FusedMatMul", [h, proj], domain=CONTRIB, transB=1)
        bias = self.tensor("final_proj.bias", step * self.weights[f"{name}.bias"])
        self.node("Add", ["x", self.node("Add", [product, bias])], ["next_x"])
        self.output("next_x", FLOAT, ("rows", "frames", mel))

    def _stage(self, x: str, name: str) -> str:
        x = self._resnet(x, f"{name}.0")
        residual: Residual = None
        for number in range(self.config.estimator_stage_blocks):
            at = f"{name}.1.{number}"
            normed, x = self.add_layer_norm(x, residual, f"{at}.norm1", EPSILON)
            attended = self.attention(
                [self.matmul(normed, f"{at}.attn1.to_{part}") for part in "qkv"],
                at,
                heads=self.config.estimator_heads,
                head_width=HEAD_WIDTH,
                positions_per_token=2,
                max_positions=self.config.left_context,
                score_bias="mask",
            )
            out, inner, outer = f"{at}.attn1.to_out.0", f"{at}.ff.net.0.proj", f"{at}.ff.net.2"
            residual = self.matmul(attended, out), out
            normed, x = self.add_layer_norm(x, residual, f"{at}.norm3", EPSILON)
            hidden = [self.matmul(normed, inner), self.weight(f"{inner}.bias")]
            residual = self.matmul(self.node("BiasGelu", hidden, domain=CONTRIB), outer), outer
        return self.add_residual(x, residual)

    def _resnet(self, x: str, name: str) -> str:
        time = self.input(f"{name}.time", FLOAT, (self.config.estimator_width,))
        h = self.node("Add", [self._conv_block(x, f"{name}.block1"), time])
        h = self._conv_block(h, f"{name}.block2")
        weight = self.tensor(f"{name}.res_conv.weight", self.weights[f"{name}.res_conv.weight"][..., 0])
        residual = self.node("FusedMatMul", [x, weight], domain=CONTRIB, transB=1)
        residual = self.node("Add", [residual, self.weight(f"{name}.res_conv.bias")])
        return self.node("Add", [h, residual])

    def _conv_block(self, x: str, name: str) -> str:
        """Convolve, normalize and apply mish(y) = y·(1 - u)/(1 + u), where u = sigmoid(-y)².

        The norm returns -y: its gain is negative.
        """
        x = self.causal_conv(x, f"{name}.block.0")
        negative = self.layer_norm(x, f"{name}.block.2", EPSILON, gain=-1.0)
        root = self.node("Sigmoid", [negative])
        u = self.node("Mul", [root, root])
        one = self.number(1.0)
        ratio = self.node("Div", [self.node("Sub", [u, one]), self.node("Add", [u, one])])
        return self.node("Mul", [negative, ratio])


def stages(config: FlowConfig) -> list[str]:
    """Return the names of the estimator's stages, in order."""
    middle = [f"{ESTIMATOR}.mid_blocks.{number}" for number in range(config.estimator_mid_stages)]
    return [f"{ESTIMATOR}.down_blocks.0", *middle, f"{ESTIMATOR}.up_blocks.0"]


def attention_names(config: FlowConfig) -> tuple[list[str], list[str]]:
    """Return the names of the token encoder's attention layers, before and after the doubling of the rate."""
    return (
        [f"encoder.encoders.{number}.self_attn" for number in range(config.encoder_blocks)],
        [f"encoder.up_encoders.{number}.self_attn" for number in range(config.encoder_up_blocks)],
    )
