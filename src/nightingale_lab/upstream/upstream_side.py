"""Run upstream's networks beside ours in one process, from an unpacked folder of its packages.

    python -m nightingale_lab.bench upstream_side --upstream DIR                        # both families on the GPU
    python -m nightingale_lab.bench upstream_side --upstream DIR --device cpu --tiny    # few steps: proves that it runs
    python -m nightingale_lab.bench upstream_side --upstream DIR --check                # only import it

`make upstream-env DIR=…` makes DIR (upstream_env.py): `chatterbox` (chatterbox-tts 0.1.7),
`transformers`, `diffusers` and what they import, all of it Python; none of it is in this repository. Modules
that upstream imports to read clips, and never to synthesize, are replaced. Outside of
`UpstreamPackages.active` the process sees its own modules and path; inside it sees upstream's, and torch.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import io
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from nightingale_lab.bench.programs.gpu.board import synchronize
from nightingale_lab.bench.runner import report
from nightingale_lab.upstream.families import FAMILIES
from nightingale_lab.upstream.networks import PROMPT_TOKENS, RandomUpstream, random_voice

MULTILINGUAL = {"repetition_penalty": 2.0, "min_p": 0.05, "top_p": 1.0}
"""Sampling of upstream's multilingual class; Turbo uses the defaults of its loop."""
TOKENS, TEXT_IDS = 102, [1 + 3 * i for i in range(60)]
"""4 s of audio."""
SHARED = frozenset({
    "torch", "torchgen", "functorch", "triton", "numpy", "safetensors", "sympy", "mpmath", "networkx",
    "jinja2", "markupsafe", "filelock", "fsspec", "typing_extensions", "nightingale", "nightingale_lab",
    *sys.stdlib_module_names,
})  # fmt: skip
"""Packages that upstream shares with the process: torch, and what torch needs."""
NEVER_USED = "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "onnx", "scipy", "requests"
LEFT_OUT = (
    "transformers.dependency_versions_check", "transformers.tokenization_utils_tokenizers",
    "transformers.modeling_gguf_pytorch_utils", "transformers.tokenization_utils_sentencepiece",
    "diffusers.dependency_versions_check",
)  # fmt: skip
"""Modules of upstream's packages that import compiled packages and are not called here."""


def is_shared(module: str) -> bool:
    return module.startswith("_") or module.partition(".")[0] in SHARED


def remove_private_modules() -> dict[str, ModuleType]:
    """Remove the modules that the two sides do not share from `sys.modules`, and return them."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if not is_shared(name)}


class UnusedModule(ModuleType):
    """A module that is imported and not used: every attribute is another one."""

    def __init__(self, name: str, **has: Any) -> None:
        super().__init__(name)
        vars(self).update(has, __path__=[])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return UnusedModule(name)


def replacements() -> dict[str, ModuleType]:
    """Return modules for what upstream imports and does not call, and for three small functions it does."""
    # The tokenizer of clips builds filters, which are not used here.
    mel = UnusedModule("mel", mel=lambda *, n_fft, n_mels, **_: np.zeros((n_mels, 1 + n_fft // 2)))
    hann = UnusedModule("hann", get_window=lambda _hann, width, fftbins: np.hanning(width + fftbins)[:width])
    made: dict[str, ModuleType] = {name: UnusedModule(name) for name in NEVER_USED}
    made |= {"librosa": UnusedModule("librosa", filters=mel), "librosa.filters": mel, "scipy.signal": hann}
    made |= {"omegaconf": UnusedModule("omegaconf", DictConfig=dict)}
    made |= {"PIL": UnusedModule("PIL", __version__="9.1.0")}
    made |= {name: UnusedModule(name) for name in ("PIL.Image", "PIL.ImageOps")}
    return made


class RestrictedFinder(NamedTuple):
    """A module finder that finds shared packages and upstream's only."""

    finder: Any
    tops: frozenset[str]

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        visible = path is not None or name in self.tops or is_shared(name)
        return self.finder.find_spec(name, path, target) if visible else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


