"""The paced service, which cluster tests and benchmarks deploy, answers as the server's own service does."""

from __future__ import annotations

import asyncio

import httpx

from nightingale.server.app import create_app
from nightingale.server.settings import ServerSettings
from nightingale_lab.bench.paced_service import PacedService


def test_an_answer_has_the_length_and_the_headers_that_the_settings_say() -> None:
    options = {"ttfa": "0.01", "seconds": "0.2", "block": "0.1"}
    settings = ServerSettings(option=options)

    async def ask() -> httpx.Response:
        service = PacedService(settings)
        await service.start()
        transport = httpx.ASGITransport(create_app(settings, service))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.post("/v1/audio/speech", json={"input": "Hello.", "response_format": "pcm"})

    answer = asyncio.run(ask())
    assert answer.status_code == 200, answer.text
    assert len(answer.content) == 0.2 * 48_000
    assert "queue;dur=" in answer.headers["server-timing"]
