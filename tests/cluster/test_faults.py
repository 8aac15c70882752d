"""Replicas that are killed, drained, scaled and overloaded, with a service whose timing is given by numbers."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import httpx
import pytest
from cluster.conftest import Cluster, kill_one_replica, wait_until
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from nightingale_lab.bench.replica_processes import replica_processes

pytestmark = pytest.mark.ray
BYTES_PER_S = 48_000


async def listen(client: httpx.AsyncClient, body: dict[str, Any] | None = None) -> tuple[str, float, str]:
    """Return how a request ended, the seconds of audio that arrived, and the replica."""
    got, replica = 0, ""
    request = {"input": "Hello.", "response_format": "pcm", **(body or {})}
    try:
        async with client.stream("POST", "/v1/audio/speech", json=request) as answer:
            replica = answer.headers.get("x-replica", "")
            async for part in answer.aiter_raw():
                got += len(part)
            return str(answer.status_code), got / BYTES_PER_S, replica
    except httpx.RemoteProtocolError:
        return "cut", got / BYTES_PER_S, replica


def test_a_killed_replica_cuts_its_own_streams_and_no_others(cluster: Cluster) -> None:
    cluster.paced("2", options={"capacity": "16", "seconds": "4", "ttfa": "0.1"})

    async def run() -> list[tuple[str, float, str]]:
        async with cluster.async_client() as client:
            streams = [asyncio.create_task(listen(client)) for _ in range(20)]
            await asyncio.sleep(2)
            await asyncio.to_thread(kill_one_replica)
            return await asyncio.gather(*streams)

    results = asyncio.run(run())
    by_replica = {replica for _, _, replica in results}
    assert len(by_replica) == 2, "one replica had all streams"
    killed = {replica for kind, _, replica in results if kind == "cut"}
    assert len(killed) == 1, results
    assert all((kind == "cut") == (replica in killed) for kind, _, replica in results)
    assert all(seconds == 4.0 for kind, seconds, _ in results if kind == "200")
    with cluster.client() as client:  # a new one serves, at the latest after the time that a start takes
        wait_until(lambda: client.get("/ready").headers["x-replica"] not in by_replica, 30)


def test_a_request_whose_replica_dies_before_audio_is_served_by_another(cluster: Cluster) -> None:
    cluster.paced("2", options={"capacity": "16", "seconds": "1", "ttfa": "3"})

    async def run() -> list[tuple[str, float, str]]:
        async with cluster.async_client() as client:
            streams = [asyncio.create_task(listen(client)) for _ in range(8)]
            await asyncio.sleep(1)
            await asyncio.to_thread(kill_one_replica)
            return await asyncio.gather(*streams)

    results = asyncio.run(run())
    assert [kind for kind, _, _ in results] == ["200"] * 8, results
    assert all(seconds == 1.0 for _, seconds, _ in results)
    cluster.wait_for_replicas(2, 60)


def test_events_of_a_killed_replica_end_with_an_error(cluster: Cluster) -> None:
    cluster.paced("1", options={"capacity": "4", "seconds": "8", "ttfa": "0.1"})

    async def run() -> str:
        async with cluster.async_client() as client:
            body = {"input": "Hi.", "response_format": "pcm", "stream_format": "sse"}
            speaking = asyncio.create_task(client.post("/v1/audio/speech", json=body))
            await asyncio.sleep(1.5)
            await asyncio.to_thread(kill_one_replica)
            return (await speaking).text

    events = asyncio.run(run()).strip().split("\n\n")
    assert '"type":"speech.audio.delta"' in events[0]
    assert '"type":"error"' in events[-1]
    assert "replica_lost" in events[-1]
    cluster.wait_for_replicas(1, 60)


def test_a_socket_of_a_killed_replica_is_closed_and_a_new_one_speaks(cluster: Cluster) -> None:
    cluster.deploy(replicas="1", server={"model": "noise"})

    async def run() -> None:
        async with connect(f"{cluster.ws}/v1/audio/speech/stream") as socket:
            assert json.loads(await socket.recv())["type"] == "session.created"
            await asyncio.to_thread(kill_one_replica)
            with pytest.raises(ConnectionClosed) as closed:
                await asyncio.wait_for(socket.recv(), 20)
        assert closed.value.rcvd is None or closed.value.rcvd.code != 1000, "as if the speech had ended well"

    asyncio.run(run())
    cluster.wait_for_replicas(1, 60)

    async def speak() -> str:
        async with connect(f"{cluster.ws}/v1/audio/speech/stream") as socket:
            await socket.send(json.dumps({"type": "input_text.append", "text": "Hi."}))
            await socket.send(json.dumps({"type": "input_text.end"}))
            async for message in socket:
                if isinstance(message, str) and json.loads(message)["type"] == "speech.audio.done":
                    return message
        return ""

    assert asyncio.run(asyncio.wait_for(speak(), 60))


def test_a_full_replica_sheds_to_the_other_before_the_client_gets_429(cluster: Cluster) -> None:
    options = {"capacity": "2", "seconds": "4", "ttfa": "0.1"}
    cluster.paced("2", options=options, max_queue=0)

    async def run() -> list[tuple[str, float, str]]:
        async with cluster.async_client() as client:
            streams = []
            for _ in range(4):  # of one voice, whose replica has two places
                streams.append(asyncio.create_task(listen(client, {"voice": "anna"})))
                await asyncio.sleep(0.2)
            refused = await client.post("/v1/audio/speech", json={"input": "Hi.", "voice": "anna"})
            assert refused.status_code == 429, refused.text
            assert int(refused.headers["retry-after"]) >= 1
            return await asyncio.gather(*streams)

    results = asyncio.run(run())
    assert [kind for kind, _, _ in results] == ["200"] * 4
    assert sorted(Counter(replica for _, _, replica in results).values()) == [2, 2]


def test_one_replica_becomes_three_and_one_again_without_a_failed_request(cluster: Cluster) -> None:
    options = {"capacity": "4", "seconds": "1.5", "ttfa": "0.05"}
    delays = {"upscale_delay_s": 0.5, "downscale_delay_s": 3.0}
    cluster.paced("1..3", options=options, max_queue=64, **delays)
    cluster.wait_for_replicas(1)
    results: list[tuple[str, float, str]] = []

    async def run() -> None:
        wanted, seen = 2, 1
        async with cluster.async_client() as client:

            async def one_listener(number: int) -> None:
                while number < wanted:
                    results.append(await listen(client))

            async def hold(listeners: int, replicas: int) -> None:
                nonlocal wanted, seen
                running, wanted = wanted if results else 0, listeners
                tasks = [asyncio.create_task(one_listener(n)) for n in range(running, listeners)]
                deadline_s = time.monotonic() + 60
                while seen != replicas:
                    assert time.monotonic() < deadline_s, f"{seen} replicas instead of {replicas}"
                    await asyncio.sleep(0.2)
                    seen = await asyncio.to_thread(cluster.replicas)
                waiting.extend(tasks)

            waiting: list[asyncio.Task[None]] = []
            await hold(1, 1)
            await hold(9, 3)
            await hold(1, 1)
            wanted = 0
            await asyncio.gather(*waiting)

    asyncio.run(run())
    assert Counter(kind for kind, _, _ in results) == {"200": len(results)}
    assert all(seconds == 1.5 for _, seconds, _ in results)
    assert len({replica for _, _, replica in results}) >= 3


def test_no_replica_becomes_one_for_the_first_request(cluster: Cluster) -> None:
    options = {"capacity": "4", "seconds": "0.5", "ttfa": "0.05"}
    cluster.paced("0..1", options=options, downscale_delay_s=2.0)
    cluster.wait_for_replicas(0)

    async def run() -> tuple[str, float, str]:
        async with cluster.async_client() as client:
            return await listen(client)

    assert asyncio.run(run())[:2] == ("200", 0.5)
    cluster.wait_for_replicas(0)
    wait_until(lambda: not replica_processes(), 30)


def test_an_update_lets_running_speech_finish(cluster: Cluster) -> None:
    cluster.paced("1", options={"capacity": "4", "seconds": "12", "ttfa": "0.1"})

    async def run() -> tuple[tuple[str, float, str], tuple[str, float, str]]:
        async with cluster.async_client() as client:
            speaking = asyncio.create_task(listen(client))
            await asyncio.sleep(1)
            options = {"capacity": "4", "seconds": "1", "ttfa": "0.1"}
            await asyncio.to_thread(cluster.paced, "1", options=options)
            after = await listen(client)
            return await speaking, after

    before, after = asyncio.run(run())
    assert before[:2] == ("200", 12.0)
    assert after[:2] == ("200", 1.0)
    assert before[2] != after[2]
