"""Errors as HTTP responses: OpenAI's error envelope on every route, and the table of status codes.

{"error": {"message": …, "type": …, "param": …, "code": …}}
"""

from __future__ import annotations

import http
import math
import random
from collections.abc import Mapping
from typing import Any, Final

from fastapi import HTTPException as FastAPIHTTPException
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from nightingale import errors
from nightingale.errors import NightingaleError
from nightingale.server.tenants import access_errors

JSON: Final = "application/json"
Headers = Mapping[str, str] | None

RETRY_S: Final = 1.0
"""When to try again if there is no estimate."""
RETRY_LIMITS_S: Final = (0.1, 300.0)
ELEVENLABS_PATHS: Final = (
    "/v1/text-to-speech/",
    "/v1/speech-to-speech/",
    "/v1/voices",
    "/v2/voices",
    "/v1/user",
)
"""Paths whose errors also have the field `detail`, in which ElevenLabs' clients look for them."""
ELEVENLABS_STATUSES: Final = {"insufficient_quota": "quota_exceeded", "queue_full": "system_busy"}
"""Codes that ElevenLabs has another name for."""


def route_path(scope: Scope) -> str:
    """Return the path as routes see it: without the prefix of a proxy that does not strip it."""
    path, prefix = scope["path"], scope.get("root_path", "").rstrip("/")
    return str(path[len(prefix) :]) if prefix and path.startswith(f"{prefix}/") else str(path)


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None
    position: int | None = None
    """The position that the request would have got in a full queue."""
    estimated_wait_s: float | None = None
    """The estimated wait at this position; null if that is not known."""
    retry_after_s: float | None = None
    """The time after which a full queue is expected to have a place."""


class ErrorEnvelope(BaseModel):
    """The body of every error response."""

    error: ErrorBody


