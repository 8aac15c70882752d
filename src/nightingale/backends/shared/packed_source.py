"""T3's weights for int8 runners: quantized once per model and cached on disk."""

from __future__ import annotations

from nightingale.backends.base import ModelSource
from nightingale.backends.shared.packed_t3 import (
    PackedWeights,
    WeightFormat,
    digest_of_file,
    digest_of_tensors,
    pack,
    without_backbone,
)
from nightingale.backends.torch.weights import t3_weights
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import read_tensors
from nightingale.voices.home import cache_folder


def prompt_t3(source: ModelSource) -> T3:
    """Return a T3 that embeds prompts. Its layers are not loaded where they can be quantized from a file."""
    if not _quantizes_from_file(source):
        return t3_weights(source, "cpu", "float32")
    path, config = source.files["t3"], source.info.preset.t3
    return source.shared("t3-embeddings", lambda: without_backbone(config, read_tensors(path), source=path))


def packed_weights(source: ModelSource, weight_format: WeightFormat) -> PackedWeights:
    """Return the quantized weights, made now if they are not cached yet."""
    cache_dir, config = cache_folder().parent / "int8", source.info.preset.t3
    if _quantizes_from_file(source):
        path = source.files["t3"]
        tensors, digest = read_tensors(path), digest_of_file(path, cache_dir=cache_dir)
    else:
        tensors = t3_weights(source, "cpu", "float32").state_dict()
        digest = digest_of_tensors(tensors)
    mapped = _quantizes_from_file(source)
    return pack(config, tensors, weight_format, cache_dir=cache_dir, source=digest, mapped=mapped)


def _quantizes_from_file(source: ModelSource) -> bool:
    return "t3" in source.files and not source.packed
