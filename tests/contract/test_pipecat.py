"""Pipecat's TTS services in a real pipeline: OpenAI's over HTTP, ElevenLabs' over a WebSocket."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from live_server import LiveServer

pytestmark = pytest.mark.contract
frames = pytest.importorskip("pipecat.frames.frames")
testing = pytest.importorskip("pipecat.tests.utils")
elevenlabs = pytest.importorskip("pipecat.services.elevenlabs.tts")
openai = pytest.importorskip("pipecat.services.openai.tts")
pipeline = pytest.importorskip("pipecat.pipeline.worker")

ANSWER = ["Good morning, ", "everyone. Your ", "train leaves in ", "ten minutes. ", "Shall I call a taxi?"]


def elevenlabs_service(server: LiveServer, **options: Any) -> Any:
    return elevenlabs.ElevenLabsTTSService(
        api_key="none",
        url=server.ws,
        settings=elevenlabs.ElevenLabsTTSService.Settings(voice="noise"),
        **options,
    )


def answer(*parts: str) -> list[Any]:
    """Return the frames of a language model's answer."""
    return [
        frames.LLMFullResponseStartFrame(),
        *(frames.LLMTextFrame(part) for part in parts),
        frames.LLMFullResponseEndFrame(),
    ]


def run(service: Any, sent: Sequence[Any], rate: int = 24000) -> list[Any]:
    """Return the frames that the service sends downstream; errors would go upstream."""

    async def work() -> list[Any]:
        down, up = await testing.run_test(
            service,
            frames_to_send=sent,
            pipeline_params=pipeline.PipelineParams(audio_out_sample_rate=rate),
        )
        assert not [frame for frame in up if isinstance(frame, frames.ErrorFrame)]
        return list(down)

    return asyncio.run(asyncio.wait_for(work(), 60))


def seconds_of(received: Sequence[Any]) -> float:
    audio = [frame for frame in received if isinstance(frame, frames.TTSAudioRawFrame)]
    return float(sum(len(frame.audio) / 2 / frame.sample_rate for frame in audio))


def test_openai_service_speaks(server: LiveServer) -> None:
    service = openai.OpenAITTSService(
        api_key="none",
        base_url=f"{server.http}/v1",
        settings=openai.OpenAITTSService.Settings(voice="ballad", model="gpt-4o-mini-tts"),
    )
    received = run(service, [*answer(*ANSWER), testing.SleepFrame(sleep=3)])
    assert seconds_of(received) > 1


@pytest.mark.parametrize("rate", [24000, 16000])
@pytest.mark.parametrize("aggregation", ["sentence", "token"])
def test_elevenlabs_service_speaks_what_a_model_writes(
    server: LiveServer, aggregation: str, rate: int
) -> None:
    from pipecat.services.tts_service import TextAggregationMode

    service = elevenlabs_service(server, text_aggregation_mode=TextAggregationMode(aggregation))
    received = run(service, [*answer(*ANSWER), testing.SleepFrame(sleep=3)], rate)
    assert seconds_of(received) > 1
    kinds = [type(frame).__name__ for frame in received]
    assert kinds.count("TTSStartedFrame") == kinds.count("TTSStoppedFrame") == 1
    # By word timestamps, text is reported as it is spoken.
    text = "".join(frame.text for frame in received if isinstance(frame, frames.TTSTextFrame))
    assert text.replace(" ", "") == "".join(ANSWER).replace(" ", "")


def test_two_answers_in_sequence(server: LiveServer) -> None:
    wait = testing.SleepFrame(sleep=2)
    received = run(elevenlabs_service(server), [*answer("Hello there."), wait, *answer("And again."), wait])
    kinds = [type(frame).__name__ for frame in received]
    assert kinds.count("TTSStartedFrame") == kinds.count("TTSStoppedFrame") == 2


def test_interruption_stops_the_engine(server: LiveServer) -> None:
    """The interruption comes while the model is still writing."""
    writing = [frames.LLMFullResponseStartFrame()]
    writing += [
        frames.LLMTextFrame("This is one of very many sentences that are only here to make the text long. ")
    ] * 40
    before = server.cancelled()
    interrupted = [*writing, testing.SleepFrame(sleep=1), frames.InterruptionFrame()]
    received = run(elevenlabs_service(server), [*interrupted, *answer("Yes?"), testing.SleepFrame(sleep=2)])
    assert seconds_of(received) > 0
    assert server.cancelled() == before + 1