class HttpError(FastAPIHTTPException):
    """An error response. FastAPI passes only its own class on if it is raised while a body is read."""

    def __init__(
        self, status: int, message: str, code: str, param: str | None = None, headers: Headers = None
    ) -> None:
        super().__init__(status, message, headers)
        kind = "invalid_request_error" if status < 500 else "server_error"
        kind = "rate_limit_error" if status == 429 else kind
        self.envelope: dict[str, dict[str, Any]] = {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }

    def respond(self, scope: Scope) -> Response:
        """Return the response, and leave its code to the request log and to the counter of rejections."""
        error = self.envelope["error"]
        scope.setdefault("state", {})["error_code"] = code = error["code"]
        detail = {}
        if route_path(scope).startswith(ELEVENLABS_PATHS):
            status = ELEVENLABS_STATUSES.get(code or "", code)
            detail = {"detail": {"status": status, "message": error["message"]}}
        return JSONResponse(self.envelope | detail, self.status_code, self.headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        await self.respond(scope)(scope, receive, send)


# Status, default parameter and code. The first class of an exception's MRO that is listed decides.
TABLE: Final[Mapping[type[NightingaleError], tuple[int, str | None, str]]] = {
    errors.ConfigError: (400, None, "invalid_value"),
    errors.UnknownModel: (400, "model", "model_not_found"),
    errors.ModelError: (503, None, "model_unavailable"),
    errors.EmptyText: (400, "input", "empty_input"),
    errors.TextTooLong: (400, "input", "input_too_long"),
    errors.UnsupportedLanguage: (400, "language", "unsupported_language"),
    errors.LanguagePackageMissing: (400, "language", "unsupported_language"),
    errors.TextError: (400, "input", "invalid_input"),
    errors.VoiceNotFound: (400, "voice", "voice_not_found"),
    errors.VoiceExists: (409, "name", "voice_exists"),
    errors.BadReference: (400, "audio", "invalid_audio"),
    errors.VoiceError: (400, "voice", "invalid_voice"),
    errors.QueueFull: (429, None, "queue_full"),
    access_errors.LimitExceeded: (429, None, "rate_limit_exceeded"),
    access_errors.ConcurrencyExceeded: (429, None, "too_many_concurrent_requests"),
    access_errors.QuotaExceeded: (429, None, "insufficient_quota"),
    access_errors.KeyRevoked: (401, None, "invalid_api_key"),
    access_errors.AccessError: (403, None, "admin_required"),
    errors.OutOfMemory: (503, None, "out_of_memory"),
    errors.MemoryFull: (400, "input", "input_too_long"),
    errors.CapacityError: (507, None, "no_room"),
    errors.EngineFault: (503, None, "engine_fault"),
    errors.DeviceError: (503, None, "device_unavailable"),
    errors.OutputError: (500, None, "output_failed"),
    NightingaleError: (500, None, "fault"),
}


def http_error(error: NightingaleError) -> HttpError:
    """Convert an exception of the package."""
    status, default_param, code = next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)
    answer = HttpError(status, str(error), code, error.param or default_param)
    if isinstance(error, errors.QueueFull):
        retry_after_ms = _retry_after_ms(error)
        answer.headers = {
            "retry-after-ms": str(retry_after_ms),
            "retry-after": str(-(-retry_after_ms // 1000)),
        }
        # Also in the body, because errors on WebSockets have no headers.
        answer.envelope["error"] |= {
            "position": error.position,
            "estimated_wait_s": error.wait_s,
            "retry_after_s": retry_after_ms / 1000,
        }
        if isinstance(error, access_errors.QuotaExceeded):
            answer.headers["x-should-retry"] = "false"  # otherwise OpenAI's client tries twice more at once
    return answer


def _retry_after_ms(error: errors.QueueFull) -> int:
    """Return the engine's estimate of when the queue has a place, with jitter to spread rejected clients."""
    wait_s = RETRY_S if error.retry_after_s is None else error.retry_after_s
    if isinstance(error, access_errors.LimitExceeded):  # exact, and of one tenant's clients only
        return math.ceil(1000 * wait_s)
    return round(1000 * min(max(wait_s * random.uniform(1.0, 1.25), RETRY_LIMITS_S[0]), RETRY_LIMITS_S[1]))


async def answer_error(connection: HTTPConnection, error: Exception) -> Response:
    """Answer a request or a WebSocket handshake whose route raised one of HANDLED."""
    match error:
        case HttpError():
            return error.respond(connection.scope)
        case NightingaleError():
            return http_error(error).respond(connection.scope)
        case RequestValidationError():
            content_type = connection.headers.get("content-type", "")
            return _validation_error(error, content_type).respond(connection.scope)
        case HTTPException():
            return _framework_error(error, connection).respond(connection.scope)
    raise error


HANDLED: Final = (NightingaleError, RequestValidationError, HTTPException)


def _validation_error(error: RequestValidationError, content_type: str) -> HttpError:
    """Convert the first of pydantic's complaints about a request."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    # For a union, pydantic appends the types that it tried; clients know only the field.
    param = location[0] if location else None
    if first["type"] == "json_invalid":
        return HttpError(400, "The body is not valid JSON.", code="invalid_json")
    missing = first["type"] == "missing"
    kind = content_type.partition(";")[0].strip().lower()
    if not (param or missing or kind == JSON or kind.endswith("+json")):
        # FastAPI does not parse a body of another type; `curl -d` sends application/x-www-form-urlencoded.
        sent = f"with Content-Type: {kind[:80]}" if kind else "with no Content-Type"
        message = f"The body was sent {sent}. Send it with the header Content-Type: {JSON}."
        return HttpError(400, message, code="invalid_content_type")
    message = f"{param}: {first['msg']}" if param else f"The request cannot be read: {first['msg']}"
    code = "missing_required_parameter" if missing else "invalid_value"
    return HttpError(400, message, param=param, code=code)


def _framework_error(error: HTTPException, connection: HTTPConnection) -> HttpError:
    """Convert an error that starlette raises itself, such as 404 and 405."""
    status, path = error.status_code, connection.url.path
    method = connection.scope.get("method", "WEBSOCKET")
    messages = {
        404: f"No such route: {method} {path}. See /docs.",
        405: f"{method} is not allowed on {path}.",
    }
    code = http.HTTPStatus(status).name.lower()
    return HttpError(status, messages.get(status, str(error.detail)), code, headers=error.headers)
