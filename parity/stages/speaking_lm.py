"""T3: conditioning, prompt, scores and greedy tokens. Each side runs its own loop, and we listen at its head.

Upstream's loop samples. It is made greedy by its own arguments: min-p 1 keeps only the likeliest id, top-k 1
does the same for GPT-2, and a temperature near zero leaves only the likeliest where a penalty comes last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from chatterbox.models import t3 as upstream_t3
from chatterbox.models.t3.modules.cond_enc import T3Cond
from families import Family
from table import Rows
from taps import arguments_of, outputs_of
from torch import Tensor
from upstream import hushed

from nightingale.decoding.decoding import speak
from nightingale.models.defaults import MODEL_DEFAULTS
from nightingale.models.chatterbox.t3.model import T3
from nightingale.voices.voice import Voice

TOKENS = 64
PENALISED_TOKENS = 16
CFG_WEIGHT = 0.5
EXAGGERATION = 0.7
PENALTY = 1.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One utterance to write: text ids without their frame, and a voice."""

    text: list[int]
    voice: Voice


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one greedy decode showed; scores hold (rows, vocabulary) for each step."""

    conditioning: Tensor
    prompt: Tensor
    scores: Tensor
    ids: Tensor


def draw_case(family: Family, net: T3) -> Case:
    draw = torch.Generator().manual_seed(family.seed + 1)
    text = torch.randint(1, min(family.text_vocab, 50_000), (37,), generator=draw)
    voice = Voice.checked(
        name="random",
        family="chatterbox" if family.guided else "turbo",
        speaker=torch.nn.functional.normalize(torch.randn(256, generator=draw).abs(), dim=0),
        prompt_ids=torch.randint(0, 6561, (net.config.prompt_tokens,), generator=draw),
        flow_prompt_ids=torch.zeros(1, dtype=torch.int64),
        flow_prompt_mel=torch.zeros(2, 80),
        flow_speaker=torch.ones(192),
    )
    return Case(text=[id_ for id_ in text.tolist() if id_ != 255], voice=voice)


def run_theirs(family: Family, net: upstream_t3.T3, case: Case, *, penalty: float, tokens: int) -> Run:
    condition = T3Cond(
        speaker_emb=case.voice.speaker[None],
        cond_prompt_speech_tokens=case.voice.prompt_ids[None],
        emotion_adv=EXAGGERATION * torch.ones(1, 1, 1),
    )
    with (
        hushed(),
        outputs_of(net.cond_enc) as conditioning,
        arguments_of(net.tfmr, "inputs_embeds") as prompts,
        outputs_of(net.speech_head) as scores,
    ):
        if family.guided:
            ids = net.inference(
                t3_cond=condition,
                text_tokens=torch.tensor([[255, *case.text, 0]] * 2),
                max_new_tokens=tokens,
                temperature=1.0,
                top_p=1.0,
                min_p=1.0,
                repetition_penalty=penalty,
                cfg_weight=CFG_WEIGHT,
            )
        else:
            ids = net.inference_turbo(
                t3_cond=condition,
                text_tokens=torch.tensor([case.text]),
                temperature=1.0 if penalty == 1.0 else 1e-4,
                top_k=1 if penalty == 1.0 else 1000,
                top_p=1.0,
                repetition_penalty=penalty,
                max_gen_len=tokens - 1,
            )
    last = torch.stack([step[:, -1] for step in scores[:tokens]])
    return Run(conditioning=conditioning[0], prompt=prompts[0], scores=last, ids=ids[0])


def run_ours(family: Family, net: T3, case: Case, *, penalty: float, tokens: int) -> Run:
    defaults = replace(MODEL_DEFAULTS[family.name], max_new_tokens=tokens)
    sampling = replace(
        defaults.sampling,
        temperature=0.0,
        repetition_penalty=penalty,
        cfg_weight=CFG_WEIGHT if family.guided else 0.0,
    )
    with (
        outputs_of(net.cond_enc) as conditioning,
        arguments_of(net.tfmr, 0) as prompts,
        outputs_of(net.speech_head) as scores,
    ):
        ids = list(
            speak(
                net,
                case.text,
                case.voice,
                defaults=defaults,
                sampling=sampling,
                exaggeration=EXAGGERATION,
                rng=torch.Generator(),
            )
        )
    return Run(
        conditioning=conditioning[0], prompt=prompts[0], scores=torch.stack(scores), ids=torch.tensor(ids)
    )


def compare(rows: Rows, family: Family, theirs: upstream_t3.T3, ours: T3) -> Run:
    """Also gives upstream's run, whose scores the sampler is fed with."""
    case = draw_case(family, ours)
    up = run_theirs(family, theirs, case, penalty=1.0, tokens=TOKENS)
    us = run_ours(family, ours, case, penalty=1.0, tokens=TOKENS)
    rows.close(
        "T3 conditioning", us.conditioning, up.conditioning, relative=1e-6, note=_shape(up.conditioning)
    )
    rows.close("T3 prompt embeddings", us.prompt, up.prompt, relative=1e-6, note=_shape(up.prompt))
    for row, name in enumerate(("told", "untold") if family.guided else ("only",)):
        rows.close(f"T3 prefill logits, {name} row", us.scores[0, row], up.scores[0, row], relative=1e-5)
    rows.same_ids(f"T3 greedy tokens, {TOKENS}", us.ids, up.ids, distinct=16)
    if torch.equal(us.ids, up.ids):
        rows.close("T3 logits of every step", us.scores, up.scores, relative=1e-5)
    penalised = run_theirs(family, theirs, case, penalty=PENALTY, tokens=PENALISED_TOKENS)
    us = run_ours(family, ours, case, penalty=PENALTY, tokens=PENALISED_TOKENS)
    rows.same_ids(f"T3 greedy tokens, penalty {PENALTY}", us.ids, penalised.ids, distinct=8)
    return up


def _shape(t: Tensor) -> str:
    return " x ".join(str(n) for n in t.shape)
