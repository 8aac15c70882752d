"""`nightingale book`: a book in, an audiobook with chapters out; it goes on where it was stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

from nightingale.cli import options
from nightingale.cli.arguments import given_options
from nightingale.cli.console import format_clock, note, parse_options, progress_bar, progress_line
from nightingale.cli.option_defaults import takes_defaults
from nightingale.cli.options import argument, option
from nightingale.cli.say import open_engine
from nightingale.cli.say_output import parse_bit_rate
from nightingale.errors import ConfigError, OutputError, raising_memory_full

if TYPE_CHECKING:
    from nightingale.book.document import Book
    from nightingale.book.making import BookOutput, BookProgress
    from nightingale.book.narration import Narrator
    from nightingale.book.passages import Passage
    from nightingale.engine import TTS

Text = str | None
MAX_PROBLEMS = 5
"""The number of ACX's problems that are printed; --json has all."""
MAX_SHOWN_CHARS = 30


@takes_defaults
def book(
    file: Annotated[Path, argument("BOOK", "An .epub, .txt, .md or .html file.")],
    out: Annotated[
        Path | None,
        option(
            "The .m4b file; with --chapters, a folder.", "-o", "--out", default="named like the book, here"
        ),
    ] = None,
    chapters: Annotated[
        Text, option("Write each chapter as a file: mp3, opus, flac or m4a.", metavar="FORMAT")
    ] = None,
    show_list: Annotated[bool, option("List the chapters, and speak nothing.", "--list")] = False,
    voice: options.VoiceName = None,
    dialogue_voice: Annotated[
        Text, option("The voice of quoted speech: a name.", autocompletion=options.complete_voice)
    ] = None,
    model: options.Model = None,
    language: Annotated[
        Text, option("Language code, for multilingual models.", "-l", "--language", default="the book's")
    ] = None,
    seed: Annotated[int | None, option("The same seed gives the same audio.", default="0")] = None,
    title: Annotated[Text, option("The title.", default="the book's")] = None,
    author: Annotated[Text, option("The author.", default="the book's")] = None,
    cover: Annotated[Path | None, option("A JPEG or PNG image.", default="the book's")] = None,
    srt: Annotated[bool, option("Also write captions, a cue for each sentence.", "--srt")] = False,
    read_along: Annotated[
        bool, option("Also write an EPUB that highlights each sentence as it is spoken.", "--read-along")
    ] = False,
    bitrate: Annotated[Text, option("Bits per second, such as 96k.", default="64k, 32k for opus")] = None,
    sample_rate: Annotated[
        int | None, option("Sample rate; ACX asks for 44100.", default="24000, its own")
    ] = None,
    no_level: Annotated[bool, option("Keep the model's level instead of ACX's.", "--no-level")] = False,
    report: Annotated[
        Path | None, option("The report of every sentence.", default="report.jsonl in the cache")
    ] = None,
    cache: Annotated[
        Path | None,
        option("The folder of spoken sentences, for going on after a stop.", default="OUT.sentences"),
    ] = None,
    remove_cache: Annotated[bool, option("Remove the cache at the end.", "--remove-cache")] = False,
    cluster: Annotated[
        int | None, option("Speak by so many workers on a Ray cluster (docs/books.md).", metavar="WORKERS")
    ] = None,
    gpus_per_worker: Annotated[float, option("GPUs that each worker of --cluster reserves.")] = 0.0,
    profile: options.Profile = None,
    device: options.Device = "auto",
    offline: options.Offline = False,
    yes: options.Yes = False,
    choices: options.Choices = None,
    config: options.Config = None,
    lexicon: options.LexiconFile = None,
    strict: Annotated[
        bool, option("Let a sentence fail of which a part would not be spoken.", "--strict")
    ] = False,
    watermark: options.Watermark = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    **request: Any,
) -> None:
    """Speak BOOK into an audiobook with chapters. The same command again goes on where it stopped."""
    asked = SimpleNamespace(**locals(), stream=None)
    from nightingale.book.making import plan_passages

    model_options = parse_options(choices)
    if lexicon is not None:
        from nightingale.engine.lexicon_files import open_lexicon

        open_lexicon(lexicon)
    if cluster is not None and cluster < 1:
        raise ConfigError("too few workers", got=str(cluster), allowed="1 or more", param="cluster")
    if gpus_per_worker < 0:
        got = str(gpus_per_worker)
        raise ConfigError("too few GPUs", got=got, allowed="0 or more", param="gpus_per_worker")
    if cache is not None and cache.exists() and not cache.is_dir():
        raise OutputError("the folder of sentences cannot be made", got=f"{cache} (a file)")
    output = _choose_output(asked)
    found = _read(asked)
    if show_list:
        _list_chapters(found, as_json=as_json)
        return
    voices = _voices(found, asked)
    language_code = language or _language_of(found)
    plans = plan_passages(found, language=language_code, dialogue_voice=dialogue_voice)
    if report is not None and not report.parent.is_dir():
        raise OutputError("the report cannot be written", got=f"{report} (no such folder)")
    own = {"voice": voice, "language": language, "seed": seed, "strict": strict, "lexicon": lexicon}
    controls = {**own, **given_options(request)}
    tts = open_engine(asked, controls, model_options)
    if watermark:  # marked sentences are others in the cache
        model_options["watermark"] = True
    try:
        with raising_memory_full():
            _make(asked, found, plans, output, voices, tts, controls, model_options)
    except KeyboardInterrupt:
        note("Start the same command again to go on.")
        raise


