"""A streamed flow by graphs: piece for piece what the plain one renders."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
import torch
from backends.watching import HostWatch
from parity.tiny import TINY_FLOW, TINY_MEANFLOW, fill, gaussian, ids
from torch import Tensor

from nightingale.backends.cuda.flow import FlowSteps, flow_noise
from nightingale.backends.cuda.flow_blocks import FlowPieces, Heard, hear_prompt
from nightingale.errors import ConfigError
from nightingale.models.chatterbox.s3gen.flow import Flow
from nightingale.models.chatterbox.s3gen.incremental import FlowState, render_block

PROMPT, HEARD, CONTEXT = 9, 6, 4
VOICE_KEY, KEY = torch.tensor([7]), torch.tensor([8])
PIECES = [(HEARD, 7), (9, 10), (15, 6)]
"""First token and tokens; a piece begins CONTEXT tokens before the end of the last; the last one is final."""


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
    _, past = render_block(
        flow,
        tokens[:, :PROMPT],
        lookahead=3,
        prompt_mel=mel[..., : 2 * HEARD],
        speaker=speaker,
        noise=noise_of(VOICE_KEY, 0, HEARD),
        past=None,
    )
    pieces = []
    for number, (start, count) in enumerate(PIECES, start=1):
        ahead = 0 if number == len(PIECES) else 3
        rendered, past = render_block(
            flow,
            tokens[:, start : start + count + ahead],
            lookahead=ahead,
            prompt_mel=mel[..., 2 * start : 2 * (start + count)],
            speaker=speaker,
            noise=noise_of(KEY, start, count),
            past=past,
            advance=Fraction(count - CONTEXT, count),
            store=False,
        )
        assert isinstance(past, FlowState)
        pieces.append(rendered)
    return pieces


@dataclass
class Stream:
    """One utterance's way through the pieces."""

    key: Tensor
    carried: Tensor
    mels: list[Tensor]


def push(flow: Flow, pieces: FlowPieces, heard: Heard, number: int, streams: list[Stream]) -> None:
    """Piece `number` of each stream, in one batch; the last one is padded to a larger graph."""
    tokens, mel, speaker = (t.to(pieces.steps.device) for t in told(flow))
    start, count = PIECES[number]
    final = number == len(PIECES) - 1
    size = 10 if final else count
    given = torch.zeros(len(streams), size + 3, dtype=torch.int64, device=tokens.device)
    length = count if final else count + 3
    given[:, :length] = tokens[:, start : start + length]
    cond = torch.zeros(len(streams), 80, 2 * size, dtype=mel.dtype, device=mel.device)
    prompt = mel[..., 2 * start : 2 * (start + count)]
    cond[..., : prompt.shape[2]] = prompt
    many = len(streams)
    rendered, carried = pieces(
        heard,
        given,
        torch.full((many,), length, device=mel.device),
        cond=cond,
        speaker=speaker.expand(many, -1),
        key=torch.cat([stream.key for stream in streams]).to(mel.device),
        first_frame=torch.full((many,), 2 * start, device=mel.device),
        carried=torch.cat([stream.carried for stream in streams]),
    )
    for row, stream in enumerate(streams):
        stream.mels.append(rendered[row : row + 1, :, : 2 * count].clone())
        stream.carried = carried[row : row + 1].clone()


def pieces_of(flow: Flow, known: tuple[int, ...] = (HEARD,)) -> tuple[FlowPieces, Heard]:
    steps = FlowSteps(flow)
    tokens, mel, speaker = (t.to(steps.device) for t in told(flow))
    heard = hear_prompt(steps, tokens[:, :PROMPT], mel, speaker, VOICE_KEY.to(steps.device))
    return FlowPieces(steps, context=CONTEXT, tokens=(7, 10), batches=(1, 4), known=known), heard


def spoken(flow: Flow, pieces: FlowPieces, heard: Heard, keys: list[Tensor]) -> list[Stream]:
    streams = [Stream(key, heard.carried, []) for key in keys]
    for number in range(len(PIECES)):
        push(flow, pieces, heard, number, streams)
    return streams


@pytest.mark.parametrize("known", [HEARD, HEARD + 5], ids=["as long as the prompt", "longer"])
def test_each_piece_is_the_plain_one(flow: Flow, known: int) -> None:
    pieces, heard = pieces_of(flow, (known,))
    expected = plain(flow)
    for _ in range(2):  # an utterance, and another after it
        for one, other in zip(spoken(flow, pieces, heard, [KEY])[0].mels, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_each_of_a_batch_is_rendered_as_if_alone(flow: Flow) -> None:
    pieces, heard = pieces_of(flow, (HEARD + 1,))
    for one, other in zip(
        spoken(flow, pieces, heard, [VOICE_KEY, KEY, KEY + 1])[1].mels, plain(flow), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_another_voice_in_between_changes_nothing(flow: Flow) -> None:
    pieces, heard = pieces_of(flow, (HEARD + 5,))
    tokens, mel, speaker = told(flow)
    stranger = hear_prompt(pieces.steps, tokens[:, 3:14], mel.repeat(1, 1, 2)[..., :22], -speaker, KEY)
    stream = Stream(KEY, heard.carried, [])
    for number in range(len(PIECES)):
        push(flow, pieces, heard, number, [stream])
        push(flow, pieces, stranger, 1, [Stream(KEY, stranger.carried, [])])
    for one, other in zip(stream.mels, plain(flow), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_nothing_is_asked_of_the_host(flow: Flow) -> None:
    pieces, heard = pieces_of(flow)
    push(flow, pieces, heard, 0, [Stream(KEY, heard.carried, [])])
    tokens, _, speaker = told(flow)
    ten, none, twelve = torch.tensor([10]), torch.tensor([0]), torch.tensor([12])
    cond = torch.zeros(1, 80, 14, dtype=torch.float64)
    with torch.no_grad(), HostWatch() as watch:
        pieces._render(
            pieces._buffers[HEARD],
            HEARD,
            tokens[:, :10],
            ten,
            none,
            cond,
            speaker,
            KEY,
            twelve,
            heard.carried,
        )
    assert not watch.found


def test_a_piece_of_another_size_is_refused(flow: Flow) -> None:
    pieces, heard = pieces_of(flow)
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ConfigError, match="no graph is made"):
        pieces(heard, torch.zeros(1, 11, dtype=torch.int64), one, cond=one, speaker=one, key=one,
               first_frame=one, carried=one)  # fmt: skip


def test_a_flow_that_remembers_its_own_speech_is_refused(flow: Flow) -> None:
    causal = fill(Flow(replace(flow.config, block_causal=True)))
    with pytest.raises(ConfigError, match="remembers more"):
        FlowPieces(FlowSteps(causal), context=4, tokens=(7,), batches=(1,))


@pytest.mark.requires_cuda
def test_the_graphs_give_the_plain_pieces(flow: Flow) -> None:
    expected = plain(flow)
    pieces, heard = pieces_of(flow.cuda(), (HEARD + 5,))
    pieces.warm(heard)
    streams = spoken(flow, pieces, heard, [KEY, VOICE_KEY])
    for one, other in zip(streams[0].mels, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=1e-6)
    assert {report.how for report in pieces.reports} == {"graph"}
