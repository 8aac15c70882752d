"""FastAPI dependencies of the routes."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection

from nightingale.server.service.speech_service import SpeechService


async def get_service(connection: HTTPConnection) -> SpeechService:  # async: FastAPI runs others in threads
    service: SpeechService = connection.app.state.service
    return service


Service = Annotated[SpeechService, Depends(get_service)]
