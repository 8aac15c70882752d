"""A streamed flow by graphs: piece for piece what the plain one renders."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from accel.watching import HostWatch
from parity.tiny import TINY_FLOW, TINY_MEANFLOW, fill, gaussian, ids
from torch import Tensor

from nightingale.accel.flow import FlowSteps, flow_noise
from nightingale.accel.pieces import FlowPieces, hear_prompt
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.s3gen.incremental import FlowPast, render_piece

PROMPT, HEARD = 9, 6
VOICE_KEY, KEY = torch.tensor([7]), torch.tensor([8])
PIECES = [(HEARD, 8, 3), (9, 11, 5), (14, 7, 7)]
"""First token, tokens, and after how many of them the next piece begins; the last one is final."""


@pytest.fixture(params=["guided", "meanflow"])
def flow(request: pytest.FixtureRequest) -> Flow:
    return fill(Flow(TINY_FLOW if request.param == "guided" else TINY_MEANFLOW)).double()


def told(flow: Flow) -> tuple[Tensor, Tensor, Tensor]:
    """All ids, the prompt's mel, and the speaker."""
    speaker = gaussian((1, flow.config.speaker_width), 3).double()
    return ids(PROMPT + 20, 1), gaussian((1, 80, 2 * PROMPT), 2).double(), speaker


def noise_of(key: Tensor, start: int, tokens: int) -> Tensor:
    return flow_noise(key, torch.tensor([2 * start]), 2 * tokens, 80).double()


@torch.inference_mode()
def plain(flow: Flow) -> list[Tensor]:
    tokens, mel, speaker = told(flow)
    _, past = render_piece(
        flow,
        tokens[:, :PROMPT],
        ahead=3,
        prompt_mel=mel[..., : 2 * HEARD],
        speaker=speaker,
        noise=noise_of(VOICE_KEY, 0, HEARD),
        past=None,
    )
    pieces = []
    for number, (start, count, following) in enumerate(PIECES, start=1):
        ahead = 0 if number == len(PIECES) else 3
        rendered, past = render_piece(
            flow,
            tokens[:, start : start + count + ahead],
            ahead=ahead,
            prompt_mel=mel[..., 2 * start : 2 * (start + count)],
            speaker=speaker,
            noise=noise_of(KEY, start, count),
            past=past,
            advance=Fraction(following, count),
            remember=False,
        )
        assert isinstance(past, FlowPast)
        pieces.append(rendered)
    return pieces


def by_graphs(flow: Flow, pieces: FlowPieces, *, interrupted: bool = False) -> list[Tensor]:
    tokens, mel, speaker = told(flow)
    out = []
    for number, (start, count, following) in enumerate(PIECES, start=1):
        cond = torch.zeros(1, 80, 2 * count, dtype=mel.dtype)
        prompt = mel[..., 2 * start : 2 * (start + count)]
        cond[..., : prompt.shape[2]] = prompt
        first = torch.tensor([2 * start])
        if number == len(PIECES):
            last = pieces.finish(
                tokens[:, start : start + count], cond, speaker=speaker, key=KEY, first_frame=first
            )
            out.append(last)
            continue
        given = tokens[:, start : start + count + 3]
        rendered = pieces.push(given, cond, speaker=speaker, key=KEY, first_frame=first, following=following)
        out.append(rendered.clone())
        if interrupted:
            stood = pieces.put_aside()
            pieces.begin()
            pieces.push(given, cond, speaker=speaker, key=VOICE_KEY, first_frame=first, following=following)
            pieces.take_up(stood)
    return out


def pieces_of(flow: Flow) -> FlowPieces:
    tokens, mel, speaker = told(flow)
    steps = FlowSteps(flow)
    return FlowPieces(steps, hear_prompt(steps, tokens[:, :PROMPT], mel, speaker, VOICE_KEY))


def test_each_piece_is_the_plain_one(flow: Flow) -> None:
    pieces, expected = pieces_of(flow), plain(flow)
    for _ in range(2):  # an utterance, and another after it
        pieces.begin()
        for one, other in zip(by_graphs(flow, pieces), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_an_utterance_put_aside_goes_on_as_if_it_had_not_been(flow: Flow) -> None:
    for one, other in zip(by_graphs(flow, pieces_of(flow), interrupted=True), plain(flow), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_nothing_is_asked_of_the_host(flow: Flow) -> None:
    pieces, (tokens, _, speaker) = pieces_of(flow), told(flow)
    cond, first, advance = torch.zeros(1, 80, 16, dtype=torch.float64), torch.tensor([12]), Fraction(3, 8)
    with torch.no_grad(), HostWatch() as watch:
        pieces._render(tokens[:, :11], cond, speaker, KEY, first, advance)
    assert not watch.found


def test_a_flow_that_remembers_its_own_speech_is_refused(flow: Flow) -> None:
    causal = fill(Flow(replace(flow.config, block_causal=True)))
    with pytest.raises(ConfigError, match="remembers more"):
        FlowPieces(FlowSteps(causal), [])


@pytest.mark.requires_cuda
def test_the_graphs_give_the_plain_pieces(flow: Flow) -> None:
    expected, (tokens, mel, speaker) = plain(flow), told(flow)
    steps = FlowSteps(flow.cuda())
    prompt = hear_prompt(steps, tokens[:, :PROMPT].cuda(), mel.cuda(), speaker.cuda(), VOICE_KEY.cuda())
    pieces = FlowPieces(steps, prompt)
    with torch.device("cuda"):
        start, count, following = PIECES[0]
        cond = torch.zeros(1, 80, 2 * count, dtype=mel.dtype)
        cond[..., : 2 * (PROMPT - HEARD)] = mel[..., 2 * HEARD :]
        given, first = tokens[:, start : start + count + 3].cuda(), torch.tensor([2 * start])
        for _ in range(2):
            pieces.begin()
            rendered = pieces.push(
                given, cond, speaker=speaker.cuda(), key=KEY.cuda(), first_frame=first, following=following
            )
    torch.testing.assert_close(rendered.cpu(), expected[0], rtol=0, atol=1e-6)
    assert [report.how for report in pieces.reports] == ["graph"]
