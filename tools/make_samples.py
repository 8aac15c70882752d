"""Make the samples of the listening page: each voice of wren, with a fixed seed, as docs/samples/VOICE-KIND.mp3.

python tools/make_samples.py            # all of them; about two minutes on two cores
python tools/make_samples.py emma       # some voices

The clips of a machine with other instructions differ in a few bits, so this is run when the weights change, and not
by `make docs`. tools/docs_listening.py lists the same texts on the page. docs/samples/hello.mp4 is for the README:
GitHub plays a video that is linked, but no audio file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import av
import numpy as np

from nightingale import TTS, Audio
from nightingale.audio.encoders.recording import recording

FOLDER = Path(__file__).parents[1] / "docs" / "samples"
SEED = 1
BIT_RATE = 48_000
TEXTS = {
    "statement": "The last train leaves at ten past nine, so we still have time for dinner.",
    "question": "Did you remember to lock the front door?",
    "letters": "My booking code is W, R, 7, E, N, 4.",
}
REFERENCE = (
    "I grew up near the harbor, where the fishing boats come in before sunrise. "
    "On most days my grandfather walked down to the pier to buy something for lunch."
)
HELLO = "Hello. I am Nightingale, and I speak on this computer without any network."
CLONE = "I was cloned from ten seconds of speech, and I never said this sentence before."


def write(name: str, audio: Audio) -> None:
    with recording(FOLDER / f"{name}.mp3", audio.sample_rate_hz, BIT_RATE) as recorder:
        recorder.feed(audio.samples)
    print(f"{name}.mp3: {audio.seconds:.1f} s")


def write_video(path: Path, audio: Audio, *, width: int = 640, height: int = 160, rate: int = 10) -> None:
    """Write a video of the waveform, in which the part that was played is colored."""
    bars = np.array([np.abs(part).max() for part in np.array_split(audio.samples, width // 4)])
    tall = (bars / bars.max() * (height / 2 - 12)).astype(int)
    with av.open(str(path), "w") as file:
        video, sound = (
            file.add_stream("libx264", rate=rate),
            file.add_stream("aac", rate=audio.sample_rate_hz),
        )
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        sound.layout = "mono"
        count = int(audio.seconds * rate) + 1
        for number in range(count):
            picture = np.full((height, width, 3), 255, dtype=np.uint8)
            for bar, size in enumerate(tall):
                color = (0, 121, 107) if bar / len(tall) <= number / count else (176, 190, 197)
                picture[height // 2 - size - 1 : height // 2 + size + 1, 4 * bar : 4 * bar + 3] = color
            file.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        frame = av.AudioFrame.from_ndarray(audio.samples[None], format="fltp", layout="mono")
        frame.sample_rate = audio.sample_rate_hz
        file.mux([*video.encode(None), *sound.encode(frame), *sound.encode(None)])
    print(f"{path.name}: {path.stat().st_size} bytes")


def main(voices: list[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with TTS() as tts:
        write_video(FOLDER / "hello.mp4", tts.say(HELLO, seed=SEED))
        for voice in voices or tts.voices:
            for kind, text in TEXTS.items():
                write(f"{voice}-{kind}", tts.say(text, voice=voice, seed=SEED))
            reference = tts.say(REFERENCE, voice=voice, seed=SEED)
            cloned = tts.voice((reference.samples, reference.sample_rate_hz))
            write(f"{voice}-clone", tts.say(CLONE, voice=cloned, seed=SEED))


if __name__ == "__main__":
    main(sys.argv[1:])
