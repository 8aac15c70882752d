"""Open T3 in PyTorch."""

from __future__ import annotations

from functools import partial
from typing import Any

from nightingale.backends.base import Decoder, ModelSource, Setup
from nightingale.backends.torch.devices import use_threads
from nightingale.backends.torch.runner import TorchRunner
from nightingale.backends.torch.weights import t3_weights
from nightingale.decoding.host_decoder import HostDecoder
from nightingale.decoding.kv_cache_size import KVCacheSize


def open_decoder(source: ModelSource, setup: Setup) -> Decoder:
    t3 = t3_weights(source, setup.machine.device, setup.precision)
    runner = TorchRunner(t3, **pool_options(source, setup))
    kv_cache_size = KVCacheSize(source.info.preset.t3, itemsize=t3.speech_head.weight.element_size())
    on_start = None if setup.threads is None else partial(use_threads, setup.threads)
    return HostDecoder(runner, kv_cache_size, on_start=on_start)


def pool_options(source: ModelSource, setup: Setup) -> dict[str, Any]:
    """Return the arguments that every T3 runner takes."""
    info = source.info
    return {
        "slots": setup.slots,
        "rows_per_slot": info.rows_per_slot,
        "capacity": info.max_positions,
        "batched": setup.profile.batched,
        "max_new_tokens": info.defaults.max_new_tokens,
    }
