"""Load an ONNX export and run it with ONNX Runtime, greedily: the reference of how its graphs are used.

model = ExportedModel.open(folder)            # refuses a damaged or incomplete export
tokens = model.generate(model.encode("Hello."), "heart")
samples = model.render(tokens, "heart")       # or the joined blocks of model.stream(tokens, "heart")
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from nightingale.errors import CheckpointError, VoiceNotFound
from nightingale.text.tokenizer import EnglishTokenizer
from nightingale.types import Samples

CARD: Final = "export.json"
FORMAT: Final = "nightingale-onnx"
FORMAT_VERSION: Final = 1
GRAPHS: Final = (
    "embed_tokens",
    "speech_encoder",
    "language_model",
    "conditional_decoder",
    "flow_block",
    "vocoder_block",
)
FRAMES_PER_TOKEN: Final = 2
Arrays = dict[str, NDArray[Any]]


class ExportedModel:
    """An export whose files are complete. Sessions are created when they are first used."""

    def __init__(self, folder: Path, card: Mapping[str, Any], *, threads: int) -> None:
        self.folder, self.card, self._threads = folder, card, threads
        self._sessions: dict[str, onnxruntime.InferenceSession] = {}
        self._tokenizer = EnglishTokenizer(folder / card["tokenizer"])
        self._voices: dict[str, Any] = json.loads((folder / card["voices"]).read_text(encoding="utf-8"))

    @classmethod
    def open(cls, folder: Path, *, threads: int = 1) -> ExportedModel:
        """Check the files of an export against its card.

        Raises:
            CheckpointError: A file is missing or damaged, or the export is of another version.
        """
        return cls(folder, read_card(folder), threads=threads)

    def encode(self, text: str) -> list[int]:
        """Return the text ids of a sentence whose numbers and symbols are written as words."""
        return self._tokenizer.encode(text)

    def voice(self, name: str) -> Arrays:
        """Return what the speech encoder returns for a clip, of a voice in the export.

        Raises:
            VoiceNotFound: There is none of that name.
        """
        if name not in self._voices:
            raise VoiceNotFound(
                "the export has no such voice", got=repr(name), allowed=", ".join(self._voices)
            )
        outputs = self.card["graphs"]["speech_encoder"]["outputs"]
        return {
            key: np.array(value["data"], outputs[key]["dtype"]).reshape(value["shape"])
            for key, value in self._voices[name].items()
        }

    def generate(self, text_ids: list[int], voice: str) -> list[int]:
        """Return the most probable speech tokens, one after the other, up to the stop token or the limit."""
        special, limits = self.card["special_ids"], self.card["limits"]
        prompt = [special["start_text"], *text_ids, special["stop_text"], special["start_speech"]]
        model = self.card["graphs"]["language_model"]
        embeds = np.concatenate([self.voice(voice)["audio_features"], self._embed(prompt)], axis=1)
        past = {
            name: np.zeros([0 if isinstance(size, str) else size for size in value["shape"]], np.float32)
            for name, value in model["inputs"].items()
            if name.startswith("past_key_values")
        }
        tokens: list[int] = []
        total = 0
        budget = min(limits["max_new_tokens"], int(limits["tokens_per_text_id"] * len(text_ids)))
        while len(tokens) < budget:
            total += embeds.shape[1]
            mask = np.ones((1, total), np.int64)
            found = self.run("language_model", {"inputs_embeds": embeds, "attention_mask": mask, **past})
            token = int(found.pop("logits")[0, -1].argmax())
            if token == special["stop_speech"]:
                break
            tokens.append(token)
            past = {name.replace("present", "past_key_values"): value for name, value in found.items()}
            embeds = self._embed([token])
        return tokens

    def render(self, tokens: list[int], voice: str) -> Samples:
        """Return the samples of a whole utterance."""
        arrays = self.voice(voice)
        ids = np.concatenate([arrays["audio_tokens"], np.array([tokens], np.int64)], axis=1)
        inputs = {name: arrays[name] for name in ("speaker_embeddings", "speaker_features")}
        samples: Samples = self.run("conditional_decoder", {"speech_tokens": ids, **inputs})["waveform"][0]
        return samples

    def stream(self, tokens: list[int], voice: str) -> Iterator[Samples]:
        """Yield the samples of an utterance block by block, as the engine cuts it.

        A voice with audio_tokens begins with a block of those, whose mel is not rendered.
        """
        blocks, arrays = self.card["blocks"], self.voice(voice)
        lookahead, features = blocks["lookahead_tokens"], arrays["speaker_features"]
        speaker = {"speaker_embeddings": arrays["speaker_embeddings"]}
        prompt = arrays["audio_tokens"][0].tolist()
        flow, vocoder = self._start("flow_block"), self._start("vocoder_block")
        # Tokens that no block has rendered yet, and the frames of those that belong to the prompt.
        ids, hidden = prompt, FRAMES_PER_TOKEN * len(prompt)
        for size, final in [(0, False)] * (len(prompt) > lookahead) + cut_blocks(len(tokens), blocks):
            ids, tokens = ids + tokens[:size], tokens[size:]
            count = len(ids) - (0 if final else lookahead)
            if count <= 0:
                continue
            frames = FRAMES_PER_TOKEN * count
            inputs: Arrays = {
                "speech_tokens": np.array([ids], np.int64),
                "final": np.array([final], np.int64),
                "speaker_features": features[:, :frames],
                **speaker,
            }
            mel = self._run_block("flow_block", inputs, flow)["mel"]
            ids, features = ids[count:], features[:, frames:]
            skipped = min(hidden, frames)
            hidden -= skipped
            if skipped < frames:
                inputs = {"mel": mel[:, skipped:], "final": np.array([final], np.int64)}
                yield self._run_block("vocoder_block", inputs, vocoder)["waveform"][0]

    def run(self, graph: str, inputs: Arrays) -> Arrays:
        """Run a graph once."""
        if graph not in self._sessions:
            self._sessions[graph] = self._open_session(graph)
        session = self._sessions[graph]
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs), strict=True))

    def _embed(self, ids: list[int]) -> NDArray[np.float32]:
        inputs: Arrays = {
            "input_ids": np.array([ids], np.int64),
            "position_ids": np.arange(len(ids), dtype=np.int64)[None],
            "exaggeration": np.zeros(1, np.float32),
        }
        embeds: NDArray[np.float32] = self.run("embed_tokens", inputs)["inputs_embeds"]
        return embeds

    def _start(self, graph: str) -> Arrays:
        """Return the states of a stream that begins."""
        return {
            state["name"]: np.full(state["shape"], state["fill"], state["dtype"])
            for state in self.card["graphs"][graph]["states"]
        }

    def _run_block(self, graph: str, inputs: Arrays, states: Arrays) -> Arrays:
        """Run a block and replace the states by those after it."""
        found = self.run(graph, {**inputs, **states})
        for name in states:
            states[name] = found.pop(f"new.{name}")
        return found

    def _open_session(self, graph: str) -> onnxruntime.InferenceSession:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
        options.log_severity_level = 3
        options.enable_mem_reuse = False  # planning it takes longer than all the rest of loading
        options.enable_mem_pattern = False  # shapes differ from block to block
        path = self.folder / self.card["graphs"][graph]["file"]
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the package's errors have no common class of their own
            raise _damaged(f"{path}: {error}") from error
        for kind, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            listed = self.card["graphs"][graph][kind].keys()
            if listed != (found := {value.name for value in values}):
                raise _damaged(f"{path} with other {kind} than its card: {sorted(found ^ listed)}")
        return session


def cut_blocks(tokens: int, blocks: Mapping[str, int]) -> list[tuple[int, bool]]:
    """Return the sizes of an utterance's blocks, and which is the last: the first ones are small."""
    cuts, size = [], blocks["first_tokens"]
    waits = blocks["lookahead_tokens"]
    while tokens >= size + waits:
        cuts.append((size + waits, False))
        tokens, waits = tokens - size - waits, 0
        size = blocks["second_tokens"] if len(cuts) == 1 else min(2 * size, blocks["largest_tokens"])
    return [*cuts, (tokens, True)]


