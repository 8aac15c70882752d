"""The server-sent events of POST /v1/audio/speech: their encoding, and their description for OpenAPI."""

from __future__ import annotations

import json
from typing import Any, Final

_NUMBER: Final = {"type": "number"}
_OBJECT: Final = {"type": "object"}
_LIST: Final = {"type": "array", "items": _OBJECT}
EVENT_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "speech.queued": {
        "position": {"type": "integer", "minimum": 1},
        "estimated_wait_s": {"type": ["number", "null"]},
    },
    "speech.audio.delta": {"audio": {"type": "string", "contentEncoding": "base64"}},
    "speech.audio.segments": {"segments": _LIST},
    "speech.audio.words": {"words": _LIST},
    "speech.audio.done": {
        "usage": {"type": "object", "additionalProperties": _NUMBER},
        "metrics": _OBJECT,
    },
    "error": {"error": {"$ref": "#/components/schemas/ErrorBody"}},
}
"""The fields of each event besides its type; all are required. The last one also has `srt` if words are timed."""


def _event_schema(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    properties = {"type": {"const": kind}, **fields}
    return {"type": "object", "title": kind, "required": [*properties], "properties": properties}


EVENT_STREAM: Final = {
    "itemSchema": {
        "type": "object",
        "required": ["data"],
        "properties": {
            "data": {
                "type": "string",
                "contentMediaType": "application/json",
                "contentSchema": {"oneOf": [_event_schema(*each) for each in EVENT_FIELDS.items()]},
            }
        },
    }
}
"""The media type object of text/event-stream. `itemSchema` is OpenAPI 3.2's schema of one event of a stream, which
FastAPI also writes into documents of 3.1; there, `schema` would describe the stream as a whole."""


def encode_event(type: str, **fields: Any) -> bytes:  # noqa: A002, the name of the event's field
    """Return an event as it is sent. It has no name: clients read the type in its data."""
    return f"data: {json.dumps({'type': type, **fields}, separators=(',', ':'))}\n\n".encode()
