"""What wren costs on this machine's CPU, stage by stage, and what a listener notices of it.

    python benchmarks/wren.py [--model FOLDER] [--threads N] [--rounds N]

- stages: processor time of T3's prompt and steps, and of the flow and the vocoder for each block of a stream
  of five seconds; the least of some rounds.
- request: real-time factor and time to first audio of whole requests, by the clock, medians of some rounds.
- cold: `nightingale say` in a new process, clock and processor time.

Times by the clock mean something on an idle machine only. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import torch

from nightingale.engine import TTS
from nightingale.backends.torch.mel_stream import MelStream
from nightingale.engine.load import load_model
from nightingale.engine.model import Model, default_model
from nightingale.backends.torch.runner import PlainRunner, Turn
from nightingale.backends.torch.sample_stream import SampleStream
from nightingale.models.chatterbox.s3gen.config import SPEECH_CODES

TEXT = "The quick brown fox jumps over the lazy dog, and then it sleeps under the old oak tree until noon."
BLOCKS = (11, 16, 32, 66)
"""Tokens of each push: what the engine gathers for five seconds, the first with three to look ahead to."""
TOKENS = sum(BLOCKS)


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    stages = measure_stages(args.model, args.rounds)
    spoken = measure_requests(args.model, args.rounds)
    cold = measure_cold(args.model, args.threads)
    for title, rows in (("stages", stages), ("request", spoken), ("cold", cold)):
        print(f"\n| {title} | |\n|---|---|")
        for name, value in rows.items():
            print(f"| {name} | {value:.3g} |")
    machine = {"machine": platform.machine(), "threads": args.threads, "load": os.getloadavg()[0]}
    print(json.dumps({**machine, **stages, **spoken, **cold}, separators=(",", ":")))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=default_model(), help="a name or a folder")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def cpu_ms(act: Callable[[], object]) -> float:
    start = time.process_time()
    act()
    return 1000 * (time.process_time() - start)


@torch.inference_mode()
def measure_stages(name: str, rounds: int) -> dict[str, float]:
    model = load_model(name, device="cpu", dtype="auto", offline=True, options={})
    taken: dict[str, list[float]] = {}
    for _ in range(rounds + 1):
        for stage, ms in one_round(model).items():
            taken.setdefault(stage, []).append(ms)
    best = {stage: min(times[1:]) for stage, times in taken.items()}
    speech_ms = 1000 * TOKENS / 25
    best["t3, per second of speech"] = best["t3 step, ms"] * TOKENS / speech_ms
    for stage in ("flow", "vocoder"):
        blocks = [ms for name, ms in best.items() if name.startswith(f"{stage}, block")]
        best[f"{stage}, per second of speech"] = sum(blocks) / speech_ms
    return best


def one_round(model: Model) -> dict[str, float]:
    t3, voice = model.networks.t3, model.default_voice
    assert voice is not None
    text = t3.config.frame_text(model.frontend.encode(TEXT))
    prompt = t3.prompt(
        torch.tensor([text]),
        speaker=voice.speaker[None],
        prompt_ids=voice.prompt_ids[None, : t3.config.prompt_tokens],
        exaggeration=torch.zeros(1),
        guided=False,
    )
    runner = PlainRunner(t3, slots=1, rows_per_slot=1, capacity=prompt.shape[1] + TOKENS, batched=False)
    ids = torch.randint(SPEECH_CODES, (TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()
    taken = {"t3 prompt, ms": cpu_ms(lambda: runner.begin(0, prompt))}

    def steps() -> None:
        for position, token in enumerate(ids):
            runner.step([Turn(slot=0, token=token, position=position + 1)])

    taken["t3 step, ms"] = cpu_ms(steps) / TOKENS
    mels = MelStream(model.networks.flow, voice, seed=1, streaming=True)
    samples = SampleStream(model.networks.hift, seed=1, streaming=True)
    for end, block in zip(accumulate(BLOCKS), BLOCKS, strict=True):
        mel: list[torch.Tensor] = []
        final, part = end == TOKENS, ids[end - block : end]
        taken[f"flow, block of {block}, ms"] = cpu_ms(lambda: mel.append(mels.push(part, final=final)))  # noqa: B023
        taken[f"vocoder, block of {block}, ms"] = cpu_ms(lambda: samples.push(mel[0], final=final))  # noqa: B023
    return taken


def measure_requests(name: str, rounds: int) -> dict[str, float]:
    with TTS(name, device="cpu", offline=True) as tts:
        tts.say(TEXT, seed=0)
        costs = [tts.say(TEXT, seed=seed).metrics for seed in range(rounds)]
    return {
        "real-time factor": statistics.median(cost.rtf for cost in costs),
        "time to first audio, ms": statistics.median(cost.ttfa_ms for cost in costs),
    }


def measure_cold(name: str, threads: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "nightingale", "say", TEXT, "-m", name, "--seed", "1", "--quiet"]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run([*command, "-o", str(Path(folder) / "cold.wav")], check=True, env=environment)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"say, cold process, s": wall, "say, cold process, s of processor time": used}


if __name__ == "__main__":
    main()
