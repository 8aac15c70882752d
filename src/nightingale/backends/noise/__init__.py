"""The test-signal backend: numpy only, for the model "noise", which has no weights.

It exists so that an installation can be tried and the engine and the servers be tested without PyTorch and
without a download. It obeys the same contract as every other backend: seeds, streaming and batches
behave as they do with real networks. Its audio is a tone per token under noise, not speech.
"""

from __future__ import annotations

from nightingale.backends.base import (
    Backend,
    Decoder,
    Encoders,
    ModelInfo,
    ModelSource,
    Renderer,
    Role,
    Setup,
)


class NoiseBackend(Backend):
    name = "noise"
    description = "test signals by numpy"
    device_kinds: tuple[str, ...] = ()

    def unsupported_reason(self, role: Role, model: ModelInfo, setup: Setup) -> str | None:  # noqa: ARG002
        return None if model.synthetic else "it makes test signals for the model 'noise' only"

    def open_decoder(self, source: ModelSource, setup: Setup) -> Decoder:  # noqa: ARG002
        from nightingale.backends.noise.runner import NoiseRunner
        from nightingale.decoding.host_decoder import HostDecoder
        from nightingale.decoding.kv_cache_size import KVCacheSize

        info, runner = source.info, NoiseRunner(source.info)
        kv_cache_size = KVCacheSize(info.preset.t3, itemsize=4)
        return HostDecoder(runner, kv_cache_size)

    def open_renderer(self, source: ModelSource, setup: Setup) -> Renderer:  # noqa: ARG002
        from nightingale.backends.noise.renderer import NoiseRenderer

        return NoiseRenderer()

    def open_encoders(self, source: ModelSource, setup: Setup) -> Encoders | None:  # noqa: ARG002
        if not source.info.synthetic:
            return None
        from nightingale.backends.noise.encoders import NoiseEncoders

        return NoiseEncoders(source.info.preset)
