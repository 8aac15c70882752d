"""Voices by name, and voices remembered by the content of their clip."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nightingale.errors import BadReference, ConfigError, VoiceError, VoiceExists, VoiceNotFound
from nightingale.voices import cache, home, library
from nightingale.voices.voice import Voice


def voice(number: int = 1) -> Voice:
    return Voice.checked(
        name="unnamed",
        family="wren",
        speaker=np.full(4, float(number)),
        prompt_ids=np.array([number]),
        flow_prompt_ids=np.array([number]),
        flow_prompt_mel=np.zeros((2, 8), np.float32),
        flow_speaker=np.zeros(3, np.float32),
        provenance="a test",
    )


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_voice_can_be_added_listed_loaded_exported_and_removed(tmp_path: Path) -> None:
    library.add("anna", voice())
    (entry,) = [e for e in library.entries() if not e.builtin]
    assert (entry.name, entry.family, entry.provenance) == ("anna", "wren", "a test")
    assert library.load("anna").name == "anna"
    library.export("anna", tmp_path / "out.safetensors")
    assert Voice.load(tmp_path / "out.safetensors") == voice()
    library.remove("anna")
    with pytest.raises(VoiceNotFound):
        library.load("anna")


def test_an_unknown_voice_is_answered_with_close_ones() -> None:
    library.add("annabel", voice())
    with pytest.raises(VoiceNotFound, match="Did you mean annabel") as caught:
        library.load("anabel")
    assert "annabel" in caught.value.allowed


@pytest.mark.parametrize(
    "name", ["", "../evil", "Anna", "a" * 65, "a b", "a/b", "ä", "anna.wav", "anna\n", "con", "lpt1"]
)
def test_a_name_that_could_be_a_path_is_never_looked_up(name: str) -> None:
    for act in (lambda: library.find(name), lambda: library.add(name, voice()), lambda: library.remove(name)):
        with pytest.raises(VoiceNotFound, match="not a voice name"):
            act()


def test_a_voice_is_not_overwritten_unless_told() -> None:
    library.add("anna", voice(1))
    with pytest.raises(VoiceExists, match="exists"):
        library.add("anna", voice(2))
    assert library.load("anna") == voice(1)
    library.add("anna", voice(2), replace=True)
    assert library.load("anna") == voice(2)


def test_a_built_in_voice_can_be_hidden_but_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    voice(1).save(assets / "wren.safetensors")
    monkeypatch.setattr(library, "builtin_folder", lambda: assets)
    assert library.load("wren") == voice(1)
    with pytest.raises(VoiceError, match="stay"):
        library.remove("wren")
    with pytest.raises(VoiceExists, match="built in"):
        library.add("wren", voice(2))
    library.add("wren", voice(2), replace=True)
    assert library.load("wren") == voice(2)
    assert [e.builtin for e in library.entries() if e.name == "wren"] == [False]
    library.remove("wren")
    assert library.load("wren") == voice(1)


def test_voices_that_came_with_a_model_s_folder_take_the_place_of_the_package_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, folder = tmp_path / "package", tmp_path / "model" / "voices"
    for place, number in ((package, 1), (folder, 2)):
        place.mkdir(parents=True)
        voice(number).save(place / "heart.safetensors")
    voice(3).save(package / "made_for_other_weights.safetensors")
    monkeypatch.setattr(library, "builtin_folder", lambda: package)
    assert library.load("heart") == voice(1)
    assert library.load("heart", folder) == voice(2)
    assert [(entry.name, entry.builtin) for entry in library.entries(folder)] == [("heart", True)]
    with pytest.raises(VoiceNotFound) as caught:
        library.load("made_for_other_weights", folder)
    assert caught.value.allowed == "heart"
    with pytest.raises(VoiceError, match="stay"):
        library.remove("heart", folder)
    library.add("heart", voice(4), replace=True)
    assert library.load("heart", folder) == voice(4), "the user's own comes first"


def test_a_damaged_file_is_listed_as_unknown_and_does_not_hide_the_others() -> None:
    library.add("anna", voice())
    (home.voices_folder() / "broken.safetensors").write_bytes(b"\xff" * 40)
    families = {e.name: e.family for e in library.entries() if not e.builtin}
    assert families == {"anna": "wren", "broken": "?"}


def test_a_clip_is_enrolled_once_whatever_it_is_called(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> Voice:
        made.append(1)
        return voice(len(made))

    clip, same, other = tmp_path / "a.wav", tmp_path / "b.wav", tmp_path / "c.wav"
    clip.write_bytes(b"RIFF one")
    same.write_bytes(b"RIFF one")
    other.write_bytes(b"RIFF two")
    first = cache.enrolled(clip, "wren", "weights-1", make)
    assert cache.enrolled(same, "wren", "weights-1", make) == first
    assert len(made) == 1
    assert cache.enrolled(other, "wren", "weights-1", make) != first
    assert cache.enrolled(clip, "wren", "weights-2", make) != first
    assert cache.enrolled(clip, "turbo", "weights-1", make) != first
    assert len(made) == 4


def test_a_damaged_cache_entry_is_made_again(tmp_path: Path) -> None:
    clip = tmp_path / "a.wav"
    clip.write_bytes(b"RIFF")
    cache.enrolled(clip, "wren", "w", voice)
    (entry,) = home.cache_folder().iterdir()
    entry.write_bytes(b"nonsense")
    assert cache.enrolled(clip, "wren", "w", lambda: voice(2)) == voice(2)
    assert Voice.load(entry) == voice(2)


def test_a_cache_that_cannot_be_written_does_not_cost_the_voice(tmp_path: Path, empty_home: Path) -> None:
    clip = tmp_path / "a.wav"
    clip.write_bytes(b"RIFF")
    empty_home.write_text("a file where the folder should be")
    assert cache.enrolled(clip, "wren", "w", voice) == voice()


def test_a_clip_that_is_not_there_is_a_bad_reference(tmp_path: Path) -> None:
    with pytest.raises(BadReference, match="cannot be read"):
        cache.enrolled(tmp_path / "none.wav", "wren", "w", voice)


def test_of_several_writers_of_one_name_exactly_one_succeeds() -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(8)

    def add(number: int) -> None:
        made = voice(number)
        barrier.wait()
        try:
            library.add("anna", made)
            outcomes.append(f"added {number}")
        except VoiceExists:
            outcomes.append("taken")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (added,) = [outcome for outcome in outcomes if outcome != "taken"]
    assert len(outcomes) == 8
    assert library.load("anna") == voice(int(added.split()[1]))
    assert [path.name for path in home.voices_folder().iterdir()] == ["anna.safetensors"]


@pytest.fixture
def two_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that changes to another machine, which shares an object store of voices."""
    pytest.importorskip("fsspec")
    monkeypatch.setenv("NIGHTINGALE_VOICES", f"memory://{tmp_path.name}/voices")

    def change_to(machine: str) -> None:
        monkeypatch.setenv("NIGHTINGALE_HOME", str(tmp_path / machine))

    change_to("first")
    return change_to


