"""Upstream's own networks beside ours in one process, from an unpacked folder of its packages.

    python benchmarks/upstream_side.py --upstream DIR   # both families on the GPU; prints JSON
    python benchmarks/upstream_side.py --upstream DIR --device cpu --tiny   # few steps: proves the path

DIR holds `chatterbox` (chatterbox-tts 0.1.7), `transformers`, `diffusers` and what they import, all of it
Python; nothing of it is in this repository. What upstream imports to read clips, and never to speak, is stood
in for. Outside of a call the process has its own modules and path; inside, upstream sees its own and torch.
Weights are upstream's initial ones in float32, as it runs; time does not depend on them.
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
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

FAMILIES = {"multilingual": ("Llama_520M", 2454), "turbo": ("GPT2_medium", 50276)}
"""Upstream's name of the backbone, entries of the text vocabulary."""
MULTILINGUAL = {"repetition_penalty": 2.0, "min_p": 0.05, "top_p": 1.0}  # Turbo has the loop's defaults
START_TEXT, STOP_TEXT, SPEECH_CODES = 255, 0, 6561
TOKENS, PROMPT_TOKENS, TEXT_IDS = 102, 250, [1 + 3 * i for i in range(60)]  # 4 s of sound, 10 s of reference
SHARED = frozenset({
    "torch", "torchgen", "functorch", "triton", "numpy", "safetensors", "sympy", "mpmath", "networkx",
    "jinja2", "markupsafe", "filelock", "fsspec", "typing_extensions", "nightingale", *sys.stdlib_module_names
})  # fmt: skip
"""Packages that upstream sees as the process has them: torch, and what torch needs."""
NEVER_USED = "torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "onnx", "scipy", "requests"
LEFT_OUT = (
    "transformers.dependency_versions_check", "transformers.tokenization_utils_tokenizers",
    "transformers.modeling_gguf_pytorch_utils", "transformers.tokenization_utils_sentencepiece",
    "diffusers.dependency_versions_check",
)  # fmt: skip
"""Their own modules that ask for compiled packages; nothing here calls them."""


def is_shared(module: str) -> bool:
    return module.startswith("_") or module.partition(".")[0] in SHARED


def take_apart() -> dict[str, ModuleType]:
    """The modules that the two sides do not share, which are no longer in the process's list."""
    return {name: sys.modules.pop(name) for name in list(sys.modules) if not is_shared(name)}


class Absent(ModuleType):
    """A module that is imported and not used: it has every attribute, each as absent."""

    def __init__(self, name: str, **has: Any) -> None:
        super().__init__(name)
        vars(self).update(has, __path__=[])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(name)


