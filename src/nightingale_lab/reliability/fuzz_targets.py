"""The readers of untrusted input that are fuzzed, each with a few valid inputs."""

from __future__ import annotations

import io
import json
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from safetensors.numpy import save as to_safetensors
from starlette.testclient import TestClient

from nightingale.backends.profiles import PROFILES
from nightingale.book.reading import read_book
from nightingale.engine.lexicon_files import open_lexicon
from nightingale.engine.load import load_model
from nightingale.engine.noise_model import noise_voice
from nightingale.engine.tts import TTS
from nightingale.errors import NightingaleError
from nightingale.models.checkpoint import read_tensors
from nightingale.server.app import create_app
from nightingale.server.service.speech_service import SpeechService
from nightingale.server.settings import ServerSettings
from nightingale.text.ssml import parse_ssml
from nightingale.voices.voice import Voice, file_contents
from nightingale_lab.reliability.fault_injection import clip
from nightingale_lab.reliability.mutation import LineTracer, Mutator, mutate, mutate_safetensors, mutate_zip
from nightingale_lab.reliability.soak_cases import MALFORMED, MALFORMED_MESSAGES, SHORT_TEXTS


@dataclass(frozen=True, slots=True, kw_only=True)
class FuzzTarget:
    """A reader. Whatever it is given, it returns or raises one of Nightingale's errors."""

    name: str
    read: Callable[[bytes], None]
    seeds: list[bytes]
    mutator: Mutator = field(default=mutate)


def ignore_our_errors(read: Callable[[bytes], object]) -> Callable[[bytes], None]:
    def act(data: bytes) -> None:
        with suppress(NightingaleError):
            read(data)

    return act


def from_file(folder: Path, suffix: str, read: Callable[[Path], object]) -> Callable[[bytes], None]:
    """Return a reader of bytes for a reader of files."""
    path = folder / f"input{suffix}"

    def act(data: bytes) -> None:
        path.write_bytes(data)
        read(path)

    return ignore_our_errors(act)


def short_engine() -> TTS:
    model = load_model("noise", offline=True, options={}).with_defaults(max_new_tokens=4)
    return TTS.over(model, PROFILES["balanced"])


@contextmanager
def targets(tracer: LineTracer) -> Iterator[list[FuzzTarget]]:
    """Open all targets: files, text, and a server that runs in threads of this process, which are traced."""
    with tempfile.TemporaryDirectory(prefix="nightingale-fuzz-") as name, short_engine() as tts:
        folder = Path(name)
        settings = ServerSettings.model_validate({"max_text_chars": 2000})
        app = create_app(settings, SpeechService(settings, tts))
        threading.settrace(tracer.trace_calls)
        with TestClient(app, base_url="http://127.0.0.1:8880") as client:
            threading.settrace(None)
            yield [*file_targets(folder, tts), *text_targets(folder, tts), *server_targets(client)]


def file_targets(folder: Path, tts: TTS) -> list[FuzzTarget]:
    voice = noise_voice()
    weights = to_safetensors({"a": np.zeros((2, 3), np.float32), "b": np.arange(4)}, {"format": "pt"})
    return [
        FuzzTarget(
            name="audio uploads",
            read=ignore_our_errors(lambda data: tts.learn(data, name="x", max_seconds=30.0)),
            seeds=audio_seeds(),
        ),
        FuzzTarget(
            name="voice files",
            read=from_file(folder, ".safetensors", Voice.load),
            seeds=[file_contents(voice)],
            mutator=mutate_safetensors,
        ),
        FuzzTarget(
            name="checkpoints: safetensors",
            read=from_file(folder, ".safetensors", read_tensors),
            seeds=[weights],
            mutator=mutate_safetensors,
        ),
        FuzzTarget(
            name="checkpoints: conds.pt",
            read=from_file(folder, ".pt", lambda path: Voice.from_conds_pt(path, family="wren")),
            seeds=[conds_seed(voice)],
            mutator=mutate_zip,
        ),
        FuzzTarget(
            name="EPUBs", read=from_file(folder, ".epub", read_book), seeds=[epub_seed()], mutator=mutate_zip
        ),
        FuzzTarget(
            name="books: HTML and Markdown",
            read=from_file(folder, ".html", read_book),
            seeds=[b"<html><h1>One</h1><p>Text &amp; more.</p><h2>Two</h2><ul><li>a</li></ul></html>"],
        ),
    ]


def text_targets(folder: Path, tts: TTS) -> list[FuzzTarget]:
    def speak(data: bytes) -> None:
        session = tts.open(data.decode("utf-8", "surrogateescape")[:500], seed=1)
        session.cancel()

    ssml = (
        b'<speak version="1.0">One <break time="200ms"/><prosody rate="fast">two</prosody> '
        b'<say-as interpret-as="date" format="mdy">1/2/2003</say-as><sub alias="x">y</sub></speak>'
    )
    lexicon = b'[words]\nNASA = "nassa"\n[[entry]]\nword = "read"\nsay = "red"\nbefore = "was"\n'
    return [
        FuzzTarget(name="text", read=ignore_our_errors(speak), seeds=[text.encode() for text in SHORT_TEXTS]),
        FuzzTarget(
            name="SSML",
            read=ignore_our_errors(lambda data: parse_ssml(data.decode("utf-8", "replace"), "en")),
            seeds=[ssml],
        ),
        FuzzTarget(name="lexicon files", read=from_file(folder, ".toml", open_lexicon), seeds=[lexicon]),
    ]