def test_a_voice_in_an_object_store_is_there_for_another_machine_at_once(two_machines) -> None:
    library.add("anna", voice(1))
    two_machines("second")
    assert library.load("anna") == voice(1)
    with pytest.raises(VoiceExists):
        library.add("anna", voice(2))
    library.add("anna", voice(2), replace=True)
    assert [entry.name for entry in library.entries() if not entry.builtin] == ["anna"]
    two_machines("first")
    assert library.load("anna") == voice(2), "an outdated copy was used"


def test_a_voice_deleted_from_an_object_store_is_gone_on_another_machine(two_machines) -> None:
    library.add("anna", voice())
    two_machines("second")
    assert library.locate("anna") is not None
    library.remove("anna")
    two_machines("first")
    assert library.locate("anna") is None
    assert not [entry for entry in library.entries() if not entry.builtin]
    with pytest.raises(VoiceNotFound):
        library.load("anna")


def test_a_url_that_cannot_be_opened_is_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("NIGHTINGALE_VOICES", "nosuchthing://bucket/voices")
    with pytest.raises(ConfigError, match="cannot be opened"):
        library.locate("anna")


@pytest.mark.parametrize("path", sorted(library.builtin_folder().glob("*.safetensors")), ids=lambda p: p.stem)
def test_every_built_in_voice_has_a_card_with_provenance_licence_and_use(path: Path) -> None:
    card = path.with_suffix(".md").read_text(encoding="utf-8")
    assert card.startswith(f"# {path.stem}\n")
    assert all(f"- **{part}.**" in card for part in ("Provenance", "Licence", "Use"))
