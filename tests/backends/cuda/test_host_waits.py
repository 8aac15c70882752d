"""Nothing between a request and its sound waits for the device but the two places that take its results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_torch import t3_of
from backends.watching import WAITS, HostWatch
from engine.test_draws import FAST, planned

from nightingale.decoding.decoding import Decoding, prompt_of
from nightingale.decoding.decoder import GraphDecoder, Speaking
from nightingale.engine.load import open_decoder, open_renderer
from nightingale.engine.model import Model
from nightingale.engine.session import Timing
from nightingale.backends.torch.renderer import Block, CudaGraphRenderer

ASKS = (*WAITS, "aten.item")


def asked(watch: HostWatch) -> list[str]:
    return [name for name in watch.found if name.startswith(ASKS)]


def test_a_step_and_a_new_prompt_ask_nothing(tiny_model: Model) -> None:
    draws = open_decoder(tiny_model, FAST, planned(tiny_model, t3="graphs"))
    assert isinstance(draws, GraphDecoder)
    t3, defaults, voice = t3_of(tiny_model), tiny_model.defaults, tiny_model.default_voice
    assert voice is not None
    options: dict[str, Any] = {"defaults": defaults, "sampling": defaults.sampling}
    decoding = Decoding(t3, **options, text_ids=5, rng=torch.Generator())
    with HostWatch() as watch:
        prompt = prompt_of(t3, [5, 6, 7], voice, **options, exaggeration=0.5)
        draws.begin(0, decoding, prompt)
        for _ in range(3):
            draws._decoder.launch(4)
        draws.move(0, 1)
        draws.leave(1)
    assert watch.operations > 100
    assert asked(watch) == []
    draws.begin(0, decoding, prompt)
    assert draws.step([Speaking(slot=0, decoding=decoding, last_token=0)]) == [[]]
    (tokens,) = draws.step([Speaking(slot=0, decoding=decoding, last_token=0)])
    assert isinstance(tokens, list)
    assert len(tokens) == 4


def test_a_block_is_launched_without_asking(tiny_model: Model) -> None:
    plan = planned(tiny_model, flow="graphs", vocoder="graphs")
    studio, voice = open_renderer(tiny_model, FAST, plan), tiny_model.default_voice
    assert isinstance(studio, CudaGraphRenderer)
    assert voice is not None
    renderings = [studio.open(voice, seed=seed) for seed in range(2)]
    for ids, final in ((list(range(11)), False), (list(range(16)), False), ([1, 2], True)):
        blocks = [
            Block(rendering=one, ids=ids, final=final, alone=True, timing=Timing()) for one in renderings
        ]
        with HostWatch() as watch:
            sound = studio.launch(blocks)
        assert watch.operations > 100
        assert asked(watch) == []
        assert all(len(samples) for samples in sound.take())


@pytest.mark.requires_cuda
def test_on_a_gpu_the_engine_says_what_it_says_without_graphs(tiny_model: Model) -> None:
    import copy
    from dataclasses import replace

    from nightingale import TTS
    from nightingale.engine.plan import PLAIN
    from nightingale.engine.rendering.utterance import Utterance

    speakers = tiny_model.networks
    model = replace(
        tiny_model,
        dtype="float32",
        networks=replace(
            speakers,
            t3=copy.deepcopy(speakers.t3).cuda(),
            flow=copy.deepcopy(speakers.flow).cuda(),
            hift=copy.deepcopy(speakers.hift).cuda(),
        ),
    )
    drawn: dict[int, list[int]] = {}
    accept, said = Utterance.accept, []

    def noted(spoken: Utterance, token: int) -> None:
        drawn.setdefault(spoken.request.seed, []).append(token)
        accept(spoken, token)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Utterance, "accept", noted)
        for profile in (replace(FAST, t3=(), flow=(), vocoder=()), FAST):
            with TTS.over(model, profile) as tts:
                assert (tts.plan.t3.way == PLAIN) == (not profile.t3)
                streams = [tts.stream("Hello " * n, seed=n, temperature=0.0) for n in range(1, 5)]
                assert all(sum(len(c.samples) for c in stream) == 50 * 960 for stream in streams)
            said.append(dict(drawn))
            drawn.clear()
    assert said[0] == said[1]
