"""Between a request and its audio, the host waits for the device only where it takes results."""

from __future__ import annotations

import pytest
from backends.cuda.eager import FAST, eager_plan
from backends.watching import WAITS, HostWatch

from nightingale.backends.base import Block
from nightingale.backends.cuda.graph_decoder import GraphDecoder
from nightingale.backends.cuda.graph_renderer import CudaGraphRenderer
from nightingale.decoding.decoding import Decoding, Prompt
from nightingale.decoding.host_decoder import DecodeRow
from nightingale.engine.load import Model

ASKS = (*WAITS, "aten.item")


def asked(watch: HostWatch) -> list[str]:
    return [name for name in watch.found if name.startswith(ASKS)]


def test_a_step_and_a_new_prompt_ask_nothing(tiny_model: Model) -> None:
    choice = eager_plan(tiny_model, decoder=True).decoder
    decoder = choice.backend.open_decoder(tiny_model.source, choice.setup)
    assert isinstance(decoder, GraphDecoder)
    defaults, voice = tiny_model.defaults, tiny_model.default_voice
    assert voice is not None
    prompt = Prompt(text="", text_ids=[5, 6, 7], voice=voice, exaggeration=0.5, guided=True)
    decoding = Decoding(prompt, vocab=6563, defaults=defaults, sampling=defaults.sampling, seed=1)
    with HostWatch() as watch:
        decoder.prefill(0, decoding)
        for _ in range(3):
            decoder._loop.launch(4)
        decoder.move(0, 1)
        decoder.release(1)
    assert watch.operations > 100
    assert asked(watch) == []
    decoder.prefill(0, decoding)
    assert decoder.decode([DecodeRow(0, decoding, 0)]) == [[]]
    (tokens,) = decoder.decode([DecodeRow(0, decoding, 0)])
    assert isinstance(tokens, list)
    assert len(tokens) == 4


def test_a_block_is_launched_without_asking(tiny_model: Model) -> None:
    choice = eager_plan(tiny_model, renderer=True).renderer
    renderer, voice = choice.backend.open_renderer(tiny_model.source, choice.setup), tiny_model.default_voice
    assert isinstance(renderer, CudaGraphRenderer)
    assert voice is not None
    streams = [renderer.open(voice, seed=seed) for seed in range(2)]
    for tokens, final in ((list(range(11)), False), (list(range(16)), False), ([1, 2], True)):
        blocks = [Block(stream=one, tokens=tokens, first=False, final=final, alone=True) for one in streams]
        with HostWatch() as watch:
            future = renderer.render(blocks)
        assert watch.operations > 100
        assert asked(watch) == []
        assert all(len(samples) for samples in future.result())


@pytest.mark.requires_cuda
def test_on_a_gpu_the_engine_says_what_it_says_without_graphs(tiny_model: Model) -> None:
    from dataclasses import replace

    from nightingale import TTS
    from nightingale.engine.rendering.utterance import Utterance

    drawn: dict[int, list[int]] = {}
    accept, tokens = Utterance.accept, []

    def capture(utterance: Utterance, token: int) -> None:
        drawn.setdefault(utterance.request.seed, []).append(token)
        accept(utterance, token)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Utterance, "accept", capture)
        for profile in (replace(FAST, decoder=(), renderer=()), FAST):
            with TTS.over(tiny_model, profile, device="cuda", dtype="float32") as tts:
                assert (tts.plan.decoder.backend.name == "torch") == (not profile.decoder)
                streams = [tts.stream("Hello " * n, seed=n, temperature=0.0) for n in range(1, 5)]
                assert all(sum(len(c.samples) for c in stream) == 50 * 960 for stream in streams)
            tokens.append(dict(drawn))
            drawn.clear()
    assert tokens[0] == tokens[1]
