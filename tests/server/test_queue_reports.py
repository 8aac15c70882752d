"""A client that has to wait learns its position in the queue and the estimated wait."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from live_server import LiveServer, live_server
from websockets.asyncio.client import connect

from nightingale import TTS

BODY = {"input": "Good morning, everyone.", "response_format": "pcm", "seed": 1}
EVENTS = {**BODY, "stream_format": "sse"}
SOCKET = "/v1/audio/speech/stream"


class SteppedDecoder:
    """Lets an engine decode only as many steps as it is given."""

    def __init__(self, tts: TTS) -> None:
        self._steps, self._free = threading.Semaphore(0), threading.Event()
        self._decode = tts._worker.decoder.decode
        tts._worker.decoder.decode = self  # type: ignore[method-assign]

    def __call__(self, rows: Any) -> Any:
        while not self._free.is_set() and not self._steps.acquire(timeout=0.01):
            pass
        return self._decode(rows)

    def step(self) -> None:
        self._steps.release()

    def run(self) -> None:
        """Decode without limits from now on."""
        self._free.set()


@pytest.fixture(scope="module")
def server(small: Callable[..., TTS]) -> Iterator[LiveServer]:
    with small(slots=1, queue=3) as tts, live_server(tts) as running:
        yield running


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def events_of(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_waiting_clients_are_told_their_positions(server: LiveServer) -> None:
    service = server.service
    assert service._tts is not None
    decoder, url = SteppedDecoder(service._tts), f"{server.http}/v1/audio/speech"

    async def run(client: httpx.AsyncClient) -> None:
        running = asyncio.create_task(client.post(url, json=BODY))
        await until(lambda: service.occupancy.speaking == 1)
        async with client.stream("POST", url, json=EVENTS) as first, connect(server.ws + SOCKET) as second:
            # The head of the events is sent now: the position is in the header, too.
            first_events = events_of(first)
            queued = await anext(first_events)
            assert (queued["type"], queued["position"]) == ("speech.queued", 1)
            assert queued["estimated_wait_s"] >= 0
            assert first.headers["x-queue-position"] == "1"
            assert "x-queue-wait-ms" not in first.headers, "it is not known yet"

            assert json.loads(await second.recv())["type"] == "session.created"
            for message in ({"type": "input_text.append", "text": "Hello."}, {"type": "input_text.end"}):
                await second.send(json.dumps(message))
            queued = json.loads(await second.recv())
            assert queued.pop("estimated_wait_s") >= 0
            assert queued == {"type": "speech.queued", "id": "r1", "position": 2}

            third = asyncio.create_task(client.post(url, json=BODY))
            await until(lambda: service.occupancy.waiting == 3)
            refused = await client.post(url, json=BODY)
            assert refused.status_code == 429
            error = refused.json()["error"]
            assert (error["code"], error["position"]) == ("queue_full", 4)
            assert error["retry_after_s"] == int(refused.headers["retry-after-ms"]) / 1000
            assert error["estimated_wait_s"] is None, "behind a text that still arrives it is not known"
            async with connect(server.ws + SOCKET) as socket:
                await socket.recv()
                await socket.send(json.dumps({"type": "input_text.append", "text": "Hello."}))
                error = json.loads(await socket.recv())["error"]
                assert (error["code"], error["position"]) == ("queue_full", 4)
                assert error["retry_after_s"] > 0

            cancelled = server.cancelled()
            running.cancel()
            await until(lambda: server.cancelled() > cancelled)
            decoder.step()  # the first one starts
            queued = json.loads(await second.recv())
            assert (queued["type"], queued["position"]) == ("speech.queued", 1)

            decoder.run()
            kinds = [event["type"] async for event in first_events]
            assert (kinds[0], kinds[-1]) == ("speech.audio.delta", "speech.audio.done")
            assert "speech.queued" not in kinds
            assert json.loads(await second.recv())["type"] == "speech.audio.start"
            spoken = await third
            assert spoken.status_code == 200
            assert spoken.headers["x-queue-position"] == "3"
            assert int(spoken.headers["x-queue-wait-ms"]) > 0

    async def main() -> None:
        async with httpx.AsyncClient(verify=False, timeout=30) as client, asyncio.timeout(60):
            await run(client)

    try:
        asyncio.run(main())
    finally:
        decoder.run()
    server.wait_until_idle()


def test_a_request_that_is_served_at_once_is_not_queued(server: LiveServer) -> None:
    answer = httpx.post(f"{server.http}/v1/audio/speech", json=EVENTS, verify=False, timeout=30)
    assert "speech.queued" not in answer.text
    assert answer.headers["x-queue-position"] == "0"
    assert int(answer.headers["x-queue-wait-ms"]) >= 0
    assert "ttfa;dur=" in answer.headers["server-timing"]


def test_a_failure_in_the_queue_is_an_event_if_the_client_was_told_its_position(server: LiveServer) -> None:
    service = server.service
    assert service._tts is not None
    decoder, url = SteppedDecoder(service._tts), f"{server.http}/v1/audio/speech"

    async def run() -> None:
        async with httpx.AsyncClient(verify=False, timeout=30) as client, asyncio.timeout(60):
            running = asyncio.create_task(client.post(url, json=BODY))
            await until(lambda: service.occupancy.speaking == 1)
            async with client.stream("POST", url, json=EVENTS) as waiting:
                events = events_of(waiting)
                assert (await anext(events))["type"] == "speech.queued"
                job = max(service._tts._worker._jobs.items())[1]
                job.segments.next = lambda: 1 / 0
                decoder.run()
                assert [event["type"] async for event in events] == ["error"]
            assert (await running).status_code == 200

    try:
        asyncio.run(run())
    finally:
        decoder.run()
    server.wait_until_idle()
