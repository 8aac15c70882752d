"""Open drafts that PyTorch runs: draft heads and models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from nightingale.backends.base import DraftModel, ModelSource, Setup
from nightingale.backends.shared.speculation import open_speculation
from nightingale.backends.torch.draft_heads import TorchDraftHead
from nightingale.backends.torch.runner import TorchRunner
from nightingale.backends.torch.weights import t3_weights, torch_t3
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.drafts import Draft, ModelDraft
from nightingale.decoding.kv_budget import KVBudget
from nightingale.decoding.runner import MAX_DRAFT_TOKENS, DraftVerifier
from nightingale.decoding.speculative import TORCH_COSTS, SpeculativeDecoder
from nightingale.models.chatterbox.t3.draft_head import DraftHead
from nightingale.models.chatterbox.t3.model import T3
from nightingale.models.checkpoint import load, read_tensors
from nightingale.models.compact import unpack


def open_torch_speculation(
    source: ModelSource,
    setup: Setup,
    runner: DraftVerifier,
    budget: KVBudget,
    on_start: Callable[[], None] | None = None,
) -> SpeculativeDecoder:
    """Return a speculative decoder whose draft is run by PyTorch."""

    def open_head(path: Path) -> TorchDraftHead:
        return TorchDraftHead(_target(source, setup), load_draft_head(path))

    return open_speculation(
        source,
        setup,
        runner,
        budget,
        on_start,
        open_head=open_head,
        open_model=partial(open_draft_model, source, setup),
        costs=TORCH_COSTS,
    )


def open_draft_model(source: ModelSource, setup: Setup) -> tuple[Draft, float]:
    """Return the draft that is a model, and the cost of one of its tokens over a step of the target."""
    t3 = _target(source, setup)
    draft_t3, prompt = _draft_t3(source, setup, t3)
    return ModelDraft(_draft_runner(draft_t3, source, setup), prompt), weights_of(draft_t3) / weights_of(t3)


def load_draft_head(path: Path) -> DraftHead:
    tensors = unpack(read_tensors(path))
    return load(lambda: DraftHead.shaped_like(tensors), tensors, source=path)


def weights_of(t3: T3) -> int:
    """Return the number of weights that one step reads: layers and head."""
    return sum(p.numel() for part in (t3.tfmr, t3.speech_head) for p in part.parameters())


def _target(source: ModelSource, setup: Setup) -> T3:
    precision = "float32" if setup.precision == "int8" else setup.precision
    return t3_weights(source, setup.machine.device, precision)


def _draft_t3(source: ModelSource, setup: Setup, t3: T3) -> tuple[T3, Callable[[Decoding], Prompt]]:
    """Return the drafting T3 and what makes its prompts: a file with fewer layers, or another model."""
    weight, name = t3.speech_head.weight, setup.profile.draft
    if name.endswith(".safetensors"):
        tensors = {key: value.to(weight) for key, value in read_tensors(Path(name)).items()}
        depths = [int(key.split(".")[2]) for key in tensors if key.startswith(("tfmr.layers.", "tfmr.h."))]
        backbone = replace(t3.config.backbone, layers=1 + max(depths, default=0))
        config = replace(t3.config, backbone=backbone)
        small = ModelSource(
            source.info, {}, loaded={"t3": load(lambda: T3(config), tensors, source=Path(name))}
        )
        return torch_t3(small, setup.machine.device, setup.precision), lambda decoding: replace(
            decoding.prompt, trace=None
        )
    assert setup.draft is not None, "the engine loads a draft that is a model"
    model = setup.draft
    return torch_t3(model.source, setup.machine.device, setup.precision), _prompt_for(model, source.info.name)


def _prompt_for(model: DraftModel, name: str) -> Callable[[Decoding], Prompt]:
    info = model.source.info

    def prompt(decoding: Decoding) -> Prompt:
        text_ids = decoding.prompt.text_ids
        if info.name != name:
            text_ids = model.encode(decoding.prompt.text)
        guided = decoding.prompt.guided and info.guidable
        return replace(decoding.prompt, text_ids=text_ids, guided=guided, trace=None)

    return prompt


def _draft_runner(t3: T3, source: ModelSource, setup: Setup) -> TorchRunner:
    """Return a runner with its own dense KV cache, for utterances as long as the drafted model's."""
    drafting = setup.draft.source.info if setup.draft else source.info
    return TorchRunner(
        t3,
        slots=setup.slots,
        rows_per_slot=source.info.rows_per_slot,
        capacity=t3.config.prompt_length(drafting.defaults.max_text_ids)
        + source.info.defaults.max_new_tokens,
        batched=setup.profile.batched,
        max_new_tokens=source.info.defaults.max_new_tokens,
        spare=MAX_DRAFT_TOKENS,
    )
