"""T3: conditioning, prompt, logits and greedy tokens. Each side runs its own loop; hooks capture the logits.

Upstream's loop samples. Its own arguments make it greedy: min-p 1 keeps only the most likely id, top-k 1 does
the same for GPT-2, and a temperature near zero does where the penalty comes last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nightingale.backends.torch.runner import generate
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.models.chatterbox.presets import PRESETS
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.voices.voice import Voice
from nightingale_lab.parity.hooks import arguments_of, outputs_of
from nightingale_lab.parity.table import Rows
from nightingale_lab.parity.upstream_weights import SEEDS
from nightingale_lab.random_models import random_voice
from nightingale_lab.upstream.families import Family
from nightingale_lab.upstream.networks import START_TEXT, STOP_TEXT, quiet

TOKENS = 64
PENALISED_TOKENS = 16
CFG_WEIGHT = 0.5
EXAGGERATION = 0.7
PENALTY = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class T3Case:
    """The input of one greedy decode: text ids without start and stop, and a voice."""

    text: list[int]
    voice: Voice
    tokens: int = TOKENS
    penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyRun:
    """The tensors of one greedy decode."""

    conditioning: Tensor
    prompt: Tensor
    logits: Tensor
    """(steps, rows, vocabulary)"""
    ids: Tensor


def random_case(family: Family) -> T3Case:
    rng = torch.Generator().manual_seed(SEEDS[family.name] + 1)
    text = torch.randint(1, min(family.text_vocab, 50_000), (37,), generator=rng).tolist()
    voice = random_voice(PRESETS[family.name], prompt_tokens=375, seed=SEEDS[family.name])
    return T3Case(text=[id_ for id_ in text if id_ != START_TEXT], voice=voice)


def run_theirs(network: Any, case: T3Case, *, guided: bool) -> GreedyRun:
    from chatterbox.models.t3.modules.cond_enc import T3Cond

    condition = T3Cond(
        speaker_emb=torch.as_tensor(case.voice.speaker)[None],
        cond_prompt_speech_tokens=torch.as_tensor(case.voice.prompt_ids)[None],
        emotion_adv=EXAGGERATION * torch.ones(1, 1, 1),
    )
    with (
        quiet(),
        outputs_of(network.cond_enc) as conditioning,
        arguments_of(network.tfmr, "inputs_embeds") as prompts,
        outputs_of(network.speech_head) as logits,
    ):
        if guided:
            ids = network.inference(
                t3_cond=condition,
                text_tokens=torch.tensor([[START_TEXT, *case.text, STOP_TEXT]] * 2),
                max_new_tokens=case.tokens,
                temperature=1.0,
                top_p=1.0,
                min_p=1.0,
                repetition_penalty=case.penalty,
                cfg_weight=CFG_WEIGHT,
            )
        else:
            ids = network.inference_turbo(
                t3_cond=condition,
                text_tokens=torch.tensor([case.text]),
                temperature=1.0 if case.penalty == 1.0 else 1e-4,
                top_k=1 if case.penalty == 1.0 else 1000,
                top_p=1.0,
                repetition_penalty=case.penalty,
                max_gen_len=case.tokens - 1,
            )
    last = torch.stack([step[:, -1] for step in logits[: case.tokens]])
    return GreedyRun(conditioning=conditioning[0], prompt=prompts[0], logits=last, ids=ids[0])


def run_ours(network: T3, case: T3Case, *, defaults_of: str, guided: bool) -> GreedyRun:
    """defaults_of: the model whose defaults hold; the case overrides what it names."""
    defaults = replace(MODEL_DEFAULTS[defaults_of], max_new_tokens=case.tokens)
    sampling = replace(
        defaults.sampling,
        temperature=0.0,
        repetition_penalty=case.penalty,
        cfg_weight=CFG_WEIGHT if guided else 0.0,
    )
    prompt = Prompt(text="", text_ids=case.text, voice=case.voice, exaggeration=EXAGGERATION, guided=guided)
    vocab = network.config.speech_vocab
    decoding = Decoding(prompt, vocab=vocab, defaults=defaults, sampling=sampling, seed=0)
    with (
        outputs_of(network.cond_enc) as conditioning,
        arguments_of(network.tfmr, 0) as prompts,
        outputs_of(network.speech_head) as logits,
    ):
        drawn = torch.tensor(list(generate(network, decoding)))
    return GreedyRun(conditioning=conditioning[0], prompt=prompts[0], logits=torch.stack(logits), ids=drawn)


def compare(rows: Rows, ours: GreedyRun, theirs: GreedyRun, *, distinct: int = 16) -> None:
    """Compare two runs without a penalty. distinct: the fewest different tokens that prove anything."""
    shape = " x ".join(map(str, theirs.conditioning.shape))
    rows.close("T3 conditioning", ours.conditioning, theirs.conditioning, relative=1e-6, note=shape)
    shape = " x ".join(map(str, theirs.prompt.shape))
    rows.close("T3 prompt embeddings", ours.prompt, theirs.prompt, relative=1e-6, note=shape)
    for row in range(theirs.logits.shape[1]):
        name = f"T3 prefill logits{', unconditional row' if row else ''}"
        rows.close(name, ours.logits[0, row], theirs.logits[0, row], relative=1e-5)
    rows.same_ids(f"T3 greedy tokens, {len(theirs.ids)}", ours.ids, theirs.ids, distinct=distinct)
    if torch.equal(ours.ids, theirs.ids):
        rows.close("T3 logits of every step", ours.logits, theirs.logits, relative=1e-5)


def compare_networks(rows: Rows, family: Family, theirs: Any, ours: T3) -> GreedyRun:
    """Compare with and without a repetition penalty. Returns upstream's run without it."""
    case = random_case(family)
    reference = run_theirs(theirs, case, guided=family.guided)
    compare(rows, run_ours(ours, case, defaults_of=family.name, guided=family.guided), reference)
    case = replace(case, penalty=PENALTY, tokens=PENALISED_TOKENS)
    penalised = run_theirs(theirs, case, guided=family.guided)
    ids = run_ours(ours, case, defaults_of=family.name, guided=family.guided).ids
    rows.same_ids(f"T3 greedy tokens, penalty {PENALTY}", ids, penalised.ids, distinct=8)
    return reference
