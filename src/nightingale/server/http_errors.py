"""Errors as HTTP responses: OpenAI's error envelope on every route, and the table of status codes.

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

from nightingale import errors
from nightingale.errors import NightingaleError

INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"
JSON: Final = "application/json"


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(BaseModel):
    """The body of every error response."""

    error: ErrorBody


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpError:
    """An error response: its status and the fields of its envelope."""

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


# Status, type, default parameter and code. The first class of an exception's MRO that is listed decides.
TABLE: Final[Mapping[type[NightingaleError], tuple[int, str, str | None, str]]] = {
    errors.ConfigError: (400, INVALID, None, "invalid_value"),
    errors.UnknownModel: (400, INVALID, "model", "model_not_found"),
    errors.ModelError: (503, SERVER, None, "model_unavailable"),
    errors.EmptyText: (400, INVALID, "input", "empty_input"),
    errors.TextTooLong: (400, INVALID, "input", "input_too_long"),
    errors.UnsupportedLanguage: (400, INVALID, "language", "unsupported_language"),
    errors.LanguagePackageMissing: (400, INVALID, "language", "unsupported_language"),
    errors.TextError: (400, INVALID, "input", "invalid_input"),
    errors.VoiceNotFound: (400, INVALID, "voice", "voice_not_found"),
    errors.VoiceExists: (409, INVALID, "name", "voice_exists"),
    errors.BadReference: (400, INVALID, "audio", "invalid_audio"),
    errors.VoiceError: (400, INVALID, "voice", "invalid_voice"),
    errors.QueueFull: (429, "rate_limit_error", None, "queue_full"),
    errors.MemoryFull: (400, INVALID, "input", "input_too_long"),
    errors.CapacityError: (507, SERVER, None, "no_room"),
    errors.EngineFault: (503, SERVER, None, "engine_fault"),
    errors.DeviceError: (503, SERVER, None, "device_unavailable"),
    errors.OutputError: (500, SERVER, None, "output_failed"),
    NightingaleError: (500, SERVER, None, "fault"),
}


def http_error(error: NightingaleError, retry_after_ms: int | None = None) -> HttpError:
    """Convert an exception of the package. retry_after_ms is sent only if the queue is full."""
    status, kind, default_param, code = next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)
    headers = {}
    if isinstance(error, errors.QueueFull) and retry_after_ms is not None:
        headers = {"retry-after-ms": str(retry_after_ms), "retry-after": str(-(-retry_after_ms // 1000))}
    param = error.param or default_param
    return HttpError(status=status, message=str(error), type=kind, param=param, code=code, headers=headers)


def error_envelope(error: NightingaleError) -> dict[str, Any]:
    """Return the envelope alone, for WebSocket messages and server-sent events."""
    return http_error(error).envelope


def validation_error(error: RequestValidationError, content_type: str = JSON) -> HttpError:
    """Convert the first of pydantic's complaints about a request."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    # For a union, pydantic appends the types that it tried; clients know only the field.
    param = location[0] if location else None
    if first["type"] == "json_invalid":
        return HttpError(status=400, message="The body is not valid JSON.", code="invalid_json")
    missing = first["type"] == "missing"
    kind = content_type.partition(";")[0].strip().lower()
    if not (param or missing or kind == JSON or kind.endswith("+json")):
        # FastAPI does not parse a body of another type; `curl -d` sends application/x-www-form-urlencoded.
        sent = f"with Content-Type: {kind[:80]}" if kind else "with no Content-Type"
        return HttpError(
            status=400,
            message=f"The body was sent {sent}. Send it with the header Content-Type: {JSON}.",
            code="invalid_content_type",
        )
    message = f"{param}: {first['msg']}" if param else f"The request cannot be read: {first['msg']}"
    code = "missing_required_parameter" if missing else "invalid_value"
    return HttpError(status=400, message=message, param=param, code=code)


def framework_error(error: HTTPException, method: str, path: str) -> HttpError:
    """Convert an error that starlette raises itself, such as 404 and 405."""
    message = {
        404: f"No such route: {method} {path}. See /docs.",
        405: f"{method} is not allowed on {path}.",
    }.get(error.status_code, str(error.detail))
    return HttpError(
        status=error.status_code,
        message=message,
        type=INVALID if error.status_code < 500 else SERVER,
        code=http.HTTPStatus(error.status_code).name.lower(),
        headers=error.headers or {},
    )


def internal_error(request_id: str) -> HttpError:
    """Describe an unexpected exception; the details are in the log under the request's id."""
    return HttpError(
        status=500,
        message=f"Internal server error. The log has the details under {request_id}.",
        type=SERVER,
        code="internal_error",
    )


def install_handlers(app: FastAPI) -> None:
    """Make every route of the app answer errors in the envelope."""

    @app.exception_handler(NightingaleError)
    async def _(request: Request, error: NightingaleError) -> Response:
        return http_error(error, request.app.state.service.retry_after_ms).response

    @app.exception_handler(RequestValidationError)
    async def _(request: Request, error: RequestValidationError) -> Response:
        return validation_error(error, request.headers.get("content-type", "")).response

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        return framework_error(error, request.method, request.url.path).response
