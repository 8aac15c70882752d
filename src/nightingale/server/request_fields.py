"""The options of a request as fields of HTTP bodies and WebSocket messages."""

from __future__ import annotations

from math import inf
from typing import Any, Final, TypeVar

from pydantic import BaseModel, Field, create_model, model_validator

from nightingale.request_options import NUMBERS, OPTIONS

Body = TypeVar("Body", bound=BaseModel)

ARGUMENTS: Final = {"voice", "lexicon", *OPTIONS}
"""Fields that are arguments of `SpeechService.open` and `SpeechService.session`."""


class RequestBody(BaseModel):
    """A request body in which null means the same as leaving the field out."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        return {name: value for name, value in body.items() if value is not None}

    @property
    def request(self) -> dict[str, Any]:
        """Return the arguments of `SpeechService.open` and `SpeechService.session` besides the text."""
        fields = self.model_dump(include=ARGUMENTS, exclude_none=True)
        timed = getattr(self, "timestamps", None) == "word"
        return {**fields, "timestamps": True} if timed else fields


def with_request_options(body: type[Body]) -> type[Body]:
    """Add a field for each option of a request that the class has none for. The engine checks their ranges."""
    fields: dict[str, Any] = {}
    for name, option in OPTIONS.items():
        low, high = option.limits
        if name in NUMBERS:
            field = Field(None, description=option.full, json_schema_extra={"minimum": low, "maximum": high})
        else:
            field = Field(None, description=option.full, max_length=None if high == inf else int(high))
        fields[name] = (option.kind | None, field)
    added = {name: field for name, field in fields.items() if name not in body.model_fields}
    return create_model(
        body.__name__, __base__=body, __module__=body.__module__, __doc__=body.__doc__, **added
    )
