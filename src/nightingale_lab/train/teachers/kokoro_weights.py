"""Kokoro's weights: out of its ONNX file, into parts small enough to carry, and into our module.

The file `kokoro-v1.0.int8.onnx` stores matrices as integers with scales. We keep the integers as they
are, under our module's names, Huffman-coded tensor by tensor (92 MB become about 60 MB at no loss), in
any number of parts: a GPU machine that takes 64 MiB per transfer gets them in two.

Part file: 8 bytes little-endian header length, JSON header {name: {shape, dtype, scale, zero, at, size}},
blobs. A value is (integer - zero) * scale; `scale` is a number, or a list along the first axis.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nightingale.errors import CheckpointError

if TYPE_CHECKING:
    import onnx

_HIDDEN = 256  # of every LSTM, per direction
_IOFC_TO_IFGO = (0, 2, 3, 1)  # ONNX orders the gates input-output-forget-cell, torch input-forget-cell-output

_RENAMES = (
    (r"^decoder\.decoder\.", "decoder."),
    (r"^encoder\.(F0|N|shared|F0_proj|N_proj)\b", r"predictor.\1"),
    (r"^encoder\.", ""),
    (r"^bert\.embeddings\.(word|position|token_type)_embeddings", r"bert.\1"),
    (r"^bert\.embeddings\.LayerNorm", "bert.norm"),
    (r"^bert\.encoder\.embedding_hidden_mapping_in", "bert.hidden_in"),
    (r"^bert\.encoder\.albert_layer_groups\.0\.albert_layers\.0\.", "bert."),
    (r"^bert\.attention\.LayerNorm", "bert.attention_norm"),
    (r"^bert\.attention\.", "bert."),
    (r"^bert\.(query|key|value|dense|ffn|ffn_output)_\d+\.", r"bert.\1."),  # the layer's twelve uses
    (r"^bert\.full_layer_layer_norm", "bert.output_norm"),
    (r"^text_encoder\.cnn\.(\d)\.0\.", r"text_encoder.convs.\1."),
    (r"^text_encoder\.cnn\.(\d)\.1\.gamma", r"text_encoder.norms.\1.weight"),
    (r"^text_encoder\.cnn\.(\d)\.1\.beta", r"text_encoder.norms.\1.bias"),
    (r"^predictor\.text_encoder\.lstms\.1\.fc", "predictor.affines.0"),
    (r"^predictor\.text_encoder\.lstms\.3\.fc", "predictor.affines.1"),
    (r"^predictor\.text_encoder\.lstms\.5\.fc", "predictor.affines.2"),
    (r"^predictor\.text_encoder\.lstms\.2", "predictor.lstms.1"),
    (r"^predictor\.text_encoder\.lstms\.4", "predictor.lstms.2"),
    (r"^predictor\.text_encoder\.lstms\.0", "predictor.lstms.0"),
    (r"^predictor\.duration_proj\.linear_layer", "predictor.duration_proj"),
    (r"^decoder\.asr_res\.0", "decoder.asr_res"),
    (r"^decoder\.generator\.m_source\.l_linear", "decoder.generator.source_mix"),
)


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor as stored: (values - zero) * scale."""

    values: NDArray[Any]
    scale: float | list[float] = 1.0
    zero: int = 0

    def tensor(self) -> Tensor:
        values = torch.from_numpy(self.values.astype(np.float32))
        scale = torch.tensor(self.scale, dtype=torch.float32)
        return (values - self.zero) * scale.reshape(-1, *[1] * (values.ndim - 1) if scale.ndim else ())


def our_name(path: str) -> str:
    """The module's name for a graph name or a node path: `/encoder/F0.1/conv1` -> `predictor.F0.1.conv1`."""
    if path.startswith("/"):
        steps = path.strip("/").split("/")
        kept = [a for a, b in zip(steps, [*steps[1:], ""], strict=True) if not b.startswith(a + ".")]
        path = ".".join(kept)
    path = (
        path.replace("encoder.predictor.", "predictor.", 1) if path.startswith("encoder.predictor.") else path
    )
    for pattern, name in _RENAMES:
        path = re.sub(pattern, name, path)
    return path


