"""What went wrong, as HTTP says it: OpenAI's envelope on every route, and the one table of status codes.

{"error": {"message": …, "type": …, "param": …, "code": …}}
"""

from __future__ import annotations

import http
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from nightingale.errors import (
    BadReference,
    CapacityError,
    ConfigError,
    DeviceError,
    EmptyText,
    EngineFault,
    LanguagePackageMissing,
    MemoryFull,
    ModelError,
    NightingaleError,
    OutputError,
    QueueFull,
    TextError,
    TextTooLong,
    UnknownModel,
    UnsupportedLanguage,
    VoiceError,
    VoiceExists,
    VoiceNotFound,
)

INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"
JSON: Final = "application/json"


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(BaseModel):
    """What every route answers when it cannot do what was asked."""

    error: ErrorBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    status: int
    message: str
    type: str = INVALID
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def envelope(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    @property
    def response(self) -> Response:
        return JSONResponse(self.envelope, self.status, dict(self.headers))


# The nearest class of an error's family decides: status, type, parameter, code.
TABLE: Final[Mapping[type[NightingaleError], tuple[int, str, str | None, str]]] = {
    ConfigError: (400, INVALID, None, "invalid_value"),
    UnknownModel: (400, INVALID, "model", "model_not_found"),
    ModelError: (503, SERVER, None, "model_unavailable"),
    EmptyText: (400, INVALID, "input", "empty_input"),
    TextTooLong: (400, INVALID, "input", "input_too_long"),
    UnsupportedLanguage: (400, INVALID, "language", "unsupported_language"),
    LanguagePackageMissing: (400, INVALID, "language", "unsupported_language"),
    TextError: (400, INVALID, "input", "invalid_input"),
    VoiceNotFound: (400, INVALID, "voice", "voice_not_found"),
    VoiceExists: (409, INVALID, "name", "voice_exists"),
    BadReference: (400, INVALID, "audio", "invalid_audio"),
    VoiceError: (400, INVALID, "voice", "invalid_voice"),
    QueueFull: (429, "rate_limit_error", None, "queue_full"),
    MemoryFull: (400, INVALID, "input", "input_too_long"),
    CapacityError: (507, SERVER, None, "no_room"),
    EngineFault: (503, SERVER, None, "engine_fault"),
    DeviceError: (503, SERVER, None, "device_unavailable"),
    OutputError: (500, SERVER, None, "output_failed"),
}


def problem_of(error: NightingaleError, retry_after_ms: int | None = None) -> Problem:
    row = next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), (500, SERVER, None, "fault"))
    status, kind, usual, code = row
    param = error.param or usual
    headers = {}
    if isinstance(error, QueueFull) and retry_after_ms is not None:
        headers = {"retry-after-ms": str(retry_after_ms), "retry-after": str(-(-retry_after_ms // 1000))}
    return Problem(status=status, message=str(error), type=kind, param=param, code=code, headers=headers)


def envelope(error: NightingaleError) -> dict[str, Any]:
    """For what is not HTTP: a message on a socket, an event in a stream."""
    return problem_of(error).envelope


def of_validation(error: RequestValidationError, content_type: str = JSON) -> Problem:
    """The first thing that is wrong with a body, by the name of its field."""
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    # For a field that may be several things, pydantic names the kinds it tried; clients know only the field.
    param = where[0] if where else None
    if first["type"] == "json_invalid":
        return Problem(status=400, message="The body is not valid JSON.", code="invalid_json")
    missing = first["type"] == "missing"
    kind = content_type.partition(";")[0].strip().lower()
    if not (param or missing or kind == JSON or kind.endswith("+json")):
        # The framework has not tried to read it; `curl -d` calls whatever it sends a form.
        came = f"with Content-Type: {kind[:80]}" if kind else "with no Content-Type"
        return Problem(
            status=400,
            message=f"The body came {came}. Send it with the header Content-Type: {JSON}.",
            code="invalid_content_type",
        )
    message = f"{param}: {first['msg']}" if param else f"The request cannot be read: {first['msg']}"
    code = "missing_required_parameter" if missing else "invalid_value"
    return Problem(status=400, message=message, param=param, code=code)


def of_http(error: HTTPException, method: str, path: str) -> Problem:
    """404, 405 and whatever else the framework says in its own words."""
    code = http.HTTPStatus(error.status_code).name.lower()
    message = {
        404: f"Nothing is here: {method} {path}. See /docs.",
        405: f"{method} is not allowed on {path}.",
    }.get(error.status_code, str(error.detail))
    kind = INVALID if error.status_code < 500 else SERVER
    return Problem(
        status=error.status_code, message=message, type=kind, code=code, headers=error.headers or {}
    )


def fault(request_id: str) -> Problem:
    """What nobody foresaw. The details are in the log, under the request's id."""
    return Problem(
        status=500,
        message=f"Something broke that no caller caused. The log has it under {request_id}.",
        type=SERVER,
        code="internal_error",
    )


def install(app: FastAPI) -> None:
    """Let every route of the app answer errors in the envelope."""

    async def ours(request: Request, error: Exception) -> Response:
        assert isinstance(error, NightingaleError)
        return problem_of(error, request.app.state.speaker.retry_after_ms).response

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return of_validation(error, request.headers.get("content-type", "")).response

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return of_http(error, request.method, request.url.path).response

    app.add_exception_handler(NightingaleError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
