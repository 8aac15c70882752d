"""Segmentation of a request's text: plain text as it is, SSML in parts with their own voice and speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import Any

from nightingale.engine.faults import raising_engine_faults
from nightingale.engine.load import Model
from nightingale.engine.requests.controls import RequestOptions
from nightingale.engine.requests.segments import MAX_CHARS, TextSegment, check_length
from nightingale.engine.requests.text_check import TextCheck
from nightingale.engine.session import Session
from nightingale.engine.voice_lookup import VoiceResolver
from nightingale.errors import TextError
from nightingale.request_options import MAX_SPEED, MIN_SPEED
from nightingale.text.punctuation import empty_text
from nightingale.text.ssml import SsmlPart, is_ssml, parse_ssml
from nightingale.text.unspoken import check_strict
from nightingale.voices.blend import blend, is_blend, parse_blend
from nightingale.voices.voice import Voice

Segmenter = Callable[..., Iterator[TextSegment]]
"""Segments a text, given the options of `segment_text`."""


def segmenter_of(
    model: Model, voices: VoiceResolver, request: RequestOptions, session: Session, *, exact: bool
) -> Segmenter:
    """Return `segment_text` with the options that all texts of a request share.

    exact: Write no numbers out for a model that upstream gives them in digits, unless the request asks for it.
    """
    frontend = model.frontend
    if exact and "normalize" not in request:
        frontend = replace(frontend, spell_numbers=None)
    checked = TextCheck.of(frontend, request, into=session.warnings)
    plain = partial(checked.segment, max_ids=model.defaults.max_text_ids, speed=session.request.speed)

    def voice_named(name: str) -> Voice:
        given = request.get("ssml_voices") or {}
        if is_blend(name):
            return blend([(voice_named(part), weight) for part, weight in parse_blend(name)])
        return voices.resolve(given[name.lower()]) if name.lower() in given else voices.named(name)

    @raising_engine_faults()
    def segment(text: str, **options: Any) -> Iterator[TextSegment]:
        if not is_ssml(text):
            return plain(text, **options)
        check_length(len(text), options.get("max_chars", MAX_CHARS))
        parts, warnings = parse_ssml(text, request.get("language"))
        if request.get("strict", False):
            check_strict(warnings)
        known = {warning.what for warning in session.warnings}
        session.warnings += [warning for warning in warnings if warning.what not in known]
        segments = _segment_parts(parts, plain, voice_named, session, options)
        checked.chars += len(text)
        return segments

    return segment


def _segment_parts(
    parts: list[SsmlPart],
    plain: Segmenter,
    voice_named: Callable[[str], Voice],
    session: Session,
    options: dict[str, Any],
) -> Iterator[TextSegment]:
    """Return the segments of all parts. A mistake in any of them is found by this call."""
    found: list[Iterator[TextSegment]] = []
    for number, part in enumerate(parts, start=1):
        voice = None if part.voice is None else voice_named(part.voice)
        speed = None if part.rate == 1 else _checked_speed(session.request.speed * part.rate)
        own = options if number == len(parts) else {**options, "continues": True}
        own = own if speed is None else {**own, "speed": speed}
        already = len(session.warnings)
        segments = plain(part.text, place=part.source_position, **own)
        session.warnings[already:] = [
            replace(warning, at=part.source_position(warning.at)) for warning in session.warnings[already:]
        ]
        found.append(map(partial(replace, voice=voice, speed=speed), segments))
    everything = chain.from_iterable(found)
    first = list(islice(everything, 1))
    if not first and not options.get("continues"):
        raise empty_text("".join(part.text for part in parts))
    return chain(first, everything)


def _checked_speed(speed: float) -> float:
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise TextError(
            "the prosody rate of the SSML is out of range",
            got=f"a speed of {speed:g}",
            allowed=f"{MIN_SPEED:g} to {MAX_SPEED:g}",
        )
    return speed
