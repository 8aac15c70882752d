"""The networks of cloning as graphs: the voice encoder and the speech tokenizer.

Voice encoder (models/chatterbox/encoders/voice_encoder.py):

    embedding = relu(linear(last hidden state of three LSTM layers))

Speech tokenizer (models/chatterbox/encoders/speech_tokenizer.py):

    x = gelu(strided_conv(gelu(strided_conv(mel))))                  four frames to a token
    for each block:
        q, k, v = linear(norm(x));   x += out(attention(rotate(q), rotate(k), v)) + v + depthwise_conv(v)
        x += linear(gelu(linear(norm(x))))
    digits = linear(x)                                               rounded by encoders.py
"""

from __future__ import annotations

import numpy as np

from nightingale.backends.onnx.network_graph import NetworkGraph
from nightingale.backends.onnx.numpy_weights import Floats, Weights
from nightingale.backends.onnx.protobuf import CONTRIB, FLOAT
from nightingale.models.chatterbox.encoders.config import SpeechTokenizerConfig, VoiceEncoderConfig

EPSILON = 1e-5


class VoiceEncoderGraph(NetworkGraph):
    """windows (frames, windows, bands) -> embeddings (windows, embedding), not of length one yet."""

    def __init__(self, config: VoiceEncoderConfig, weights: Weights) -> None:
        super().__init__(weights)
        x = self.input("windows", FLOAT, ("frames", "windows", config.mel_bands))
        for layer in range(config.layers):
            recurrent = [
                self.tensor(f"{kind}_l{layer}", self._gates(f"lstm.{kind}_l{layer}")[None])
                for kind in ("weight_ih", "weight_hh")
            ]
            biases = [self._gates(f"lstm.{kind}_l{layer}") for kind in ("bias_ih", "bias_hh")]
            bias = self.tensor(f"bias_l{layer}", np.concatenate(biases)[None])
            outputs = [f"states_l{layer}", f"last_l{layer}"]
            self.node("LSTM", [x, *recurrent, bias], outputs, hidden_size=config.width)
            x = self.node("Squeeze", [f"states_l{layer}", self.ints(1)])
        last = self.node("Squeeze", [f"last_l{config.layers - 1}", self.ints(0)])
        self.node("Relu", [self.linear(last, "proj")], ["embeddings"])
        self.output("embeddings", FLOAT, ("windows", config.embedding))

    def _gates(self, name: str) -> Floats:
        """Return the weights of the four gates in the order of ONNX; PyTorch's is input, forget, cell, output."""
        gate_input, forget, cell, gate_output = np.split(self.weights[name], 4)
        return np.concatenate([gate_input, gate_output, forget, cell])


class SpeechTokenizerGraph(NetworkGraph):
    """Inputs and outputs:

    mel     (1, bands, frames)
    mask    (1, 1, tokens, tokens)     added to the scores
    cos, sin                           (tokens, head_dim / 2)
    digits  (1, tokens, code_digits)   before rounding
    """

    def __init__(self, config: SpeechTokenizerConfig, weights: Weights) -> None:
        super().__init__(weights)
        self.config, half = config, config.width // config.heads // 2
        self.input("mel", FLOAT, (1, config.mel_bands, "frames"))
        self.input("mask", FLOAT, (1, 1, "tokens", "tokens"))
        for name in ("cos", "sin"):
            self.input(name, FLOAT, ("tokens", half))
        x = "mel"
        for name in ("encoder.conv1", "encoder.conv2"):
            inputs = [x, self.weight(f"{name}.weight"), self.weight(f"{name}.bias")]
            x = self._gelu(self.node("Conv", inputs, strides=(2,), pads=(1, 1)))
        x = self.node("Transpose", [x], perm=(0, 2, 1))
        for block in range(config.blocks):
            at = f"encoder.blocks.{block}"
            attended = self._attention(self.layer_norm(x, f"{at}.attn_ln", EPSILON), f"{at}.attn")
            x = self.node("Add", [x, attended])
            inner = self._gelu(self.linear(self.layer_norm(x, f"{at}.mlp_ln", EPSILON), f"{at}.mlp.0"))
            x = self.node("Add", [x, self.linear(inner, f"{at}.mlp.2")])
        digits = self.linear(x, "quantizer._codebook.project_down")
        self.node("Identity", [digits], ["digits"])
        self.output("digits", FLOAT, (1, "tokens", config.code_digits))

    def _attention(self, x: str, name: str) -> str:
        """Attend, and add a depthwise convolution over the values (FSMN)."""
        q, k, v = (
            self.linear(x, f"{name}.query"),
            self.matmul(x, f"{name}.key"),
            self.linear(x, f"{name}.value"),
        )
        q, k = (self._rotate(part) for part in (q, k))
        inputs = [q, k, v, "", "", "mask"]
        attended = self.node("MultiHeadAttention", inputs, domain=CONTRIB, num_heads=self.config.heads)
        channels_first = self.node("Transpose", [v], perm=(0, 2, 1))
        reach = self.config.memory_taps // 2
        memory = self.node(
            "Conv",
            [channels_first, self.weight(f"{name}.fsmn_block.weight")],
            pads=(reach, reach),
            group=self.config.width,
        )
        memory = self.node("Add", [v, self.node("Transpose", [memory], perm=(0, 2, 1))])
        return self.node("Add", [self.linear(attended, f"{name}.out"), memory])

    def _rotate(self, x: str) -> str:
        return self.node("RotaryEmbedding", [x, self.ints(0), "cos", "sin"], domain=CONTRIB)

    def _gelu(self, x: str) -> str:
        return self.node("Gelu", [x], domain=CONTRIB)