def read_onnx(path: Path) -> dict[str, Packed]:
    """Every parameter of the module, by its name."""
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    stored = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    out: dict[str, Packed] = {}
    for node in graph.node:
        for name, packed in _parameters(node, stored):
            out.setdefault(name, packed)
    for name, values in stored.items():
        if re.search(r"\.(bias|gamma|beta|alpha[12]\.\d)$|Norm\.weight$|layer_norm\.weight$", name):
            out[our_name(name)] = Packed(values)
        elif name.endswith(("embeddings.weight_quantized", "embedding.weight_quantized")):
            scale = float(stored[name.replace("_quantized", "_scale")])
            out[our_name(name.removesuffix("_quantized"))] = Packed(values, scale)
    return out


def _parameters(node: onnx.NodeProto, stored: dict[str, NDArray[Any]]) -> Iterator[tuple[str, Packed]]:
    owner = our_name(node.name.rpartition("/")[0] + "/.")[:-1]
    if node.op_type in ("MatMulInteger", "ConvInteger"):
        values, zero = stored[node.input[1]], stored[node.input[3]]
        scale = stored[node.input[1].removesuffix("_quantized") + "_scale"]
        if node.op_type == "MatMulInteger":  # (in, out) -> (out, in), one scale per output, zero point 0
            yield f"{owner}weight", Packed(np.ascontiguousarray(values.T), scale.tolist())
        else:
            yield f"{owner}weight", Packed(values, float(scale), int(zero))
    elif node.op_type == "DynamicQuantizeLSTM":
        bias = stored[node.input[3]].reshape(2, 2, 4, _HIDDEN)[:, :, _IOFC_TO_IFGO].reshape(2, 2, -1)
        for direction, suffix in enumerate(("", "_reverse")):
            for slot, (which, scale_at) in enumerate((("ih", 8), ("hh", 10))):
                values = stored[node.input[1 + slot]][direction].T  # (4 * hidden, in)
                values = values.reshape(4, _HIDDEN, -1)[list(_IOFC_TO_IFGO)].reshape(4 * _HIDDEN, -1)
                step = float(stored[node.input[scale_at]][direction])
                yield f"{owner}weight_{which}_l0{suffix}", Packed(np.ascontiguousarray(values), step)
                yield f"{owner}bias_{which}_l0{suffix}", Packed(bias[direction, slot])
    elif node.op_type in ("ConvTranspose", "Conv") and "istft" not in node.name:
        yield f"{owner}weight", Packed(stored[node.input[1]])
    elif node.op_type == "MatMul" and node.input[1] in stored:
        yield f"{owner}weight", Packed(np.ascontiguousarray(stored[node.input[1]].T))


def write_parts(weights: dict[str, Packed], paths: Iterable[Path]) -> None:
    """Spread the weights over the given files, about evenly."""
    coded = {name: _huffman(packed.values) for name, packed in weights.items()}
    files = list(paths)
    share = sum(map(len, coded.values())) / len(files)
    names = iter(coded)
    for index, file in enumerate(files):
        header: dict[str, Any] = {}
        blobs: list[bytes] = []
        at = 0
        while (at < share or index == len(files) - 1) and (name := next(names, None)) is not None:
            packed, blob = weights[name], coded[name]
            header[name] = {
                "shape": packed.values.shape,
                "dtype": packed.values.dtype.str,
                "scale": packed.scale,
                "zero": packed.zero,
                "at": at,
                "size": len(blob),
            }
            blobs.append(blob)
            at += len(blob)
        text = json.dumps(header, separators=(",", ":")).encode()
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def read_parts(paths: Iterable[Path]) -> dict[str, Packed]:
    out: dict[str, Packed] = {}
    for path in paths:
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:start]).items():
            at = start + entry["at"]
            raw = zlib.decompress(data[at : at + entry["size"]])
            values = np.frombuffer(raw, dtype=entry["dtype"]).reshape(entry["shape"])
            out[name] = Packed(values, entry["scale"], entry["zero"])
    return out


def _huffman(values: NDArray[Any]) -> bytes:
    """Weights repeat no strings, so matching only costs time: code single bytes by frequency."""
    coder = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    return coder.compress(np.ascontiguousarray(values).tobytes()) + coder.flush()


def load_into(module: nn.Module, weights: dict[str, Packed]) -> None:
    """Fill every parameter of the module; shapes may differ by axes of length one."""
    wanted = dict(module.named_parameters())
    missing, extra = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing or extra:
        raise CheckpointError(
            "Kokoro's weights do not fit the module",
            got=f"missing {missing[:5]}, unknown {extra[:5]}",
            allowed=f"exactly the {len(wanted)} parameters",
            fix="Give all the parts that were written together.",
        )
    with torch.no_grad():
        for name, parameter in wanted.items():
            parameter.copy_(weights[name].tensor().reshape(parameter.shape))
