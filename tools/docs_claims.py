"""The claims of docs/performance.md: every published number with its command, machine and commit."""

from __future__ import annotations

from docs_numbers import Number, marked, number

from nightingale_lab.bench.report.markdown import machine
from nightingale_lab.bench.store import commit_label

BENCH, WREN = "nightingale bench -m wren --table", "python -m nightingale_lab.bench.wren --parts"
DEFAULT, VOICES, QUESTIONS = f"{WREN} default", f"{WREN} voices --per-voice 10", f"{WREN} questions"
HARD, VARIED = f"{WREN} hard --teachers", f"{WREN} varied --teachers"
PEERS, JUDGED = "nightingale bench --peer all", "python -m nightingale_lab.bench peer_quality"
GPU, CPU = (
    "python -m nightingale_lab.bench gpu_engine --upstream DIR",
    "python -m nightingale_lab.bench cpu --upstream DIR",
)
ENGINE, SERVER = (
    "python -m nightingale_lab.bench engine",
    "python -m nightingale_lab.bench server --model wren --profile",
)
EXACT, BALANCED = f"{SERVER} exact", f"{SERVER} balanced"

CLAIMS: dict[str, list[tuple[str, str, str, str]]] = {
    "Wren: speed": [
        ("real-time factor, one listener", "wren.rtf", "", BENCH),
        ("time to first audio, warm", "wren.first-audio-ms", " ms", BENCH),
        ('`nightingale say "Good morning."`, cold process to finished file', "wren.say-s", " s", BENCH),
        ('the same over `python -c "import torch"`', "wren.say-over-import-torch", "", BENCH),
        ("peak memory", "wren.memory-mb", " MB", BENCH),
        ("size of weights and voices", "wren.size-mb", " MB", ""),
        ("underruns of one listener, ten sentences", "wren.underruns-1", "", BENCH),
        ("underruns of two listeners at once", "wren.underruns-2", "", BENCH),
        ("underruns of four listeners at once", "wren.underruns-4", "", BENCH),
        ("first audio of the second of two listeners", "wren.first-audio-2-of-2-ms", " ms", BENCH),
        ("first audio of the fourth of four listeners", "wren.first-audio-4-of-4-ms", " ms", BENCH),
    ],
    "Wren: quality": [
        ("word error rate, 200 unseen sentences, Whisper tiny.en", "wren.wer-tiny", " %", DEFAULT),
        ("the same, Whisper base", "wren.wer-base", " %", DEFAULT),
        ("DNSMOS overall, default voice", "wren.dnsmos", "", DEFAULT),
        ("DNSMOS overall, worst voice", "wren.worst-voice-dnsmos", "", VOICES),
        (
            "speaker cosine to the teacher's default voice",
            "wren.speaker-cosine",
            "",
            f"{WREN} voices --per-voice 4 --references DIR",
        ),
        ("word error rate over all ten voices, tiny.en", "wren.voices-wer-tiny", " %", VOICES),
        ("the same, base", "wren.voices-wer-base", " %", VOICES),
        ("hard prompts with an error, base", "wren.hard-errors", " %", HARD),
        ("the same over its teacher's share", "wren.hard-over-teacher", "", HARD),
        ("words skipped or repeated in 10,000, 500 texts", "wren.skipped-per-10000", "", VARIED),
        ("the same, its teacher", "wren.teacher-skipped-per-10000", "", VARIED),
        ("final pitch of questions over statements, median of 40", "wren.question-rise", " semitones", QUESTIONS),
        ("questions that rise by more than 1.5 semitones", "wren.questions-rising", " %", QUESTIONS),
        ("runaways, cut-offs and silences in 500 texts of 1 to 60 words", "wren.defects", "", VARIED),
    ],
    "Other engines, on the same machine": [
        ("hibari: real-time factor, short text", "hibari.rtf", "", PEERS),
        ("hibari: first audio", "hibari.first-audio-ms", " ms", PEERS),
        ("hibari: word error rate, tiny.en", "hibari.wer-tiny", " %", JUDGED),
        ("hibari: word error rate, base", "hibari.wer-base", " %", JUDGED),
        ("hibari: DNSMOS", "hibari.dnsmos", "", JUDGED),
        ("Kokoro-82M int8: real-time factor, short text", "kokoro.rtf", "", PEERS),
        ("Kokoro-82M int8: first audio", "kokoro.first-audio-ms", " ms", PEERS),
        ("Kokoro-82M int8: word error rate, tiny.en", "kokoro.wer-tiny", " %", JUDGED),
        ("Kokoro-82M int8: word error rate, base", "kokoro.wer-base", " %", JUDGED),
        ("Kokoro-82M int8: DNSMOS", "kokoro.dnsmos", "", JUDGED),
        ("Piper: real-time factor, short text", "piper.rtf", "", PEERS),
        ("Piper: first audio", "piper.first-audio-ms", " ms", PEERS),
        ("Piper: word error rate, tiny.en", "piper.wer-tiny", " %", JUDGED),
        ("Piper: word error rate, base", "piper.wer-base", " %", JUDGED),
        ("Piper: DNSMOS", "piper.dnsmos", "", JUDGED),
    ],
    "Chatterbox on a GPU, random weights of full size, 102 tokens": [
        ("multilingual, default profile: a sentence", "gpu.sentence-ms", " ms", GPU),
        ("multilingual, upstream: a sentence", "gpu.upstream-sentence-ms", " ms", GPU),
        ("multilingual, default profile: first audio of three sentences", "gpu.default-first-audio-ms", " ms", GPU),
        ("multilingual, by block: first audio, median", "gpu.block-first-audio-ms", " ms", GPU),
        ("multilingual, by block: a sentence", "gpu.block-sentence-ms", " ms", GPU),
        ("Turbo, by block: a sentence", "gpu.turbo-sentence-ms", " ms", GPU),
        ("Turbo, upstream: a sentence", "gpu.turbo-upstream-sentence-ms", " ms", GPU),
        ("Turbo, by block: first audio, median", "gpu.turbo-first-audio-ms", " ms", GPU),
        ("64 listeners, own voices, by segment: audio seconds per second", "gpu.64-segment-audio", "", GPU),
        ("64 listeners, own voices, by segment: first audio p95", "gpu.64-segment-first-audio-p95-ms", " ms", GPU),
        ("64 listeners, own voices, by block: audio seconds per second", "gpu.64-block-audio", "", GPU),
        ("64 listeners, own voices, by block: first audio p95", "gpu.64-block-first-audio-p95-ms", " ms", GPU),
        ("64 listeners, own voices, by block: listeners with underruns", "gpu.64-block-stalled", "", GPU),
        ("multilingual: most listeners with first audio p95 under 500 ms", "gpu.most-listeners", "", GPU),
        ("Turbo: most listeners with first audio p95 under 500 ms", "gpu.turbo-most-listeners", "", GPU),
    ],
    "Chatterbox on a CPU, random weights of full size, 102 tokens": [
        ("multilingual, ten guided steps: real-time factor", "cpu.multilingual-rtf", "", CPU),
        ("multilingual with Turbo's two steps: real-time factor", "cpu.multilingual-meanflow-rtf", "", CPU),
        ("Nano: real-time factor", "cpu.nano-rtf", "", CPU),
        ("multilingual: speed over upstream's", "cpu.multilingual-speed-up", "", CPU),
        ("Nano: speed over upstream's", "cpu.nano-speed-up", "", CPU),
        ("multilingual: peak memory", "cpu.multilingual-memory-gib", " GiB", CPU),
    ],
    "Engine and server": [
        ("time of the engine over the bare model calls", "engine.overhead", "", ENGINE),
        ("ten requests at once over ten in a row", "engine.ten-together", "", ENGINE),
        ("the same with the fastest backend", "engine.ten-together-fastest", "", ENGINE),
        ("HTTP over the engine, to the first audio, pcm", "server.overhead-pcm-ms", " ms", EXACT),
        ("the same, mp3", "server.overhead-mp3-ms", " ms", EXACT),
        ("the same, opus", "server.overhead-opus-ms", " ms", EXACT),
        ("32 clients, `exact`: answers that differ from the request alone", "server.exact-wrong", "", EXACT),
        ("32 clients, `balanced`: audio seconds per second", "server.balanced-audio", "", BALANCED),
        ("288 clients: served", "server.overload-served", "", EXACT),
        ("288 clients: refused with 429", "server.overload-rejected", "", EXACT),
    ],
}  # fmt: skip


