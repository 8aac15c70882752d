"""The OpenAPI document describes server-sent events as they are. tests/contract lets schemathesis check it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from live_server import LiveServer
from plain_http import HTTP

BODY = {"input": "Good morning. How are you?", "response_format": "pcm", "stream_format": "sse", "seed": 1}


@pytest.fixture(scope="module")
def events(server: LiveServer) -> dict[str, dict[str, Any]]:
    """Return the schema of each event by its type."""
    api = HTTP.get(f"{server.http}/openapi.json").json()
    content = api["paths"]["/v1/audio/speech"]["post"]["responses"]["200"]["content"]
    data = content["text/event-stream"]["itemSchema"]["properties"]["data"]
    assert (data["type"], data["contentMediaType"]) == ("string", "application/json")
    return {schema["properties"]["type"]["const"]: schema for schema in data["contentSchema"]["oneOf"]}


@pytest.mark.parametrize("timestamps", ["none", "segment"])
def test_every_event_has_the_fields_that_are_described(
    server: LiveServer, events: dict[str, dict[str, Any]], timestamps: str
) -> None:
    answer = HTTP.post(f"{server.http}/v1/audio/speech", json={**BODY, "timestamps": timestamps})
    lines = [line for line in answer.text.splitlines() if line]
    assert all(line.startswith("data: ") for line in lines), "an event has no other fields"
    sent = [json.loads(line.removeprefix("data: ")) for line in lines]
    kinds = {event["type"] for event in sent}
    assert {"speech.audio.delta", "speech.audio.done"} <= kinds
    assert ("speech.audio.segments" in kinds) == (timestamps == "segment")
    for event in sent:
        assert set(event) == set(events[event["type"]]["required"])


def test_waits_and_errors_are_described(events: dict[str, dict[str, Any]]) -> None:
    assert set(events["speech.queued"]["required"]) == {"type", "position", "estimated_wait_s"}
    assert events["error"]["properties"]["error"] == {"$ref": "#/components/schemas/ErrorBody"}
