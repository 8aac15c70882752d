"""Reports of a stream's place in the queue, which clients get while they wait for their first audio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, TypeVar

from nightingale.engine.stream_capacity import QueuePlace
from nightingale.server.service.speech_streams import SpeechStream

POLL_S: Final = 0.2
"""Time between two looks at the queue. A request whose audio comes sooner was served at once."""

Part = TypeVar("Part")


async def with_queue_reports(
    parts: AsyncGenerator[Part, None], stream: SpeechStream, report: Callable[[QueuePlace], Awaitable[None]]
) -> AsyncGenerator[Part, None]:
    """Yield the parts that are made of a stream; call `report` meanwhile when its position in the queue changes."""
    first, position = asyncio.create_task(_next(parts)), 0
    try:
        while not (await asyncio.wait((first,), timeout=POLL_S))[0]:
            place = stream.place
            if place is not None and place.position != position:
                position = place.position
                await report(place)
        for part in first.result():
            yield part
        async for part in parts:
            yield part
    finally:
        first.cancel()
        await asyncio.wait((first,))
        await parts.aclose()


async def _next(parts: AsyncGenerator[Part, None]) -> list[Part]:
    """Return the next part, or nothing at the end. A task cannot raise StopAsyncIteration."""
    async for part in parts:
        return [part]
    return []


def queued_event(place: QueuePlace) -> dict[str, Any]:
    """Return the event that tells a client its place in the queue."""
    return {"type": "speech.queued", "position": place.position, "estimated_wait_s": place.wait_s}
