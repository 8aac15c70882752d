"""Upstream's own networks, `chatterbox-tts` as its HEAD 5de7a54 runs them, with random weights of full size.

Official weights cannot be had everywhere, and time does not depend on them. What is random here is saved as
upstream would ship it, so that both sides load the same files. This module is run by upstream's environment
(worker.py, benchmarks/cpu.py) and needs nothing but its packages; ours reads its numbers only.
"""

from __future__ import annotations

import contextlib
import io
from math import ceil
from pathlib import Path
from typing import Any

SIZES = {
    "nano": ("GPT2_small", 50276, "t3_nano_v1.safetensors", "s3gen_meanflow.safetensors"),
    "turbo": ("GPT2_medium", 50276, "t3_turbo_v1.safetensors", "s3gen_meanflow.safetensors"),
    "english": ("Llama_520M", 704, "t3_cfg.safetensors", "s3gen.safetensors"),
    "multilingual": ("Llama_520M", 2454, "t3_mtl23ls_v2.safetensors", "s3gen.safetensors"),
}
"""name -> upstream's name of the backbone, entries of the text vocabulary, files; the quickest first."""
VOICE_ENCODER_FILE, CONDS_FILE = "ve.safetensors", "conds.pt"
START_TEXT, STOP_TEXT, SPEECH_CODES = 255, 0, 6561
PROMPT_TOKENS = 250
"""Of ten seconds, which is what the flow is shown."""
LEAST_TOKENS, TOKENS_PER_TEXT_ID = 30, 1.2
"""Random weights do not know where a text ends. English has 15 letters a second; these are bytes."""
RATE_HZ = 24_000


def tokens_for(text_ids: int) -> int:
    """How many speech tokens a text of so many ids is given, on both sides."""
    return LEAST_TOKENS + ceil(TOKENS_PER_TEXT_ID * text_ids)


def become_head() -> None:
    """The wheel is older than HEAD, lacks Nano's sizes, and is slower: it asks for maps of attention."""
    from chatterbox.models.t3.inference.t3_hf_backend import (  # type: ignore[import-not-found]
        T3HuggingfaceBackend,
    )
    from chatterbox.models.t3.llama_configs import LLAMA_CONFIGS  # type: ignore[import-not-found]
    from chatterbox.models.t3.modules.t3_config import T3Config  # type: ignore[import-not-found]

    small = {"n_embd": 768, "hidden_size": 768, "n_layer": 12, "n_head": 12}
    LLAMA_CONFIGS["GPT2_small"] = {**LLAMA_CONFIGS["GPT2_medium"], **small}
    T3Config.is_multilingual = property(lambda _self: False)
    wheel = T3HuggingfaceBackend.forward
    T3HuggingfaceBackend.forward = lambda self, *a, **k: wheel(self, *a, **{**k, "output_attentions": False})


class Upstream:
    """One of its models, and a voice, all random."""

    def __init__(self, size: str) -> None:
        import torch
        from chatterbox.models.s3gen import S3Gen  # type: ignore[import-not-found]
        from chatterbox.models.t3 import T3  # type: ignore[import-not-found]
        from chatterbox.models.t3.modules.cond_enc import T3Cond  # type: ignore[import-not-found]
        from chatterbox.models.t3.modules.t3_config import T3Config

        become_head()
        self.size = size
        backbone, text_vocabulary, *_ = SIZES[size]
        self.guided = backbone == "Llama_520M"
        config = T3Config(text_tokens_dict_size=text_vocabulary)
        config.llama_config_name = backbone
        if not self.guided:
            config.speech_tokens_dict_size, config.speech_cond_prompt_len = SPEECH_CODES + 2, 375
            config.input_pos_emb = None
            config.use_perceiver_resampler = config.emotion_adv = False
        self.t3, self.s3gen = T3(config).eval(), S3Gen(meanflow=not self.guided).eval()
        head = self.t3.speech_head
        with torch.no_grad():  # sounds are ever likelier than controls, so that a sentence has its length
            head.weight[:SPEECH_CODES] *= 10
            head.weight[SPEECH_CODES:] = 0
            if head.bias is not None:
                head.bias[SPEECH_CODES:] = 0
        shown = 150 if self.guided else PROMPT_TOKENS
        self.conds = T3Cond(
            speaker_emb=torch.rand(1, 256),
            cond_prompt_speech_tokens=torch.randint(SPEECH_CODES, (1, shown)),
            emotion_adv=0.5 * torch.ones(1, 1, 1),
        )
        self.reference = {
            "prompt_token": torch.randint(SPEECH_CODES, (1, PROMPT_TOKENS)),
            "prompt_token_len": torch.tensor([PROMPT_TOKENS]),
            "prompt_feat": torch.randn(1, 2 * PROMPT_TOKENS, 80),
            "prompt_feat_len": None,
            "embedding": torch.randn(1, 192),
        }

    def save(self, folder: Path) -> None:
        """The files of the model under their official names; tokenizers are not random and not here."""
        import torch
        from chatterbox.models.voice_encoder import VoiceEncoder  # type: ignore[import-not-found]
        from safetensors.torch import save_file

        *_, t3_file, s3gen_file = SIZES[self.size]
        nets = {t3_file: self.t3, s3gen_file: self.s3gen, VOICE_ENCODER_FILE: VoiceEncoder()}
        folder.mkdir(parents=True, exist_ok=True)
        for name, net in nets.items():
            save_file({key: value.contiguous() for key, value in net.state_dict().items()}, folder / name)
        torch.save({"t3": vars(self.conds), "gen": self.reference}, folder / CONDS_FILE)

    def decode(self, text_ids: list[int], tokens: int) -> Any:
        """So many speech ids, (1, tokens)."""
        import torch

        with torch.inference_mode(), hushed():
            if not self.guided:  # which draws one before its loop
                text = torch.tensor([text_ids])
                return self.t3.inference_turbo(self.conds, text, max_gen_len=tokens - 1)
            framed = torch.tensor([[START_TEXT, *text_ids, STOP_TEXT]] * 2)
            return self.t3.inference(t3_cond=self.conds, text_tokens=framed, max_new_tokens=tokens)

    def render(self, ids: Any) -> Any:
        """RenderFuture, of the ids that have one."""
        import torch

        with torch.inference_mode(), hushed():
            sounds = ids[ids < SPEECH_CODES][None]
            return self.s3gen.inference(sounds, ref_dict=dict(self.reference))[0]


def hushed() -> contextlib.AbstractContextManager[Any]:
    """Upstream prints and draws bars; our news go the same way."""
    stack = contextlib.ExitStack()
    stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
    stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
    return stack
