"""Upstream's own networks at full size with random weights, as its HEAD 5de7a54 runs them.

Official weights are not available everywhere, and time does not depend on them. Upstream's packages are
imported inside the functions, so that this module can be imported by any process: the functions are called
in upstream's environment, or inside `nightingale_lab/upstream/upstream_side.py`.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from nightingale_lab.upstream.families import CONDS_FILE, SPEECH_CODES, Family

START_TEXT, STOP_TEXT = 255, 0
PROMPT_TOKENS = 250
"""Ten seconds, the flow's longest reference."""
RATE_HZ = 24_000


def apply_head_changes() -> None:
    """Give the wheel (PyPI 0.1.7) what HEAD has: Nano's sizes, no alignment analyzer, no attention maps."""
    from chatterbox.models.t3.inference.t3_hf_backend import T3HuggingfaceBackend
    from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS
    from chatterbox.models.t3.modules.t3_config import T3Config

    if "GPT2_small" in LLAMA_CONFIGS:
        return
    small = {"n_embd": 768, "hidden_size": 768, "n_layer": 12, "n_head": 12}
    LLAMA_CONFIGS["GPT2_small"] = {**LLAMA_CONFIGS["GPT2_medium"], **small}
    T3Config.is_multilingual = property(lambda _self: False)
    wheel = T3HuggingfaceBackend.forward
    T3HuggingfaceBackend.forward = lambda self, *a, **k: wheel(self, *a, **{**k, "output_attentions": False})


def t3_config(family: Family) -> Any:
    """Return T3's configuration as upstream's wrapper classes set it up."""
    from chatterbox.models.t3.modules.t3_config import T3Config

    config = T3Config(text_tokens_dict_size=family.text_vocab)
    config.llama_config_name = family.backbone
    if not family.guided:
        config.speech_tokens_dict_size, config.speech_cond_prompt_len = SPEECH_CODES + 2, 375
        config.input_pos_emb = None
        config.use_perceiver_resampler = config.emotion_adv = False
    return config


def save_networks(family: Family, networks: Mapping[str, nn.Module], folder: Path) -> dict[str, Path]:
    """Write networks by role ("t3", "s3gen", "voice_encoder") under their official file names."""
    from safetensors.torch import save_file

    names = {"t3": family.t3_file, "s3gen": family.s3gen_file, "voice_encoder": family.voice_encoder_file}
    folder.mkdir(parents=True, exist_ok=True)
    for role, network in networks.items():
        tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
        save = torch.save if names[role].endswith(".pt") else save_file
        save(tensors, folder / names[role])
    return {role: folder / names[role] for role in networks}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress upstream's prints and progress bars."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def random_voice(family: Family, prompt_tokens: int = PROMPT_TOKENS) -> SimpleNamespace:
    """Return random conditioning with the fields of a `nightingale.Voice`."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(SPEECH_CODES, (prompt_tokens,), generator=rng)
    return SimpleNamespace(
        speaker=torch.rand(256, generator=rng),
        prompt_ids=ids[: 150 if family.guided else 375],
        flow_prompt_ids=ids,
        flow_prompt_mel=torch.randn(2 * prompt_tokens, 80, generator=rng),
        flow_speaker=torch.randn(192, generator=rng),
    )


class RandomUpstream:
    """One of upstream's models and a voice, both random. It makes exactly as many tokens as asked for."""

    def __init__(
        self, family: Family, *, device: torch.device | str = "cpu", voice: Any = None, seed: int = 0
    ) -> None:
        """voice: a `nightingale.Voice`, or an object with its arrays; random by default."""
        from chatterbox.models.s3gen import S3Gen
        from chatterbox.models.t3 import T3
        from chatterbox.models.t3.modules.cond_enc import T3Cond

        apply_head_changes()
        voice = voice or random_voice(family)
        self.family, self.device = family, torch.device(device)
        with quiet(), torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            with self.device:  # half a billion random numbers are made faster on a GPU
                self.t3 = T3(t3_config(family))
            for tensor in self.t3.speech_head.parameters():
                tensor.mul_(10)  # peaked logits: rounding does not decide greedy tokens
                tensor[SPEECH_CODES:] = 0
            self.s3gen = S3Gen(meanflow=not family.guided)
        for network in (self.t3, self.s3gen):
            network.to(self.device).eval().requires_grad_(False)
        self.t3.hp.stop_speech_token = -1
        self._condition = T3Cond(
            speaker_emb=torch.as_tensor(voice.speaker)[None],
            cond_prompt_speech_tokens=torch.as_tensor(voice.prompt_ids)[None],
            emotion_adv=torch.full((1, 1, 1), 0.5),
        ).to(device=self.device)
        prompt = {
            "prompt_token": voice.flow_prompt_ids,
            "prompt_feat": voice.flow_prompt_mel,
            "embedding": voice.flow_speaker,
        }
        self._reference: dict[str, Tensor | None] = {
            name: torch.as_tensor(t)[None].to(self.device) for name, t in prompt.items()
        }
        length = torch.tensor([len(voice.flow_prompt_ids)], device=self.device)
        self._reference |= {"prompt_token_len": length, "prompt_feat_len": None}

    def save(self, folder: Path) -> None:
        """Write the model's files under their official names, all but the tokenizers."""
        from chatterbox.models.voice_encoder import VoiceEncoder

        networks = {"t3": self.t3, "s3gen": self.s3gen, "voice_encoder": VoiceEncoder()}
        save_networks(self.family, networks, folder)
        torch.save({"t3": vars(self._condition), "gen": self._reference}, folder / CONDS_FILE)

    @torch.inference_mode()
    def decode(self, text_ids: list[int], tokens: int, **sampling: float) -> Tensor:
        """Return that many speech ids, (tokens,), by upstream's own loop."""
        with quiet():
            if not self.family.guided:  # this loop draws one token before it counts
                text = torch.tensor([text_ids], device=self.device)
                ids = self.t3.inference_turbo(self._condition, text, max_gen_len=tokens - 1, **sampling)
            else:
                framed = torch.tensor([[START_TEXT, *text_ids, STOP_TEXT]] * 2, device=self.device)
                ids = self.t3.inference(
                    t3_cond=self._condition, text_tokens=framed, max_new_tokens=tokens, **sampling
                )
        drawn: Tensor = ids[0]
        return drawn

    def greedy(self, text_ids: list[int], tokens: int) -> list[int]:
        """Return the most likely ids: ours at temperature 0 and repetition penalty 1."""
        sampling = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0}
        sampling["min_p" if self.family.guided else "top_k"] = 1  # only one candidate remains
        return [int(token) for token in self.decode(text_ids, tokens, **sampling)]

    @torch.inference_mode()
    def render(self, ids: Tensor, steps: int | None = None) -> Tensor:
        """Return the samples of speech ids (tokens,) by the flow and the vocoder."""
        with quiet():
            samples, _ = self.s3gen.inference(
                (ids % SPEECH_CODES)[None], ref_dict=dict(self._reference), n_cfm_timesteps=steps
            )
        rendered: Tensor = samples
        return rendered