def where(found: Number) -> tuple[str, str]:
    """Return the machine, and the commit and date of a number; nothing for a size of a file."""
    if found.line is None:
        return "", ""
    commit = f"{commit_label(found.line)}, " if found.line["commit"] else ""
    note = f", {found.line['note']}" if "note" in found.line else ""
    return f"{machine(found.line)}{note}", f"{commit}{found.line['date'][:10]}"


def claims() -> str:
    lines = [
        "Every page that states one of these numbers takes it from `benchmarks/results`, as this list does, and",
        "`make check` fails if one differs. A plus after a commit means that files had been changed. Two claims are on",
        "other pages: every stage equals upstream's within tolerance, and the greedy tokens are the same",
        "([parity](compat.md#parity-with-upstream)); and what long runs, overload, faults and fuzzing showed",
        "([reliability](reliability.md)). The numbers of pocket-tts in the README are its own:",
        "`benchmarks/published.json` has the source.",
    ]
    for title, rows in CLAIMS.items():
        lines += [
            "",
            f"### {title}",
            "",
            "| what | value | command | machine | commit |",
            "|---|---:|---|---|---|",
        ]
        for what, name, unit, command in rows:
            shown = f"`{command}`" if command else "`nightingale models list`"
            place, commit = where(number(name))
            lines.append(f"| {what} | {marked(name)}{unit} | {shown} | {place} | {commit} |")
    return "\n".join(lines)
