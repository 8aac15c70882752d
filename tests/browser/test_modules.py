"""Unit tests of the page's JavaScript modules, run in the browser."""

from __future__ import annotations

import ast
import json
import shlex
import struct
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.browser

TRICKY_TEXT = 'It\'s "quoted", $HOME `ls` \\n\nsecond line — ünïcode 🐦 \u2028 end'


def call(page: Page, module: str, script: str, argument: Any = None) -> Any:
    """script: the body of a function of `m` (the module) and `x` (the argument)."""
    return page.evaluate(
        f"""async (x) => {{
            const m = await import(new URL("page/js/{module}.js", document.baseURI));
            {script}
        }}""",
        argument,
    )


def test_queue_plays_at_once_and_refills_after_an_underrun(page: Page) -> None:
    played, last = call(
        page,
        "audio/sample_queue",
        """
        let last = null;
        const queue = new m.SampleQueue(1000, (report) => (last = report));
        const pull = (count) => { const out = new Float32Array(count); queue.fill(out); return [...out]; };
        const ones = (count) => queue.handle({ type: "push", samples: new Float32Array(count).fill(1) });
        queue.handle({ type: "start", epoch: 3 });
        const played = [pull(4)];
        ones(6); played.push(pull(4)); played.push(pull(4));        // the second has an underrun
        ones(100); played.push(pull(4));                          // not enough to resume
        ones(300); played.push(pull(4));                          // now it resumes
        queue.handle({ type: "end" }); pull(500);
        return [played, last];
        """,
    )
    assert played == [[0] * 4, [1] * 4, [1, 1, 0, 0], [0] * 4, [1] * 4]
    assert last == {
        "epoch": 3,
        "playedSamples": 406,
        "bufferedSamples": 0,
        "underruns": 1,
        "waiting": False,
        "done": True,
    }


def test_queue_drops_old_samples_when_a_new_utterance_starts(page: Page) -> None:
    played = call(
        page,
        "audio/sample_queue",
        """
        const queue = new m.SampleQueue(1000, () => {});
        queue.handle({ type: "push", samples: new Float32Array(9).fill(1) });
        queue.handle({ type: "start", epoch: 1 });
        queue.handle({ type: "push", samples: new Float32Array(2).fill(0.5) });
        const out = new Float32Array(3); queue.fill(out); return [...out];
        """,
    )
    assert played == [0.5, 0.5, 0]


def test_queue_reports_only_while_it_has_samples(page: Page) -> None:
    reports = call(
        page,
        "audio/sample_queue",
        """
        let count = 0;
        const queue = new m.SampleQueue(1000, () => (count += 1));
        const out = new Float32Array(100);
        const after = (pulls) => { for (let i = 0; i < pulls; i += 1) queue.fill(out); return count; };
        const counts = [after(5)];
        queue.handle({ type: "push", samples: new Float32Array(200) });
        queue.handle({ type: "end" });
        counts.push(after(9));
        queue.handle({ type: "start", epoch: 1 });
        counts.push(after(5));
        return counts;
        """,
    )
    assert reports == [0, 2, 2]


def test_samples_may_be_split_anywhere(page: Page) -> None:
    samples = [0, 1, -1, 32767, -32767, 12345, -2]
    raw = list(struct.pack("<7h", *samples))
    for cut in range(len(raw) + 1):
        got = call(
            page,
            "audio/pcm",
            "const r = new m.PcmReader(); return x.flatMap((part) => [...r.floats(new Uint8Array(part))]);",
            [raw[:cut], raw[cut:]],
        )
        assert [round(value * 32767) for value in got] == samples


def test_wav_file_is_valid(page: Page) -> None:
    raw = bytes(
        call(
            page,
            "audio/pcm",
            "const b = m.wavFromFloats(Float32Array.of(0, 0.5, -1, 2), 24000);"
            "return [...new Uint8Array(await b.arrayBuffer())];",
        )
    )
    assert raw[:4] + raw[8:16] == b"RIFFWAVEfmt "
    assert struct.unpack("<IHHIIHH", raw[16:36]) == (16, 1, 1, 24000, 48000, 2, 16)
    assert struct.unpack("<I", raw[4:8])[0] == len(raw) - 8
    assert struct.unpack("<4h", raw[44:]) == (0, 16384, -32767, 32767)


