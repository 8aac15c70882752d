"""A program as a user writes it. Type checkers read it in strict mode: tests/engine/test_user_types.py."""

from __future__ import annotations

import asyncio
from io import BytesIO
from pathlib import Path

import numpy as np

from nightingale import (
    TTS,
    AsyncTTS,
    Audio,
    AudioChunk,
    Metrics,
    NightingaleError,
    SpeechProgress,
    Voice,
    save,
)


def report(progress: SpeechProgress) -> None:
    print(f"{progress.fraction:.0%}, {progress.audio_seconds:.1f} s, {progress.texts_done} texts")


def speak(tts: TTS, folder: Path) -> list[Audio]:
    names: tuple[str, ...] = tts.voices
    hello: Audio = tts.say("Hello there.", voice=names[0], seed=1, temperature=0.7, on_progress=report)
    hello.save(folder / "hello.wav")
    save(str(folder / "again.wav"), hello)
    metrics: Metrics = hello.metrics
    print(f"{hello.seconds:.1f} s after {metrics.ttfa_ms:.0f} ms")
    chunks: list[AudioChunk] = list(tts.stream("One sentence.", speed=1.2, normalize=False))
    print(sum(chunk.seconds for chunk in chunks))
    with tts.session(language=None) as session:
        session.push("Text in, ")
        session.end()
        print(b"".join(chunk.pcm16 for chunk in session)[:2])
    for audio in tts.say_each(["One.", "Two."], top_k=50):
        print(audio.sha256)
    return tts.say_many(iter(["Three.", "Four."]), on_progress=report)


def clone(tts: TTS, recording: bytes) -> list[Voice]:
    noise = np.random.default_rng(1).normal(0.0, 0.1, 48_000).astype(np.float32)
    return [
        tts.voice(recording),
        tts.voice(BytesIO(recording)),
        tts.voice((noise, 24_000)),
        tts.voice("heart"),
    ]


async def speak_in_a_loop(tts: AsyncTTS) -> float:
    seconds = (await tts.say("Hello.", on_progress=report)).seconds
    async for chunk in tts.stream("Hello."):
        seconds += chunk.seconds
    async for audio in tts.say_each(["One.", "Two."]):
        seconds += audio.seconds
    return seconds


def main() -> None:
    try:
        with TTS(profile="fast", max_streams=2) as tts:
            print(speak(tts, Path()), clone(tts, Path("clip.wav").read_bytes()))
            print(asyncio.run(speak_in_a_loop(AsyncTTS(tts))))
    except NightingaleError as error:
        print(error.what, error.got, error.allowed, error.fix)


if __name__ == "__main__":
    main()