def _choose_output(asked: SimpleNamespace) -> BookOutput:
    """Return the files to write; refuse what cannot work before a model is loaded."""
    from nightingale.book.book_files import BOOK_SUFFIX, CHAPTER_FORMATS, check_book_file
    from nightingale.book.making import BookOutput
    from nightingale.clocks import CLOCKS

    form = asked.chapters.lower().lstrip(".") if asked.chapters is not None else None
    if form is not None and form not in CHAPTER_FORMATS:
        allowed = ", ".join(CHAPTER_FORMATS)
        raise ConfigError("no such format of chapters", got=asked.chapters, allowed=allowed, param="chapters")
    path = asked.out or Path(asked.file.stem if form else f"{asked.file.stem}{BOOK_SUFFIX}")
    if form is None and path.suffix.lower() != BOOK_SUFFIX:
        fix = "For files of other formats, one for each chapter: --chapters mp3 -o FOLDER"
        raise ConfigError("a book is one .m4b file", got=str(path), allowed=BOOK_SUFFIX, fix=fix, param="out")
    if form is not None and path.exists() and not path.is_dir():
        raise OutputError("with --chapters the output is a folder", got=f"{path} (a file)")
    if path.parent != Path() and not path.parent.is_dir():
        raise OutputError("the book cannot be written", got=f"{path} (no such folder)")
    if form is None and path.is_dir():
        raise OutputError("the book cannot be written", got=f"{path} (a folder)")
    rate_hz = asked.sample_rate or (48_000 if form == "opus" else CLOCKS.sample_rate_hz)
    bit_rate = parse_bit_rate(asked.bitrate)
    check_book_file(f".{form}" if form else BOOK_SUFFIX, rate_hz, bit_rate)
    return BookOutput(
        path=path,
        chapter_format=form,
        rate_hz=rate_hz,
        bit_rate=bit_rate,
        srt=asked.srt,
        read_along=asked.read_along,
        level=not asked.no_level,
    )


def _read(asked: SimpleNamespace) -> Book:
    """Read the book, with the title, author and cover that the command names instead of its own."""
    from nightingale.book.reading import read_book, read_cover

    found = read_book(asked.file.expanduser())
    own = {name: getattr(asked, name) for name in ("title", "author") if getattr(asked, name) is not None}
    if asked.cover is not None:
        own["cover"] = read_cover(asked.cover.expanduser())
    for sentence in found.notes:
        note(f"note: {sentence}")
    return replace(found, **own)


def _list_chapters(found: Book, *, as_json: bool) -> None:
    lengths = [sum(len(one.text) for one in chapter.paragraphs) for chapter in found.chapters]
    if as_json:
        rows = zip(found.chapters, lengths, strict=True)
        listed = [{"title": chapter.title, "characters": length} for chapter, length in rows]
        print(json.dumps({"title": found.title, "author": found.author, "chapters": listed}))
        return
    note(f"{found.title}, {found.author or 'no author'}: {len(lengths)} chapters, {sum(lengths)} characters")
    for number, (chapter, length) in enumerate(zip(found.chapters, lengths, strict=True), start=1):
        print(f"{number:4}  {length:8}  {chapter.title}")


def _voices(found: Book, asked: SimpleNamespace) -> list[str]:
    """Return the voices besides the narrator's, as far as can be checked before the model is loaded."""
    from nightingale.book.passages import voices_in
    from nightingale.engine.requests.early_checks import check_call

    names = [*voices_in(found), *([asked.dialogue_voice] if asked.dialogue_voice else [])]
    for name in names:
        check_call(asked.model, profile=asked.profile, device="auto", voice=name, language=None)
    return names