@pytest.mark.parametrize("needs_key", [False, True])
def test_curl_command_sends_the_same_request(page: Page, needs_key: bool) -> None:
    request = {"model": "wren", "voice": "anna", "input": TRICKY_TEXT, "temperature": 0.7}
    address = "http://127.0.0.1:8880/v1/audio/speech"
    line = call(page, "ui/snippets", "return m.asCurl(...x);", [request, address, needs_key])
    words = shlex.split(line.replace("\\\n", ""))
    assert words[:2] == ["curl", address]
    assert json.loads(words[words.index("-d") + 1]) == {**request, "response_format": "wav"}
    assert ("Authorization: Bearer $NIGHTINGALE_API_KEY" in words) == needs_key


@pytest.mark.parametrize("needs_key", [False, True])
def test_python_code_sends_the_same_request(page: Page, needs_key: bool) -> None:
    request = {"model": "wren", "voice": "anna", "input": TRICKY_TEXT, "speed": 1.2, "seed": 7}
    address = "http://127.0.0.1:8880/v1/audio/speech"
    tree = ast.parse(call(page, "ui/snippets", "return m.asPython(...x);", [request, address, needs_key]))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    create = next(call for call in calls if ast.unparse(call.func).endswith(".create"))
    arguments = {word.arg: ast.literal_eval(word.value) for word in create.keywords}
    extra = arguments.pop("extra_body")
    assert {**arguments, **extra} == {**request, "response_format": "wav"}
    client = next(call for call in calls if ast.unparse(call.func) == "OpenAI")
    assert ast.unparse(client.keywords[0].value) == "'http://127.0.0.1:8880/v1'"
    assert ("os.environ" in ast.unparse(client)) == needs_key


def test_peaks_follow_the_audio(page: Page) -> None:
    bars = call(
        page,
        "audio/peaks",
        """
        const peaks = new m.Peaks(1000);                          // ten samples to a hundredth of a second
        for (const loud of [0.5, 0]) peaks.add(new Float32Array(505).fill(loud));
        return [peaks.seconds, peaks.bars(4, 2)];
        """,
    )
    assert bars[0] == pytest.approx(1.01)
    assert bars[1][:2] == [pytest.approx(0.5), pytest.approx(0.01, abs=0.02)]
    assert bars[1][3] is None, "nothing is drawn past the end"


def test_spoken_text_highlights_the_present_word(page: Page) -> None:
    shown, active, hidden = call(
        page,
        "ui/spoken_text",
        """
        const view = new m.SpokenText(), spoken = document.getElementById("spoken");
        const words = [
            { word: "Dr.", start: 0.1, end: 0.3, text_start: 2, text_end: 5 },
            { word: "$5.50", start: 0.3, end: 0.9, text_start: 6, text_end: 11 },
        ];
        view.show("\ud83d\udc26 Dr. $5.50 now", words);
        view.highlight(0.5);
        const found = [spoken.textContent, spoken.querySelector(".active").textContent];
        view.show("");
        return [...found, spoken.hidden];
        """,
    )
    assert (shown, active, hidden) == ("🐦 Dr. $5.50", "$5.50", True)


def test_queue_plays_any_part_again_and_stops_while_paused(page: Page) -> None:
    played, reports = call(
        page,
        "audio/sample_queue",
        """
        const reports = [];
        const queue = new m.SampleQueue(10, (report) => reports.push(report));
        const pull = (count) => { const out = new Float32Array(count); queue.fill(out); return [...out]; };
        queue.handle({ type: "start", epoch: 1 });
        for (const samples of [[1, 2, 3], [4], [5, 6, 7, 8]]) {
            queue.handle({ type: "push", samples: Float32Array.from(samples) });
        }
        const played = [pull(2)];
        queue.handle({ type: "pause", on: true });
        played.push(pull(2));
        queue.handle({ type: "seek", sample: 3, epoch: 2 });
        queue.handle({ type: "pause", on: false });
        played.push(pull(3));
        queue.handle({ type: "end" });
        played.push(pull(4));                                     // to the end
        queue.handle({ type: "seek", sample: 1, epoch: 3 });
        played.push(pull(2));                                     // and again
        queue.handle({ type: "stop" });
        played.push(pull(2));
        return [played, reports];
        """,
    )
    assert played == [[1, 2], [0, 0], [4, 5, 6], [7, 8, 0, 0], [2, 3], [0, 0]]
    assert [(one["epoch"], one["playedSamples"], one["done"]) for one in reports] == [
        (1, 2, False), (2, 6, False), (2, 8, True), (3, 3, False),
    ]  # fmt: skip


