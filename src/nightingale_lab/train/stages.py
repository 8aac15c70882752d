"""The stages of the command line, with progress lines on stderr."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

TOKENS, BANK = "tokens.npy", "bank.safetensors"
COMPACT_BANK = "compact_bank.safetensors"
LINES_PER_HOUR = 1150
"""More than the teacher speaks (1,100), so that lines never run out; assigning speakers to all takes seconds."""
RECIPE_OPTIONS = ("dropout", "smoothing", "corruption", "weight_decay", "guidance", "peak_lr")


def print_progress(record: dict[str, Any]) -> None:
    """Write a progress line to stderr."""
    from nightingale_lab.train.loop import progress_line

    sys.stderr.write(progress_line(record) + "\n")
    sys.stderr.flush()


def make_teacher(assets: Any, device: str) -> Any:
    from nightingale_lab.train.teachers.kokoro import KokoroTeacher

    return KokoroTeacher(assets.kokoro_parts, assets.file("voices.npz"), device)


def run_data(args: argparse.Namespace) -> None:
    from dataclasses import replace

    import numpy as np
    import torch

    from nightingale_lab.train.asset_files import Assets
    from nightingale_lab.train.corpus import READY
    from nightingale_lab.train.speakers import BLENDED_SPEAKERS, SPEAKER_SHARES
    from nightingale_lab.train.synthesize import SpeakerMix, assign_speakers, order_lines, synthesize
    from nightingale_lab.train.vocoder_data import DONE
    from nightingale_lab.train.voice_encoder import speaker_vectors

    assets, device = Assets(args.assets), torch.device(args.device)
    before = len(list(args.out.glob(f"part*/{READY}")))
    lines, limit = assets.lines, args.limit or int(args.hours * LINES_PER_HOUR)
    order = order_lines(lines.texts, limit, seed=args.seed)
    # A second call takes other lines: it starts where those of the first one end.
    order = np.roll(order, -before * limit - args.after)[:limit]
    teacher = make_teacher(assets, args.device)
    requests = assign_speakers(
        order.tolist(),
        [lines.texts[i] for i in order],
        [{"american": lines.american[i], "british": lines.british[i]} for i in order],
        SpeakerMix(
            shares=SPEAKER_SHARES,
            pool=sorted(n for n in teacher.voices if n[0] in "ab"),
            blends=BLENDED_SPEAKERS,
        ),
        seed=args.seed,
    )
    encoder = assets.teacher_voice_encoder().to(device)
    (args.out / "names.json").write_text(json.dumps(list(SPEAKER_SHARES)), encoding="utf-8")
    parts = synthesize(
        teacher, requests, assets.encode, budget_s=args.budget_s, first_hours=args.first_hours,
        part_hours=args.part_hours, max_hours=args.hours, seconds_per_batch=args.batch_seconds,
        seed=args.seed, on_progress=print_progress,
    )  # fmt: skip
    for number, corpus in enumerate(parts, before):
        vectors = speaker_vectors(encoder, corpus, device=device)
        replace(corpus, speaker=vectors.numpy()).save(args.out / f"part{number:02d}")
        print_progress({"part": number, "clips": corpus.bank.clips, "hours": corpus.bank.seconds / 3600})
    (args.out / DONE).touch()


def run_single_speaker(args: argparse.Namespace) -> None:
    import torch
    from safetensors.torch import load_file

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.asset_files import Assets
    from nightingale_lab.train.single_speaker import VOICE, lines_from_the_end, synthesize_tokens
    from nightingale_lab.train.speakers import TEACHER_SUFFIX
    from nightingale_lab.train.teachers.hibari import HibariTeacher
    from nightingale_lab.train.tokenizer import load_tokenizer

    lines = Assets(args.assets).lines
    synthesize_tokens(
        HibariTeacher(args.hibari),
        load_tokenizer(args.tokenizer, PRESETS["wren"].speech_tokenizer, torch.device("cpu")),
        lines.american,
        lines_from_the_end(len(lines), seed=args.seed, shard=args.shard, shards=args.shards),
        load_file(args.voices)[VOICE + TEACHER_SUFFIX].half().numpy(),
        args.out / f"single_speaker{args.shard}.safetensors",
        budget_s=args.budget_s,
        seed=args.seed + args.shard,
        on_progress=print_progress,
    )


def run_boundaries(args: argparse.Namespace) -> None:
    import json
    from importlib.resources import files

    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale.models.checkpoint import read_tensors
    from nightingale.models.compact import unpack
    from nightingale_lab.train.asset_files import Assets
    from nightingale_lab.train.boundaries import BoundaryTraining, speak_in_processes, train_boundaries

    model = args.model or Path(str(files("nightingale.wren")))
    voices = json.loads((model / "card.json").read_text(encoding="utf-8"))["voices"]
    speakers = [read_tensors(model / "voices" / f"{voice}.safetensors")["speaker"] for voice in voices]
    spoken = speak_in_processes(
        Assets(args.assets),
        args.hibari,
        model,
        processes=args.processes,
        budget_s=args.speak_s,
        seed=args.seed,
    )
    print_progress({"lines": len(spoken), "with_boundary": sum(line.edited.any() for line in spoken)})
    training = BoundaryTraining(
        unpack(read_tensors(model / "t3.safetensors")), PRESETS["wren"].t3, spoken, torch.stack(speakers),
        peak_lr=args.peak_lr, seed=args.seed,
    )  # fmt: skip
    train_boundaries(training, args.out, budget_s=args.budget_s, on_progress=print_progress)


def run_tokenizer(args: argparse.Namespace) -> None:
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.corpus import Corpus
    from nightingale_lab.train.tokenizer import train_tokenizer

    corpus = Corpus.load(args.corpus)
    with cudnn_benchmark(args.device):
        train_tokenizer(
            corpus,
            args.out,
            PRESETS["wren"].speech_tokenizer,
            budget_s=args.budget_s,
            plan_s=args.plan_s,
            device=torch.device(args.device),
            eager=args.eager,
            seed=args.seed,
            start_from=args.start_from,
            on_progress=print_progress,
            **batch_options(args),
        )


def run_tokens(args: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.corpus import Corpus, ready_parts
    from nightingale_lab.train.token_bank import TokenBank
    from nightingale_lab.train.tokenizer import code_entropy_bits, load_tokenizer, tokenize_corpus
    from nightingale_lab.train.vocoder_data import DONE

    device, started_s = torch.device(args.device), time.monotonic()
    net = load_tokenizer(args.out / "tokenizer.safetensors", PRESETS["wren"].speech_tokenizer, device)
    banks: dict[Path, TokenBank] = {}
    while True:
        whole = (args.corpus / DONE).exists() or time.monotonic() - started_s > args.budget_s
        for part in ready_parts(args.corpus):
            if part not in banks:
                corpus = Corpus.load(part)
                tokens = tokenize_corpus(net, corpus, device=device)
                banks[part] = TokenBank.of(corpus, tokens.cpu().numpy())
                # The bank of the parts so far is written first: a stage may start when a part has its tokens.
                TokenBank.join([banks[part] for part in sorted(banks)]).save(args.out / BANK)
                np.save(part / "tokens.partial.npy", tokens.cpu().numpy())
                (part / "tokens.partial.npy").replace(part / TOKENS)
                print_progress({"tokens": len(tokens), "bits": code_entropy_bits(tokens)})
        if whole:
            break
        time.sleep(0.2)


def run_t3(args: argparse.Namespace) -> None:
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.asset_files import Assets
    from nightingale_lab.train.t3 import T3Recipe, train_t3
    from nightingale_lab.train.token_bank import TokenBank

    assets = Assets(args.assets)
    bank = _banks(args, assets)
    if args.compact_bank:
        bank.save_compact(args.out / COMPACT_BANK, lines_digest=assets.lines_digest)
    # Every clip is used with its usual text ids and once more with BPE-dropout.
    bank = TokenBank.join([bank, bank.reencoded(assets.encode_with_dropout)])
    recipe = {name: getattr(args, name) for name in RECIPE_OPTIONS}
    train_t3(
        bank,
        args.out,
        PRESETS["wren"].t3,
        marks=assets.marks(),
        budget_s=args.budget_s,
        plan_s=args.plan_s,
        device=torch.device(args.device),
        eager=args.eager,
        seed=args.seed,
        recipe=T3Recipe(**{name: value for name, value in recipe.items() if value is not None}),
        start_from=args.start_from,
        on_progress=print_progress,
    )


def run_export(args: argparse.Namespace) -> None:
    from dataclasses import replace

    from nightingale import wren
    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.export import export

    tuned = {name: getattr(args, name) for name in ("temperature", "min_p", "repetition_penalty")}
    report = export(
        args.source,
        args.out or wren.folder(),
        PRESETS["wren"],
        default_voice=args.default_voice,
        sampling=replace(
            wren.SAMPLING, **{name: value for name, value in tuned.items() if value is not None}
        ),
        references=sorted(args.references.glob("*.wav")) if args.references else (),
    )
    sys.stderr.write(f"{report}\n")


def run_replace(args: argparse.Namespace) -> None:
    from nightingale import wren
    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.export import replace_networks

    replace_networks(args.model or wren.folder(), args.weights, args.out, PRESETS["wren"], share=args.share)


def run_curves(args: argparse.Namespace) -> None:
    from nightingale_lab.train.loop import draw_curves, read_log

    for log in sorted(args.out.glob("*.jsonl")):
        numbers = {k for row in read_log(log) for k, v in row.items() if isinstance(v, float)}
        draw_curves(log, log.with_suffix(".png"), sorted(numbers - {"seconds", "elapsed_s"}))


def _banks(args: argparse.Namespace, assets: Any) -> Any:
    """Return the token banks of `--bank`, or the one in `--out`, joined."""
    from nightingale_lab.train.token_bank import TokenBank

    paths = args.bank or [args.out / BANK]
    digest = assets.lines_digest
    return TokenBank.join([TokenBank.load(path, assets.encode, lines_digest=digest) for path in paths])


def cudnn_benchmark(device: str) -> Any:
    """Enable cuDNN's benchmark mode, for stages of fixed shapes; with varying shapes it is slow."""
    import torch

    return torch.backends.cudnn.flags(enabled=True, benchmark=device != "cpu", allow_tf32=True)


def batch_options(args: argparse.Namespace, *others: str) -> dict[str, Any]:
    """Return the batch size, and other options, if they are given."""
    return {name: value for name in ("batch", *others) if (value := getattr(args, name)) is not None}