class UpstreamPackages:
    """Upstream's packages, imported once and visible only to themselves."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._tops = frozenset(entry.name.partition(".")[0] for entry in self._folder.iterdir())
        if "chatterbox" not in self._tops:
            raise FileNotFoundError(
                f"{folder} holds no package `chatterbox`: make it with `make upstream-env`"
            )
        package = ModuleType("chatterbox")  # its own __init__ imports what reads clips and adds watermarks
        package.__path__ = [str(self._folder / "chatterbox")]
        self._modules = {name: UnusedModule(name) for name in LEFT_OUT} | {"chatterbox": package, "regex": re}
        importlib.import_module("torch._dynamo")  # transformers imports it, and it inspects other modules
        with self.active():
            importlib.import_module("chatterbox.models.t3.t3")
            replaced = replacements()
            early = {name: replaced[name] for name in replaced if name.startswith(("PIL", "requests"))}
            sys.modules.update(early)
            importlib.import_module("diffusers.models.attention")  # it looks for the other packages
            sys.modules.update(replaced)
            importlib.import_module("chatterbox.models.s3gen.s3gen")
            self.versions = {name: sys.modules[name].__version__ for name in ("transformers", "diffusers")}
            for name in replaced:
                del sys.modules[name]

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Give the process upstream's modules and path, without prints and progress bars."""
        ours, path, finders = remove_private_modules(), list(sys.path), list(sys.meta_path)
        sys.modules.update(self._modules)
        sys.path.insert(0, str(self._folder))
        sys.meta_path[:] = [RestrictedFinder(finder, self._tops) for finder in finders]
        version = importlib.metadata.version

        def visible_version(name: str) -> str:
            if not is_shared(name):
                raise importlib.metadata.PackageNotFoundError(name)
            return version(name)

        importlib.metadata.version = visible_version  # type: ignore[assignment]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                yield
        finally:
            self._modules = remove_private_modules()
            sys.modules.update(ours)
            sys.path[:], sys.meta_path[:] = path, finders
            importlib.metadata.version = version


class SentenceTimes(NamedTuple):
    """Medians in milliseconds, without the first round."""

    t3: float  # the whole loop, prefill included
    t3_token: float  # the same divided by the tokens
    s3gen: float  # flow, vocoder, and the copy to the host
    sentence: float
    tokens: int
    samples: int


class UpstreamModel:
    """One of upstream's models with random weights, in this process."""

    def __init__(
        self, packages: UpstreamPackages, family: str, device: torch.device | str, voice: Any = None
    ) -> None:
        """voice: a `nightingale.Voice`; random by default."""
        self._packages, self._device = packages, torch.device(device)
        with packages.active():
            self.model = RandomUpstream(FAMILIES[family], device=device, voice=voice)

    def greedy(self, text_ids: list[int], tokens: int) -> list[int]:
        with self._packages.active():
            return self.model.greedy(text_ids, tokens)

    def measure(
        self, text_ids: list[int], tokens: int, rounds: int = 3, steps: int | None = None
    ) -> SentenceTimes:
        """Time whole sentences. steps: of the flow, instead of ten guided or two of meanflow."""
        sampling = MULTILINGUAL if self.model.family.guided else {}
        rows = []
        with self._packages.active():
            for _ in range(1 + rounds):
                started = self._now()
                ids = self.model.decode(text_ids, tokens, **sampling)
                between = self._now()
                samples, ended = self.model.render(ids, steps).cpu().shape[-1], self._now()
                rows.append((between - started, ended - between, ended - started))
        t3, s3gen, sentence = (1000 * statistics.median(column) for column in zip(*rows[1:], strict=True))
        return SentenceTimes(t3, t3 / tokens, s3gen, sentence, len(ids), samples)

    def _now(self) -> float:
        synchronize(self._device)
        return time.perf_counter()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upstream", type=Path, required=True, help="a folder of `make upstream-env`")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--check", action="store_true", help="import the packages, and do nothing else")
    parser.add_argument("--tiny", action="store_true", help="few tokens, a short reference, one step")
    options = parser.parse_args(arguments)
    tokens, prompt, rounds, steps = (3, 4, 1, 1) if options.tiny else (TOKENS, PROMPT_TOKENS, 3, None)
    packages, rows = UpstreamPackages(options.upstream), {}
    if options.check:
        report(json.dumps({"torch": torch.__version__, **packages.versions}))
        return
    for name in ("multilingual", "turbo"):
        upstream = UpstreamModel(packages, name, options.device, random_voice(FAMILIES[name], prompt))
        times = upstream.measure(TEXT_IDS, tokens, rounds, steps)
        rows[name] = times._asdict() | {"greedy": upstream.greedy(TEXT_IDS, tokens)}
    report(json.dumps(rows, separators=(",", ":")))