def stand_ins() -> dict[str, ModuleType]:
    """For what upstream imports and does not call, and for three small things that it does."""
    # The tokenizer of clips has filters; it hears nothing here.
    mel = Absent("mel", mel=lambda *, n_fft, n_mels, **_: np.zeros((n_mels, 1 + n_fft // 2)))
    hann = Absent("hann", get_window=lambda _hann, width, fftbins: np.hanning(width + fftbins)[:width])
    made: dict[str, ModuleType] = {name: Absent(name) for name in NEVER_USED}
    made |= {"librosa": Absent("librosa", filters=mel), "librosa.filters": mel, "scipy.signal": hann}
    made |= {"omegaconf": Absent("omegaconf", DictConfig=dict), "PIL": Absent("PIL", __version__="9.1.0")}
    made |= {"PIL.Image": Absent("PIL.Image"), "PIL.ImageOps": Absent("PIL.ImageOps")}
    return made


def _seen(package: str) -> str:
    """Its name, if upstream may know that it is installed."""
    if not is_shared(package):
        raise importlib.metadata.PackageNotFoundError(package)
    return package


class Door(NamedTuple):
    """A finder of modules that finds only what may be seen."""

    finder: Any
    tops: frozenset[str]

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> Any:
        seen = path is not None or name in self.tops or is_shared(name)
        return self.finder.find_spec(name, path, target) if seen else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


def random_voice(family: str, prompt: int) -> SimpleNamespace:
    """Of so many tokens; guided models are shown six seconds of it."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(SPEECH_CODES, (prompt,), generator=rng)
    return SimpleNamespace(
        speaker=torch.rand(256, generator=rng),
        prompt_ids=ids[: 150 if family == "multilingual" else 375],
        flow_prompt_ids=ids,
        flow_prompt_mel=torch.randn(2 * prompt, 80, generator=rng),
        flow_speaker=torch.randn(192, generator=rng),
    )


class House:
    """Upstream's packages, imported once and shown only to themselves."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._tops = frozenset(entry.name.partition(".")[0] for entry in self._folder.iterdir())
        if "chatterbox" not in self._tops:
            raise FileNotFoundError(f"{folder} holds no package `chatterbox`: give the unpacked folder")
        package = ModuleType("chatterbox")  # its own first file loads what reads clips and marks sound
        package.__path__ = [str(self._folder / "chatterbox")]
        self._guests = {name: Absent(name) for name in LEFT_OUT} | {"chatterbox": package, "regex": re}
        importlib.import_module("torch._dynamo")  # which transformers asks for, and which looks around
        with self.hosted():
            self.t3: Any = importlib.import_module("chatterbox.models.t3.t3")
            stood = stand_ins()
            sys.modules.update({name: stood[name] for name in stood if name.startswith(("PIL", "requests"))})
            importlib.import_module("diffusers.models.attention")  # which looks whether the others are there
            sys.modules.update(stood)
            self.s3gen: Any = importlib.import_module("chatterbox.models.s3gen.s3gen")
            self.versions = {name: sys.modules[name].__version__ for name in ("transformers", "diffusers")}
            for name in stood:  # whoever asks later is told that they are not there
                del sys.modules[name]
        # The wheel is older than HEAD: it watches the alignment, and asks for maps of attention.
        self.t3.T3Config.is_multilingual = property(lambda _self: False)
        backend, wheel = self.t3.T3HuggingfaceBackend, self.t3.T3HuggingfaceBackend.forward
        backend.forward = lambda self, *a, **k: wheel(self, *a, **{**k, "output_attentions": False})

    @contextlib.contextmanager
    def hosted(self) -> Iterator[None]:
        """Inside, the process is upstream's: its modules, its path, no prints and no bars."""
        ours, path, finders = take_apart(), list(sys.path), list(sys.meta_path)
        sys.modules.update(self._guests)
        sys.path.insert(0, str(self._folder))
        sys.meta_path[:] = [Door(finder, self._tops) for finder in finders]
        version = importlib.metadata.version
        importlib.metadata.version = lambda distribution_name: version(_seen(distribution_name))
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                yield
        finally:
            self._guests = take_apart()
            sys.modules.update(ours)
            sys.path[:], sys.meta_path[:] = path, finders
            importlib.metadata.version = version

    def build(self, family: str, device: torch.device, *, voice: Any = None, seed: int = 0) -> Guest:
        """voice: a nightingale.voices.voice.Voice, or what has its tensors; a random one if there is none."""
        config = self.t3.T3Config()
        config.llama_config_name, config.text_tokens_dict_size = FAMILIES[family]
        if family == "turbo":
            config.speech_tokens_dict_size, config.speech_cond_prompt_len = SPEECH_CODES + 2, 375
            config.input_pos_emb, config.use_perceiver_resampler, config.emotion_adv = None, False, False
        with self.hosted(), torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            with torch.device(device):  # half a billion random numbers are sooner made there
                t3 = self.t3.T3(config)
            for tensor in t3.speech_head.parameters():
                tensor.mul_(10)  # peaked: greedy ids are not decided by rounding
                tensor[SPEECH_CODES:] = 0  # a sound is ever likelier than a control
            s3gen = self.s3gen.S3Token2Wav(meanflow=family == "turbo")
        for net in (t3, s3gen):
            net.to(device).eval().requires_grad_(False)
        return Guest(self, t3, s3gen, voice or random_voice(family, PROMPT_TOKENS))


class Times(NamedTuple):
    """Milliseconds, medians; the first round, which finds nothing warm, is not counted."""

    t3: float  # the whole loop, with its prefill
    t3_token: float  # that, divided by the tokens: so the 18.75 ms of facts/performance.md were taken
    s3gen: float  # flow, vocoder, and the samples on the host
    sentence: float
    tokens: int
    samples: int


class Guest:
    """One of upstream's models and a voice. It does not stop by itself: a sentence is as long as asked."""

    def __init__(self, house: House, t3: Any, s3gen: Any, voice: Any) -> None:
        self.t3, self.s3gen, self._house, self._device = t3, s3gen, house, t3.device
        self.t3_tensors, self.s3gen_tensors = t3.state_dict(), s3gen.state_dict()  # as upstream ships them
        t3.hp.stop_speech_token = -1
        shown = {"speaker_emb": voice.speaker[None], "cond_prompt_speech_tokens": voice.prompt_ids[None]}
        shown |= {"emotion_adv": torch.full((1, 1, 1), 0.5)}
        self._condition = house.t3.T3Cond(**shown).to(device=self._device)
        reference = {"prompt_token": voice.flow_prompt_ids, "prompt_feat": voice.flow_prompt_mel}
        reference |= {"embedding": voice.flow_speaker}
        self._reference = {name: tensor[None].to(self._device) for name, tensor in reference.items()}
        prompt = torch.tensor([len(voice.flow_prompt_ids)], device=self._device)
        self._reference |= {"prompt_token_len": prompt, "prompt_feat_len": None}

    def greedy(self, text_ids: list[int], count: int) -> list[int]:
        """The likeliest ids, without penalty: ours at temperature 0 and repetition penalty 1."""
        sampling = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
        sampling["top_k" if self.t3.is_gpt else "min_p"] = 1  # one is left to draw from
        with self._house.hosted():
            return [int(token) for token in self._draw(text_ids, count, **sampling)]

    def measure(self, text_ids: list[int], tokens: int, rounds: int = 3, steps: int | None = None) -> Times:
        """Sentences as upstream speaks them; steps: of the flow, instead of ten guided or two of meanflow."""
        rows = []
        with self._house.hosted():
            for _ in range(1 + rounds):
                started = self._now()
                ids = self._draw(text_ids, tokens)
                between = self._now()
                told = {"ref_dict": dict(self._reference), "n_cfm_timesteps": steps}
                wav, _ = self.s3gen.inference((ids % SPEECH_CODES)[None], **told)
                samples, ended = wav.cpu().shape[-1], self._now()
                rows.append((between - started, ended - between, ended - started))
        t3, s3gen, sentence = (1000 * statistics.median(column) for column in zip(*rows[1:], strict=True))
        return Times(t3, t3 / tokens, s3gen, sentence, len(ids), samples)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _draw(self, text_ids: list[int], count: int, **sampling: float) -> torch.Tensor:
        """(count,) speech ids by upstream's own loop."""
        if self.t3.is_gpt:  # which draws one before its loop
            text = torch.tensor([text_ids], device=self._device)
            ids = self.t3.inference_turbo(self._condition, text, max_gen_len=count - 1, **sampling)
        else:
            text = torch.tensor([[START_TEXT, *text_ids, STOP_TEXT]] * 2, device=self._device)
            said = {"t3_cond": self._condition, "text_tokens": text, "max_new_tokens": count}
            ids = self.t3.inference(**said, **MULTILINGUAL | sampling)
        drawn: torch.Tensor = ids[0]
        return drawn


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--upstream", type=Path, required=True, help="the unpacked folder")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="few tokens, a short reference, one step")
    options = parser.parse_args(arguments)
    tokens, prompt, rounds, steps = (3, 4, 1, 1) if options.tiny else (TOKENS, PROMPT_TOKENS, 3, None)
    house, device, rows = House(options.upstream), torch.device(options.device), {}
    for family in FAMILIES:
        guest = house.build(family, device, voice=random_voice(family, prompt))
        times = guest.measure(TEXT_IDS, tokens, rounds, steps)
        rows[family] = times._asdict() | {"greedy": guest.greedy(TEXT_IDS, tokens)}
    print(json.dumps(rows, separators=(",", ":")))


if __name__ == "__main__":
    main()