def _make(
    asked: SimpleNamespace,
    found: Book,
    plans: list[list[Passage]],
    output: BookOutput,
    voices: list[str],
    tts: TTS,
    controls: dict[str, Any],
    model_options: dict[str, Any],
) -> None:
    from nightingale.book.book_report import count_passages, summary_of, warnings_of, write_report
    from nightingale.book.making import narrate, write_book
    from nightingale.book.narration import Narrator
    from nightingale.book.sentence_cache import REPORT, SentenceCache

    cache = SentenceCache(asked.cache or output.path.with_name(f"{output.path.name}.sentences"))
    controls["language"] = _language(asked.language, found, tts)
    settings = {"profile": asked.profile or "default", "options": model_options}
    narrator = Narrator(tts, cache, settings=settings, **controls)
    for name in voices:
        narrator.voice(name)
    if asked.cluster is not None:
        _speak_in_cluster(
            asked, plans, narrator, cache.folder, {"settings": settings, **controls}, model_options
        )
    with progress_line("speaking …", quiet=asked.quiet) as show:
        spoken = narrate(found, plans, narrator, on_progress=_progress(show))
    with progress_line("writing …", quiet=asked.quiet):
        done = write_book(found, spoken, narrator, output)
    report = asked.report or cache.folder / REPORT
    write_report(report, spoken)
    counts, warnings = count_passages(spoken), warnings_of(spoken)
    for warning in warnings[:MAX_PROBLEMS]:
        note(f"warning: {warning}")
    if len(warnings) > MAX_PROBLEMS:
        note(f"warning: {len(warnings) - MAX_PROBLEMS} other sentences were not spoken whole: see the report")
    if asked.remove_cache:
        cache.remove()
    if not asked.quiet:
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        chapters = sum(1 for one in spoken if one.passages)
        note(f"{output.path}: {chapters} chapters, {format_clock(done.seconds)}; sentences: {told}")
        levels = done.levels
        note(
            f"RMS {levels.rms_db:.1f} dB, peak {levels.peak_db:.1f} dB, noise floor {levels.noise_db:.1f} dB, "
            f"after a gain of {done.gain_db:+.1f} dB; ACX: {'passes' if not done.problems else 'does not pass'}"
        )
        for problem in done.problems[:MAX_PROBLEMS]:
            note(f"  {problem}")
        if not asked.remove_cache:
            note(f"The sentences and the report are in {cache.folder}.")
    if asked.as_json:
        print(json.dumps(summary_of(found, spoken, done)))
    if counts["failed"]:
        raise SystemExit(1)


def _speak_in_cluster(
    asked: SimpleNamespace,
    plans: list[list[Passage]],
    narrator: Narrator,
    cache: Path,
    narration: dict[str, Any],
    model_options: dict[str, Any],
) -> None:
    """Let workers speak what the cache lacks."""
    from nightingale.ray.book_workers import speak_passages

    missing = {narrator.key(one): one for plan in plans for one in plan if not narrator.is_spoken(one)}
    chars, done = sum(len(one.text) for one in missing.values()), 0
    engine = {
        "model": asked.model,
        "device": asked.device,
        "profile": asked.profile,
        "offline": asked.offline,
    }
    with progress_line("starting workers …", quiet=asked.quiet) as show:

        def on_spoken(count: int) -> None:
            nonlocal done
            done += count
            show(progress_bar(done / max(1, chars)))

        speak_passages(
            list(missing.values()),
            workers=asked.cluster,
            gpus_per_worker=asked.gpus_per_worker,
            engine={**engine, **model_options},
            cache=cache,
            narrator=narration,
            on_spoken=on_spoken,
        )


def _language(asked: str | None, found: Book, tts: TTS) -> str | None:
    """Return the language to speak: the one asked for, or for a multilingual model the book's."""
    own = _language_of(found)
    if asked is not None or own is None:
        return asked
    if own not in tts.languages:
        note(f"note: the book's language is {own!r}; {tts.name} speaks {', '.join(tts.languages)}")
        return None
    return own if len(tts.languages) > 1 else None


def _language_of(found: Book) -> str | None:
    """Return the code of the book's language, such as en for en-GB; None if it does not say."""
    return found.language.lower().replace("_", "-").partition("-")[0] or None


def _progress(show: Callable[[str], None]) -> Callable[[BookProgress], None]:
    """Return a function that shows the progress, the speed, and the time that is left."""
    started_s = time.monotonic()

    def tell(progress: BookProgress) -> None:
        line = progress_bar(progress.done_chars / max(1, progress.chars))
        took_s = time.monotonic() - started_s
        if progress.new_chars and took_s > 0:
            left_s = (progress.chars - progress.done_chars) * took_s / progress.new_chars
            line += f" {format_clock(left_s)} left, {progress.audio_seconds / took_s:.1f}x"
        show(f"{line} {progress.chapter[:MAX_SHOWN_CHARS]}")

    return tell