def read_card(folder: Path) -> dict[str, Any]:
    """Read the card of an export and check its files.

    Raises:
        CheckpointError: The card or a file is missing or damaged, or the export is of another version.
    """
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
        if (card["format"], card["version"]) != (FORMAT, FORMAT_VERSION):
            raise ValueError(f"format {card['format']!r}, version {card['version']!r}")
        files = {name: (entry["bytes"], entry["sha256"]) for name, entry in card["files"].items()}
        if absent := [name for name in GRAPHS if card["graphs"][name]["file"] not in files]:
            raise ValueError(f"no checksum of {', '.join(absent)}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(f"{folder / CARD}: {type(error).__name__}: {error}") from error
    for name, (size, digest) in files.items():
        path = folder / name
        if not path.is_file():
            raise _damaged(f"no {name} in {folder}")
        if path.stat().st_size != size:
            raise _damaged(f"{path} with {path.stat().st_size} bytes, not {size}")
        if hash_of(path) != digest:
            raise _damaged(f"{path} with another SHA-256 than its card")
    return card


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(got: str) -> CheckpointError:
    return CheckpointError(
        "the export is damaged or incomplete",
        got=got,
        allowed="a folder that `nightingale export --format onnx` wrote",
        fix="Copy it again, or export the model again.",
    )
