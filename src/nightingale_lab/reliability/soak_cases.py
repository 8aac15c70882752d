"""The requests of the soak: speech whose bytes are known, and requests that must be refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from importlib.resources import files

CODECS = ("pcm", "wav", "mp3", "opus", "flac", "aac")
TRANSPORTS = ("openai", "sse", "websocket", "elevenlabs")
"""Protocols that take a seed, so that their audio can be compared."""
SHORT_TEXTS = (
    "Good morning, and welcome back.",
    "Your train leaves in ten minutes from platform four.",
    "It costs $5.50, or 3 for 12 euros; the 2nd of May, 1999.",
    "Yes.",
    "Shall I call a taxi, or would you rather walk through the park? It is not far. [pause:300ms] Tell me.",
    '<speak>Wait. <break time="200ms"/><prosody rate="fast">Now go.</prosody></speak>',
    "Café, naïve, 😀 and “quotes” — dashes… and\nnew lines.",
    "My sister bought a green bicycle for her birthday last summer, and she has not stopped riding it.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechCase:
    """A request whose audio is the same each time, in the profile `exact`."""

    text: str
    voice: str | None
    seed: int
    codec: str = "pcm"
    transport: str = "openai"

    @property
    def reference(self) -> SpeechCase:
        """Return the request whose answer this one's is compared with: the plain one for the same audio.

        The WebSocket's is its own: text that still arrives is divided into other segments.
        """
        transport = "websocket" if self.transport == "websocket" else "openai"
        return SpeechCase(
            text=self.text, voice=self.voice, seed=self.seed, codec=self.codec, transport=transport
        )


def speech_cases(voices: list[str], count: int) -> list[SpeechCase]:
    """Return cases with every codec, transport and voice, as far as their number allows."""
    named: list[str | None] = [*voices, None]
    if len(voices) > 1:
        named += [f"{voices[0]}(2)+{voices[1]}"]
    found = []
    codecs, chosen = itertools.cycle(CODECS), itertools.cycle(named)
    for number in range(count):
        # Every second request is OpenAI's, in each of its codecs in turn; the others stream PCM.
        plain = number % 2 == 0
        transport = "openai" if plain else TRANSPORTS[1 + number // 2 % (len(TRANSPORTS) - 1)]
        found.append(
            SpeechCase(
                text=SHORT_TEXTS[number % len(SHORT_TEXTS)],
                # ElevenLabs' requests always name a voice.
                voice=next(chosen) or (voices[0] if transport == "elevenlabs" else None),
                seed=number,
                codec=next(codecs) if plain else "pcm",
                transport=transport,
            )
        )
    return found


def book_case(voice: str | None, chars: int, seed: int) -> SpeechCase:
    """Return a case of many sentences, in paragraphs."""
    sentences = (files("nightingale_lab.bench") / "texts" / "wren_500.txt").read_text("utf-8").splitlines()
    first = 37 * seed % len(sentences)
    text = ""
    for number, sentence in enumerate(itertools.islice(itertools.cycle(sentences), first, None)):
        if len(text) + len(sentence) + 2 > chars:
            return SpeechCase(text=text, voice=voice, seed=seed, codec="pcm")
        text += sentence + ("\n\n" if number % 7 == 6 else " ")
    raise AssertionError("the sentences repeat for ever")


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """An HTTP request that must be refused with a status from 400 to 499."""

    path: str = "/v1/audio/speech"
    method: str = "POST"
    body: bytes = b""
    content_type: str = "application/json"


def _speech(**fields: object) -> Malformed:
    return Malformed(body=json.dumps({"input": "Hello.", **fields}).encode())


_MULTIPART = "multipart/form-data; boundary=x"
MALFORMED = (
    Malformed(body=b"{"),
    Malformed(body=b"\xff\xfe\x00"),
    Malformed(body=b"[" * 50_000),
    Malformed(body=b'{"input": "Hello.", "seed": 1e999}'),
    Malformed(body=b"{}"),
    Malformed(body=b"input=Hello", content_type="application/x-www-form-urlencoded"),
    Malformed(method="DELETE"),
    Malformed(path="/v1/audio/nothing"),
    Malformed(path="/v1/audio/voices", body=b"--x\r\n", content_type=_MULTIPART),
    Malformed(
        path="/v1/audio/voices",
        body=b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\nbroken\r\n'
        b'--x\r\nContent-Disposition: form-data; name="audio"; filename="a.wav"\r\n\r\nRIFF\xff\xff\xff\xffWAVE'
        b"\r\n--x--\r\n",
        content_type=_MULTIPART,
    ),
    Malformed(path="/v1/text-to-speech/heart?output_format=pcm_1", body=b'{"text": "Hello."}'),
    Malformed(path="/v1/text-to-speech/..%2f..%2fetc", body=b'{"text": "Hello."}'),
    _speech(input=""),
    _speech(input="x" * 100_000),
    _speech(input=7),
    _speech(voice="none-such"),
    _speech(voice={"id": []}),
    _speech(model="gpt-9"),
    _speech(response_format="exe"),
    _speech(sample_rate=0),
    _speech(sample_rate=10**12),
    _speech(speed=-1),
    _speech(temperature="hot"),
    _speech(seed="x"),
    _speech(language=["en"]),
    _speech(lexicon={"": 3}),
    _speech(input="<speak>"),
    _speech(input="<speak><!DOCTYPE a [<!ENTITY b 'c'>]>&b;</speak>"),
)
MALFORMED_MESSAGES = (
    "{",
    "[]",
    '{"type": "none-such"}',
    '{"type": "input_text.append", "text": 7}',
    '{"type": "session.update", "session": {"voice": "none-such"}}',
    '{"type": "session.update", "session": {"sample_rate": -1}}',
    b"\x00\xff",
)
"""Messages of the WebSocket; each is answered with an error, and the socket stays open."""