def server_targets(client: TestClient) -> list[FuzzTarget]:
    """HTTP bodies must be answered with a status below 500, messages with a message."""

    def post(data: bytes) -> None:
        answer = client.post("/v1/audio/speech", content=data, headers={"content-type": "application/json"})
        if answer.status_code >= 500:
            raise AssertionError(f"{answer.status_code}: {answer.text[:200]}")

    def upload(data: bytes) -> None:
        headers = {"content-type": "multipart/form-data; boundary=x"}
        answer = client.post("/v1/audio/voices", content=data, headers=headers)
        if answer.status_code >= 500:
            raise AssertionError(f"{answer.status_code}: {answer.text[:200]}")

    def send(path: str) -> Callable[[bytes], None]:
        def act(data: bytes) -> None:
            with client.websocket_connect(f"ws://127.0.0.1:8880{path}") as socket:
                for message in data.split(b"\x1e")[:8]:
                    socket.send_text(message.decode("utf-8", "replace"))
                socket.send_text('{"type": "ping"}')
                if "audio/speech" in path:
                    while json.loads(socket.receive().get("text") or "{}").get("type") != "pong":
                        pass

        return act

    spoken = [
        json.dumps({"input": text, "seed": 1, "response_format": "pcm"}).encode() for text in SHORT_TEXTS
    ]
    messages = [m if isinstance(m, bytes) else m.encode() for m in MALFORMED_MESSAGES]
    turn = b'{"type":"session.update","session":{"seed":1}}\x1e{"type":"input_text.append","text":"Hi."}\x1e'
    turn += b'{"type":"input_text.end"}\x1e{"type":"response.cancel"}'
    context = b'{"text":" ","context_id":"a"}\x1e{"text":"Hi. ","context_id":"a","flush":true}\x1e'
    context += b'{"close_context":true}'
    form = next(bad.body for bad in MALFORMED if bad.body.endswith(b"--x--\r\n"))
    upload_of_a_clip = form.replace(b"RIFF\xff\xff\xff\xffWAVE", audio_seeds()[0])
    return [
        FuzzTarget(name="HTTP bodies", read=post, seeds=spoken),
        FuzzTarget(name="HTTP uploads", read=upload, seeds=[form, upload_of_a_clip]),
        FuzzTarget(
            name="WebSocket messages",
            read=send("/v1/audio/speech/stream"),
            seeds=[*messages, turn],
        ),
        FuzzTarget(
            name="ElevenLabs messages",
            read=send("/v1/text-to-speech/noise/multi-stream-input?output_format=pcm_24000"),
            seeds=[context],
        ),
    ]


AUDIO_FORMATS = (
    ("WAV", "PCM_16"), ("WAV", "FLOAT"), ("WAV", "IMA_ADPCM"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"),
    ("MP3", "MPEG_LAYER_III"), ("AIFF", "PCM_24"), ("RF64", "PCM_U8"),
)  # fmt: skip


def audio_seeds() -> list[bytes]:
    samples, found = clip()[: 24_000 * 6], []
    for form, subtype in AUDIO_FORMATS:
        file = io.BytesIO()
        soundfile.write(file, samples[::6], 4000 if form != "MP3" else 8000, format=form, subtype=subtype)
        found.append(file.getvalue())
    return found


def conds_seed(voice: Voice) -> bytes:
    """Return a file as `torch.save` writes upstream's conds.pt."""
    import torch

    arrays = {
        name: torch.from_numpy(np.array(getattr(voice, name))) for name in voice.__slots__ if name in CONDS
    }
    file = io.BytesIO()
    torch.save(
        {
            "t3": {
                "speaker_emb": arrays["speaker"][None],
                "cond_prompt_speech_tokens": arrays["prompt_ids"][None],
            },
            "gen": {
                "prompt_token": arrays["flow_prompt_ids"][None],
                "prompt_feat": arrays["flow_prompt_mel"][None],
                "embedding": arrays["flow_speaker"][None],
            },
        },
        file,
    )
    return file.getvalue()


CONDS = ("speaker", "prompt_ids", "flow_prompt_ids", "flow_prompt_mel", "flow_speaker")


def epub_seed() -> bytes:
    """Return a book of two chapters."""
    container = (
        '<?xml version="1.0"?><container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OPS/b.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
    )
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata '
        'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>T</dc:title></metadata><manifest>'
        '<item id="n" href="n.xhtml" media-type="application/xhtml+xml" properties="nav"/>'
        '<item id="a" href="a.xhtml" media-type="application/xhtml+xml"/>'
        '<item id="b" href="b.xhtml" media-type="application/xhtml+xml"/></manifest>'
        '<spine><itemref idref="a"/><itemref idref="b"/></spine></package>'
    )
    page = '<html xmlns="http://www.w3.org/1999/xhtml"><body><h1 id="x">{0}</h1><p>Text of {0}.</p></body></html>'
    nav = (
        '<html xmlns:epub="http://www.idpf.org/2007/ops"><body><nav epub:type="toc"><ol><li><a href="a.xhtml#x">One</a>'
        '</li><li><a href="b.xhtml">Two</a></li></ol></nav></body></html>'
    )
    members = {"mimetype": "application/epub+zip", "META-INF/container.xml": container, "OPS/b.opf": package,
               "OPS/n.xhtml": nav, "OPS/a.xhtml": page.format("One"), "OPS/b.xhtml": page.format("Two")}  # fmt: skip
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return file.getvalue()
