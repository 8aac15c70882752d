"""Measure the voice references of wren's built-in voices, and store them in the package.

    python -m nightingale_lab.bench.verify.built_in_references

This takes some minutes on two cores, and is needed when wren's weights have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nightingale import wren
from nightingale.engine.load import Model
from nightingale_lab.bench.verify.subject import EngineSubject
from nightingale_lab.bench.verify.verification import FIRST_SEED, sentences
from nightingale_lab.bench.verify.voice_reference import (
    STORED,
    VoiceReference,
    measure_reference,
    write_references,
)
from nightingale_lab.reference import load

SENTENCES = 30
"""The default number of `nightingale verify`."""


def measure_built_in(
    model: Model, texts: Sequence[str], voices: Sequence[str | None]
) -> Iterator[VoiceReference]:
    """Yield the reference of each voice; None is the default one."""
    for voice in voices:
        subject = EngineSubject(model, voice=voice)
        clips = [subject.say(text, seed=FIRST_SEED + number) for number, text in enumerate(texts)]
        yield measure_reference(subject, clips)
        subject.close()


if __name__ == "__main__":
    names = sorted(path.stem for path in (wren.folder() / wren.VOICES).glob("*.safetensors"))
    write_references(STORED, list(measure_built_in(load("wren"), sentences(SENTENCES), [None, *names])))
