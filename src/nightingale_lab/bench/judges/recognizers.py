"""Speech recognizers: Whisper in two sizes, and Moonshine, which shares neither code nor training with it.

All decode greedily or with a fixed beam at temperature 0 and do not see the expected text, so that the same
clip always gets the same transcript.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nightingale_lab.bench.judges.mel import Array

RATE_HZ = 16_000


class Whisper:
    """Whisper by CTranslate2. Its window is always 30 s, so short clips cost as much as long ones."""

    def __init__(self, folder: Path, *, threads: int, beam: int = 5) -> None:
        from faster_whisper import WhisperModel

        self.beam = beam
        self.model = WhisperModel(
            str(folder), device="cpu", compute_type="int8_float32", cpu_threads=threads, local_files_only=True
        )

    def transcribe(self, samples: Array, language: str) -> str:
        segments, _ = self.model.transcribe(
            samples,
            language=language,
            beam_size=self.beam,
            temperature=0.0,
            condition_on_previous_text=False,
            without_timestamps=False,
            vad_filter=False,
        )
        return " ".join(segment.text.strip() for segment in segments)


class Moonshine:
    """Moonshine tiny, English only. Its cost is proportional to the length of the clip."""

    BOS, EOS = 1, 2
    TOKENS_PER_SECOND = 6.5
    LAYERS, HEADS, HEAD_WIDTH = 6, 8, 36

    def __init__(self, folder: Path, *, threads: int) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self.encoder, self.decoder = (
            ort.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
            for name in ("encoder_model.ort", "decoder_model_merged.ort")
        )
        self.vocabulary = read_vocabulary((folder / "tokenizer.bin").read_bytes())

    def transcribe(self, samples: Array, language: str) -> str:
        if language != "en":
            return ""
        mask = np.ones((1, len(samples)), dtype=np.int64)
        (hidden,) = self.encoder.run(None, {"input_values": samples[None], "attention_mask": mask})
        past = {
            f"past_key_values.{layer}.{side}.{part}": np.zeros(
                (1, self.HEADS, 0, self.HEAD_WIDTH), np.float32
            )
            for layer in range(self.LAYERS)
            for side in ("decoder", "encoder")
            for part in ("key", "value")
        }
        names = [output.name for output in self.decoder.get_outputs()][1:]
        ids = [self.BOS]
        limit = max(8, int(len(samples) / RATE_HZ * self.TOKENS_PER_SECOND) + 1)
        while len(ids) <= limit:
            feeds: dict[str, Any] = {
                "input_ids": np.array([ids[-1:]], dtype=np.int64),
                "encoder_hidden_states": hidden,
                "encoder_attention_mask": np.ones((1, hidden.shape[1]), dtype=np.int64),
                "use_cache_branch": np.array([len(ids) > 1]),
            }
            logits, *present = self.decoder.run(None, feeds | past)
            ids.append(int(logits[0, -1].argmax()))
            if ids[-1] == self.EOS:
                break
            for name, value in zip(names, present, strict=True):
                # The encoder's part never changes; the cached branch does not return it.
                if len(ids) == 2 or ".decoder." in name:
                    past[name.replace("present", "past_key_values")] = value
        text = b"".join(self.vocabulary[token] for token in ids[1:] if token > self.EOS)
        return text.decode("utf-8", errors="replace").replace("▁", " ").strip()


def read_vocabulary(data: bytes) -> list[bytes]:
    """Read length-prefixed byte strings. A first length byte of 128 or more is followed by a second."""
    entries: list[bytes] = []
    at = 0
    while at < len(data):
        size = data[at]
        at += 1
        if size == 0:
            entries.append(b"")
            continue
        if size >= 128:
            size = data[at] * 128 + size - 128
            at += 1
        entries.append(data[at : at + size])
        at += size
    return entries
