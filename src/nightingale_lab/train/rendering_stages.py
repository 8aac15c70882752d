"""Stages of the command line that train what renders speech tokens: flow, vocoder, voice encoder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nightingale_lab.train.stages import TOKENS, batch_options, cudnn_benchmark, print_progress


def run_human(args: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.asset_files import Assets
    from nightingale_lab.train.corpus import HUMAN, HUMAN_COPIES
    from nightingale_lab.train.human_clips import FILE, read_clips
    from nightingale_lab.train.human_corpus import OTHER_RATES, human_corpus
    from nightingale_lab.train.tokenizer import load_tokenizer, tokenize_corpus

    assets, device = Assets(args.assets), torch.device(args.device)
    clips, teacher = read_clips(assets.file(FILE)), assets.teacher_voice_encoder().to(device)
    net = load_tokenizer(args.out / "tokenizer.safetensors", PRESETS["wren"].speech_tokenizer, device)
    for name, rates in ((HUMAN, (1.0,)), (HUMAN_COPIES, OTHER_RATES)):
        corpus = human_corpus(clips, teacher, device=device, rates=rates)
        folder = args.corpus / name
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / TOKENS, tokenize_corpus(net, corpus, device=device).cpu().numpy())
        corpus.save(folder)  # last, since it marks the folder as ready
        print_progress({"part": name, "clips": corpus.bank.clips, "hours": corpus.bank.seconds / 3600})


def run_tokenizer_people(args: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.asset_files import Assets
    from nightingale_lab.train.corpus import HUMAN, HUMAN_COPIES, Corpus, ready_parts
    from nightingale_lab.train.human_texts import FILE, read_phonemes
    from nightingale_lab.train.tokenizer import tokenize_corpus
    from nightingale_lab.train.tokenizer_people import People, train_tokenizer_on_people

    device, folders = torch.device(args.device), [args.corpus / name for name in (HUMAN, HUMAN_COPIES)]
    phonemes, corpora = read_phonemes(Assets(args.assets).file(FILE)), [Corpus.load(each) for each in folders]
    people = Corpus.join(corpora)
    with cudnn_benchmark(args.device):
        net, phones = train_tokenizer_on_people(
            Corpus.join([Corpus.load(part) for part in ready_parts(args.corpus)[: args.parts]]),
            People(corpus=people, phonemes=phonemes * (people.bank.clips // len(phonemes))),
            args.start_from,
            args.out,
            PRESETS["wren"].speech_tokenizer,
            budget_s=args.budget_s,
            device=device,
            eager=args.eager,
            seed=args.seed,
            on_progress=print_progress,
            **batch_options(args),
        )
    # The flow learns to render people from the new codes, and their phonemes are known from now on.
    sizes = [len(corpus.phones) for corpus in corpora]
    for folder, corpus, own in zip(folders, corpora, np.split(phones, np.cumsum(sizes)[:-1]), strict=True):
        np.save(folder / TOKENS, tokenize_corpus(net, corpus, device=device).cpu().numpy())
        np.save(folder / "phones.npy", own)


def run_voice_encoder(args: argparse.Namespace) -> None:
    import torch
    from safetensors.torch import save_file

    from nightingale_lab.train.asset_files import Assets
    from nightingale_lab.train.corpus import Corpus, parts_with_people
    from nightingale_lab.train.human_clips import read_clips
    from nightingale_lab.train.human_corpus import OTHER_RATES, human_corpus
    from nightingale_lab.train.speakers import TEACHER_SUFFIX, mean_speakers
    from nightingale_lab.train.voice_encoder import speaker_vectors, train_voice_encoder

    device, teacher_net = torch.device(args.device), Assets(args.assets).teacher_voice_encoder()
    if args.clips:
        clips = [clip for path in args.clips for clip in read_clips(path)]
        corpus = human_corpus(clips, teacher_net.to(device), device=device, rates=(1.0, *OTHER_RATES))
    else:
        parts = parts_with_people(args.corpus, args.parts, copies=True)
        corpus = Corpus.join([Corpus.load(part) for part in parts])
    net = train_voice_encoder(
        corpus,
        teacher_net,
        args.out,
        budget_s=args.budget_s,
        plan_s=args.plan_s,
        device=device,
        on_progress=print_progress,
        **batch_options(args),
    )
    own, teacher = speaker_vectors(net, corpus, device=device), torch.from_numpy(corpus.speaker)
    cosine, out = (own.float() * teacher.float()).sum(1), torch.from_numpy(corpus.held_out)
    people = out & torch.from_numpy(corpus.band_limited)
    print_progress(
        {"clips": len(own), "cosine": float(cosine.mean()), "validation_cosine": float(cosine[out].mean())}
        | ({"people_cosine": float(cosine[people].mean())} if people.any() else {})
    )
    if args.keep_voices or args.clips:
        return
    names, voice = json.loads((args.corpus / "names.json").read_text()), torch.from_numpy(corpus.voice)
    targets = {name + TEACHER_SUFFIX: v for name, v in mean_speakers(teacher, voice, names).items()}
    partial = args.out / "voices.partial"
    save_file(mean_speakers(own, voice, names) | targets, partial)
    partial.replace(args.out / "voices.safetensors")


def run_flow(args: argparse.Namespace) -> None:
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.asset_files import Assets
    from nightingale_lab.train.flow import train_flow

    parts = parts_with_tokens(args.corpus, args.parts)
    corpus, tokens = corpus_with_tokens(parts)
    with cudnn_benchmark(args.device):
        train_flow(
            corpus,
            tokens,
            args.out,
            PRESETS["wren"].flow,
            match_s=args.match_s,
            refine_s=args.refine_s,
            teacher=Assets(args.assets).teacher_voice_encoder(),
            budget_s=args.budget_s,
            device=torch.device(args.device),
            eager=args.eager,
            start_from=args.start_from,
            converted=other_tokens(parts),
            on_progress=print_progress,
            **batch_options(args, "peak_lr", "adversarial", "pitch_from"),
        )


def run_mels(args: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.corpus import parts_with_people
    from nightingale_lab.train.flow import render_mels
    from nightingale_lab.train.vocoder_data import MELS

    parts = parts_with_people(args.corpus, args.parts)
    for part in parts:
        corpus, tokens = corpus_with_tokens([part])
        mels = render_mels(
            args.start_from or args.out / "flow.refine.safetensors",
            corpus,
            tokens,
            PRESETS["wren"].flow,
            device=torch.device(args.device),
            seed=args.seed,
        )
        np.save(part / "mels.partial.npy", mels)
        print_progress({"part": part.name, "frames": len(mels)})
    for part in parts:  # all at once: the vocoder reads them together
        (part / "mels.partial.npy").replace(part / MELS)


def run_converted(args: argparse.Namespace) -> None:
    import numpy as np
    import torch

    from nightingale.models.chatterbox.presets import PRESETS
    from nightingale_lab.train.converted import CONVERTED, converted_tokens, other_speakers
    from nightingale_lab.train.corpus import parts_with_people
    from nightingale_lab.train.flow import render_mels
    from nightingale_lab.train.tokenizer import load_tokenizer
    from nightingale_lab.train.tokenizer_people import PEOPLE_TOKENIZER
    from nightingale_lab.train.vocoder import load_vocoder

    device, preset = torch.device(args.device), PRESETS["wren"]
    weights = args.out / PEOPLE_TOKENIZER
    net = load_tokenizer(
        weights if weights.is_file() else args.out / "tokenizer.safetensors", preset.speech_tokenizer, device
    )
    vocoder = load_vocoder(args.vocoder, device)
    for number, part in enumerate(parts_with_people(args.corpus, args.parts)):
        corpus, tokens = corpus_with_tokens([part])
        seed = args.seed + number
        mels = render_mels(
            args.start_from,
            corpus,
            tokens,
            preset.flow,
            device=device,
            seed=seed,
            speakers=other_speakers(corpus.speaker, seed=seed),
        )
        again = converted_tokens(net, vocoder, mels, corpus, device=device, seed=seed).cpu()
        np.save(part / "converted.partial.npy", again.numpy())
        (part / "converted.partial.npy").replace(part / CONVERTED)
        print_progress({"part": part.name, "same": float((again == tokens).float().mean())})


def parts_with_tokens(folder: Path, max_parts: int | None = None) -> list[Path]:
    """Return up to `max_parts` parts and the recordings of people, as far as they have tokens."""
    from nightingale_lab.train.corpus import parts_with_people

    whole = (folder / TOKENS).is_file()
    parts = [folder] if whole else parts_with_people(folder, max_parts, copies=True)
    return [part for part in parts if (part / TOKENS).is_file()]


def corpus_with_tokens(parts: Sequence[Path]) -> tuple[Any, Any]:
    """Return a corpus of some parts, and the tokens beside them."""
    import numpy as np
    import torch

    from nightingale_lab.train.corpus import Corpus

    tokens = np.concatenate([np.load(part / TOKENS) for part in parts])
    return Corpus.join([Corpus.load(part) for part in parts]), torch.from_numpy(tokens)


def other_tokens(parts: Sequence[Path]) -> Any:
    """Return the tokens of the parts in other voices, or None; parts that have none keep their own."""
    import numpy as np
    import torch

    from nightingale_lab.train.converted import CONVERTED

    if not any((part / CONVERTED).is_file() for part in parts):
        return None
    names = [part / (CONVERTED if (part / CONVERTED).is_file() else TOKENS) for part in parts]
    return torch.from_numpy(np.concatenate([np.load(name) for name in names]))
