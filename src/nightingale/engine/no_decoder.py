"""The decoder of an engine that only converts recordings: there is no T3, and no request may need one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from nightingale.backends.base import ModelInfo
from nightingale.decoding.decoding import Decoding
from nightingale.decoding.host_decoder import DecodeRow
from nightingale.decoding.kv_cache_size import KVCacheSize
from nightingale.errors import ConfigError


class NoDecoder:
    """Implements `Decoder` without decoding: requests with speech tokens of their own leave it alone."""

    max_prefills = 8  # each takes no time: a recording's tokens are only handed on
    traces_attention = False

    def __init__(self, info: ModelInfo) -> None:
        self.kv_cache_size = KVCacheSize(info.preset.t3, itemsize=4)

    def start(self) -> None: ...

    def prefill(self, slot: int, decoding: Decoding) -> NoReturn:  # noqa: ARG002, a protocol
        raise ConfigError("a converter speaks no text", fix="Open a TTS.")

    def decode(self, rows: Sequence[DecodeRow]) -> NoReturn:  # noqa: ARG002, a protocol
        raise ConfigError("a converter speaks no text", fix="Open a TTS.")

    def release(self, slot: int) -> None: ...

    def move(self, source: int, target: int) -> None: ...

    def reset(self, slot: int) -> None: ...

    def prepare(self) -> bool:
        return False
