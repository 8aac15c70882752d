"""Pipecat's TTS services in a real pipeline: OpenAI's over HTTP, ElevenLabs' over a socket."""

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
    """What a language model's answer looks like in a pipeline."""
    return [
        frames.LLMFullResponseStartFrame(),
        *(frames.LLMTextFrame(part) for part in parts),
        frames.LLMFullResponseEndFrame(),
    ]


def run(service: Any, sent: Sequence[Any], rate: int = 24000) -> list[Any]:
    """The frames that come out behind the service; errors come out in front."""

    async def work() -> list[Any]:
        down, up = await testing.run_test(
            service,
            frames_to_send=sent,
            pipeline_params=pipeline.PipelineParams(audio_out_sample_rate=rate),
        )
        assert not [frame for frame in up if isinstance(frame, frames.ErrorFrame)]
        return list(down)

    return asyncio.run(asyncio.wait_for(work(), 60))


def seconds_of(heard: Sequence[Any]) -> float:
    sound = [frame for frame in heard if isinstance(frame, frames.TTSAudioRawFrame)]
    return float(sum(len(frame.audio) / 2 / frame.sample_rate for frame in sound))


def cancelled(server: LiveServer) -> float:
    return float(server.speaker.meter.cancelled.collect()[0].samples[0].value)


def test_the_openai_service_speaks(server: LiveServer) -> None:
    service = openai.OpenAITTSService(
        api_key="none",
        base_url=f"{server.http}/v1",
        settings=openai.OpenAITTSService.Settings(voice="ballad", model="gpt-4o-mini-tts"),
    )
    heard = run(service, [*answer(*ANSWER), testing.SleepFrame(sleep=3)])
    assert seconds_of(heard) > 1


@pytest.mark.parametrize("rate", [24000, 16000])
@pytest.mark.parametrize("aggregation", ["sentence", "token"])
def test_the_elevenlabs_service_speaks_what_a_model_writes(
    server: LiveServer, aggregation: str, rate: int
) -> None:
    from pipecat.services.tts_service import TextAggregationMode

    service = elevenlabs_service(server, text_aggregation_mode=TextAggregationMode(aggregation))
    heard = run(service, [*answer(*ANSWER), testing.SleepFrame(sleep=3)], rate)
    assert seconds_of(heard) > 1
    kinds = [type(frame).__name__ for frame in heard]
    assert kinds.count("TTSStartedFrame") == kinds.count("TTSStoppedFrame") == 1
    # Without word times the text comes when its sound has ended, so that the agent remembers what it said.
    said = "".join(frame.text for frame in heard if isinstance(frame, frames.TTSTextFrame))
    assert said.replace(" ", "") == "".join(ANSWER).replace(" ", "")


def test_two_answers_one_after_the_other(server: LiveServer) -> None:
    wait = testing.SleepFrame(sleep=2)
    heard = run(elevenlabs_service(server), [*answer("Hello there."), wait, *answer("And again."), wait])
    kinds = [type(frame).__name__ for frame in heard]
    assert kinds.count("TTSStartedFrame") == kinds.count("TTSStoppedFrame") == 2


def test_an_interruption_stops_the_engine(server: LiveServer) -> None:
    """In the middle of an answer that the model is still writing."""
    writing = [frames.LLMFullResponseStartFrame()]
    writing += [frames.LLMTextFrame("This is one of very many sentences that nobody will hear. ")] * 40
    before = cancelled(server)
    interrupted = [*writing, testing.SleepFrame(sleep=1), frames.InterruptionFrame()]
    heard = run(elevenlabs_service(server), [*interrupted, *answer("Yes?"), testing.SleepFrame(sleep=2)])
    assert seconds_of(heard) > 0
    assert cancelled(server) == before + 1