def test_queue_counts_no_underrun_when_it_is_sought_past_what_was_received(page: Page) -> None:
    underruns = call(
        page,
        "audio/sample_queue",
        """
        let last = null;
        const queue = new m.SampleQueue(100, (report) => (last = report));
        queue.handle({ type: "start", epoch: 1 });
        queue.handle({ type: "push", samples: new Float32Array(10) });
        queue.handle({ type: "seek", sample: 999, epoch: 2 });
        queue.fill(new Float32Array(10));
        return [last.playedSamples, last.underruns, last.waiting];
        """,
    )
    assert underruns == [10, 0, True]


def test_long_text_is_scrolled_to_the_present_word(page: Page) -> None:
    visible = call(
        page,
        "ui/spoken_text",
        """
        const view = new m.SpokenText(), spoken = document.getElementById("spoken");
        const text = Array.from({ length: 500 }, (_, i) => `word${i}`).join(" ");
        let at = 0;
        const words = text.split(" ").map((word, i) => {
            const timed = { word, start: i, end: i + 1, text_start: at, text_end: at + word.length };
            at += word.length + 1;
            return timed;
        });
        view.show(text, words);
        const found = [];
        for (const second of [0, 250, 499, 3]) {
            view.highlight(second);
            const [word, box] = [spoken.querySelector(".active"), spoken].map((e) => e.getBoundingClientRect());
            found.push(word.top >= box.top - 1 && word.bottom <= box.bottom + 1);
        }
        return found;
        """,
    )
    assert visible == [True] * 4


@pytest.mark.parametrize(
    ("queued", "shown"),
    [
        ({"position": 1, "estimated_wait_s": 0.2}, "1st in line, about 1 s"),
        ({"position": 2, "estimated_wait_s": None}, "2nd in line"),
        ({"position": 3, "estimated_wait_s": 4.2}, "3rd in line, about 4 s"),
        ({"position": 12, "estimated_wait_s": 61}, "12th in line, about 61 s"),
        ({"position": 0}, "Next in line"),
    ],
)
def test_place_in_the_queue_is_told_in_words(page: Page, queued: dict[str, Any], shown: str) -> None:
    script = "const told = []; const view = new m.QueueStatus((text) => told.push(text));"
    script += (
        "view.show(x); view.show(x); return [document.getElementById('queue-status').textContent, told];"
    )
    text, told = call(page, "ui/queue_status", script, queued)
    assert text == shown
    assert told in ([f"{shown}."], []), "the same place is announced once"


def test_long_chapters_are_divided_between_paragraphs_sentences_or_words(page: Page) -> None:
    def split(text: str, limit: int) -> list[str]:
        found = call(
            page, "ui/documents", "return m.splitChapter(...x);", [{"title": "T", "text": text}, limit]
        )
        assert all(len(part["text"]) <= limit for part in found)
        count = len(found)
        titles = ["T"] if count == 1 else [f"T, part {i + 1} of {count}" for i in range(count)]
        assert [part["title"] for part in found] == titles
        return [part["text"] for part in found]

    assert split("One.\n\nTwo.", 100) == ["One.\n\nTwo."]
    assert split("One.\n\nTwo.\n\nThree.", 10) == ["One.\n\nTwo.", "Three."]
    assert split("It is one. It is two. It is three.", 23) == ["It is one. It is two.", "It is three."]
    assert split("x" * 25, 10) == ["x" * 10, "x" * 10, "x" * 5]


@pytest.mark.parametrize(
    ("fragment", "read"),
    [
        ("", None),
        ("#", None),
        ("#section", None),
        ("#key=secret&api_key=x", None),
        ("#voice=emma", {"voice": "emma", "text": None, "controls": {}}),
        (
            "#speed=1.5&seed=0&temperature=warm&language=de&text=a%26b%20c+d",
            {"voice": None, "text": "a&b c d", "controls": {"speed": 1.5, "seed": 0, "language": "de"}},
        ),
    ],
)
def test_settings_are_read_from_a_link(page: Page, fragment: str, read: dict[str, Any] | None) -> None:
    assert call(page, "ui/share", "return m.readShared(x);", fragment) == read
