"""Finding model files: folder, then cache, then hub; the error names missing files and the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from nightingale.errors import CheckpointError, ConfigError, ModelMissing, UnknownModel
from nightingale.hub import find, hub_cache
from nightingale.hub.cards import CARDS, MULTILINGUAL, TURBO, Card


def fill_folder(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_bytes(name.encode())
    return folder


def needed_names(card: Card) -> list[str]:
    return [file.names[0] for file in card.files if file.needed]


def fill_cache(folder: Path, card: Card, names: list[str], commit: str, *, main: bool = True) -> Path:
    """Write the hub's own cache layout: refs/<branch> holds a commit, snapshots/<commit>/ the files."""
    repo = folder / f"models--{card.repo.replace('/', '--')}"
    if main:
        fill_folder(repo / "refs")
        (repo / "refs" / "main").write_text(commit)
    return fill_folder(repo / "snapshots" / commit, *names)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_cache, "cache_root", lambda: tmp_path)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> Path:
        raise AssertionError("touched the network")

    monkeypatch.setattr(hub_cache, "download", refuse)


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.usefixtures("no_network")
def test_a_folder_with_the_official_names_is_recognised(name: str, tmp_path: Path) -> None:
    folder = fill_folder(tmp_path / "weights", *needed_names(CARDS[name]))
    found = find.locate(folder)
    assert found.card.name == name
    assert found.folder == folder
    assert found.paths["t3"] == folder / CARDS[name].file("t3").names[0]
    assert found.paths.get("conds") is None


@pytest.mark.usefixtures("no_network")
def test_safetensors_are_preferred_over_pt(tmp_path: Path) -> None:
    names = ["t3_cfg.safetensors", "s3gen.pt", "ve.pt", "ve.safetensors", "tokenizer.json"]
    found = find.locate(fill_folder(tmp_path / "w", *names))
    assert found.paths["voice_encoder"].name == "ve.safetensors"
    assert found.paths["s3gen"].name == "s3gen.pt"


@pytest.mark.usefixtures("no_network")
def test_a_cached_model_is_found_at_the_pinned_revision(tmp_path: Path) -> None:
    snapshot = fill_cache(
        tmp_path, MULTILINGUAL, needed_names(MULTILINGUAL), MULTILINGUAL.revision, main=False
    )
    assert find.locate("multilingual").folder == snapshot


@pytest.mark.usefixtures("no_network")
def test_a_commit_with_the_known_digits_wins_over_a_moved_branch(tmp_path: Path) -> None:
    tested = fill_cache(tmp_path, TURBO, needed_names(TURBO), "749d1c1a" + "0" * 32, main=False)
    fill_cache(tmp_path, TURBO, needed_names(TURBO), "f" * 40)
    assert find.locate("turbo").folder == tested


@pytest.mark.usefixtures("no_network")
def test_another_revision_is_not_used_but_mentioned(tmp_path: Path) -> None:
    fill_cache(tmp_path, MULTILINGUAL, needed_names(MULTILINGUAL), "abcdef12" + "0" * 32)
    with pytest.raises(ModelMissing, match="another revision \\(abcdef12"):
        find.locate("multilingual", offline=True)


@pytest.mark.usefixtures("no_network")
def test_offline_names_every_missing_file_and_the_command(tmp_path: Path) -> None:
    fill_cache(tmp_path, TURBO, ["vocab.json", "merges.txt", "ve.safetensors"], "749d1c1a" + "0" * 32)
    with pytest.raises(ModelMissing) as caught:
        find.locate("turbo", offline=True)
    error = caught.value
    for name in ("t3_turbo_v1.safetensors", "s3gen_meanflow.safetensors", "added_tokens.json"):
        assert name in error.got
    assert "vocab.json" not in error.got
    assert "conds.pt" not in error.got, "an optional file is not reported"
    assert "`nightingale models pull turbo`" in error.fix


@pytest.mark.usefixtures("no_network")
def test_the_environment_can_set_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelMissing, match="t3_nano_v1"):
        find.locate("nano")


@pytest.mark.usefixtures("no_network")
def test_the_command_repeats_the_options(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="models pull multilingual --t3 v3 --s3gen v3") as caught:
        find.locate("multilingual", offline=True, t3="v3", s3gen="v3")
    assert "t3_mtl23ls_v3.safetensors" in caught.value.got
    assert "s3gen_v3.safetensors or s3gen_v3.pt" in caught.value.got


@pytest.mark.usefixtures("no_network")
def test_a_single_language_fine_tune_is_a_multilingual_completed_from_the_cache(tmp_path: Path) -> None:
    base = fill_cache(
        tmp_path, MULTILINGUAL, [*needed_names(MULTILINGUAL), "conds.pt"], MULTILINGUAL.revision
    )
    pack = fill_folder(
        tmp_path / "pt-br",
        "t3_pt_br.safetensors",
        "s3gen_v3.safetensors",
        "grapheme_mtl_merged_expanded_v1.json",
    )
    found = find.locate(pack, s3gen="v3")
    assert found.card is MULTILINGUAL
    assert found.paths["t3"] == pack / "t3_pt_br.safetensors"
    assert found.paths["s3gen"] == pack / "s3gen_v3.safetensors"
    assert found.paths["voice_encoder"] == base / "ve.safetensors"
    assert found.paths["conds"] == base / "conds.pt"


@pytest.mark.usefixtures("no_network")
def test_a_folder_with_only_s3gen_v3_says_how_to_use_it(tmp_path: Path) -> None:
    names = [n for n in needed_names(MULTILINGUAL) if not n.startswith("s3gen")]
    with pytest.raises(ModelMissing, match="say s3gen='v3'"):
        find.locate(fill_folder(tmp_path / "w", *names, "s3gen_v3.pt"))


@pytest.mark.usefixtures("no_network")
def test_any_t3_file_can_be_given_by_path_or_by_name_in_the_folder(tmp_path: Path) -> None:
    folder = fill_folder(tmp_path / "w", *needed_names(MULTILINGUAL), "my_t3.safetensors")
    elsewhere = fill_folder(tmp_path / "x", "other.safetensors") / "other.safetensors"
    assert find.locate(folder, t3="my_t3.safetensors").paths["t3"] == folder / "my_t3.safetensors"
    assert find.locate(folder, t3=elsewhere).paths["t3"] == elsewhere


@pytest.mark.usefixtures("no_network")
def test_a_folder_with_two_models_needs_a_kind(tmp_path: Path) -> None:
    folder = fill_folder(tmp_path / "w", *needed_names(CARDS["english"]), *needed_names(MULTILINGUAL))
    with pytest.raises(ConfigError, match="english, multilingual"):
        find.locate(folder)
    assert find.locate(folder, kind="multilingual").card is MULTILINGUAL
    assert find.locate(folder, t3="v2").card is MULTILINGUAL


@pytest.mark.usefixtures("no_network")
def test_an_incomplete_folder_is_never_completed_from_the_network(tmp_path: Path) -> None:
    folder = fill_folder(tmp_path / "w", "t3_turbo_v1.safetensors")
    with pytest.raises(ModelMissing, match="s3gen_meanflow"):
        find.locate(folder, offline=False)


@pytest.mark.parametrize(("name", "hint"), [("trubo", "'turbo'"), ("/no/such/folder", "models list")])
def test_an_unknown_model_lists_the_known_ones(name: str, hint: str) -> None:
    with pytest.raises(UnknownModel, match="english, multilingual, turbo, nano") as caught:
        find.locate(name)
    assert hint in caught.value.fix


def test_an_empty_folder_says_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="t3_cfg"):
        find.locate(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"t3": "v9"}, r"no such t3 for 'multilingual': got t3='v9'"),
        ({"s3gen": "no/such/file.pt"}, r"no such s3gen for 'multilingual': got s3gen='no/such/file\.pt'"),
        ({"s3gen": "two-step"}, r"allowed: v3 or meanflow or the path of a s3gen weights file"),
        ({"kind": "english"}, "a named model has its own kind: got kind='english'"),
    ],
)
def test_an_impossible_option_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find.locate("multilingual", offline=True, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["english", "multilingual"])
@pytest.mark.usefixtures("no_network")
def test_the_meanflow_decoder_comes_from_turbos_repository(name: str, tmp_path: Path) -> None:
    card = CARDS[name]
    names = [n for n in needed_names(card) if not n.startswith("s3gen")]
    own = fill_cache(tmp_path, card, names, card.revision, main=False)
    with pytest.raises(ModelMissing, match=f"models pull {name} --s3gen meanflow"):
        find.locate(name, offline=True, s3gen="meanflow")
    turbo = fill_cache(tmp_path, TURBO, ["s3gen_meanflow.safetensors"], "749d1c1a" + "0" * 32)
    found = find.locate(name, offline=True, s3gen="meanflow")
    assert found.paths["s3gen"] == turbo / "s3gen_meanflow.safetensors"
    assert found.paths["voice_encoder"] == own / "ve.safetensors"


def test_the_meanflow_decoder_is_downloaded_and_verified_as_turbos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def fake(card: Card, names: tuple[str, ...], _meter: object = None) -> Path:
        asked.append((card.name, names[0]))
        return fill_folder(tmp_path / "files", names[0]) / names[0]

    monkeypatch.setattr(hub_cache, "download", fake)
    with pytest.raises(
        CheckpointError, match=r"s3gen_meanflow\.safetensors of 'turbo' is not the official file"
    ):
        find.pull("english", s3gen="meanflow")
    assert ("turbo", "s3gen_meanflow.safetensors") in asked
    assert ("english", "t3_cfg.safetensors") in asked


@pytest.mark.parametrize("name", ["turbo", "nano"])
def test_a_model_with_the_meanflow_decoder_does_not_take_the_option(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"Leave the option out: s3gen_meanflow\.safetensors is this model's own"
    ):
        find.locate(name, offline=True, s3gen="meanflow")


def test_only_what_is_missing_is_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = fill_cache(tmp_path, TURBO, ["vocab.json", "merges.txt"], "749d1c1a" + "0" * 32)
    asked: list[str] = []

    def fake(card: Card, names: tuple[str, ...], _meter: object = None) -> Path:
        asked.append(names[0])
        if names[0] == "conds.pt":
            raise ModelMissing("conds", got="404", allowed="-", fix="-")
        return fill_folder(here, names[0]) / names[0]

    monkeypatch.setattr(hub_cache, "download", fake)
    found = find.locate("turbo")
    assert asked[:2] == ["t3_turbo_v1.safetensors", "s3gen_meanflow.safetensors"]
    assert "vocab.json" not in asked
    assert found.paths.get("conds") is None, "an optional file must not fail the download"


def test_a_file_with_the_wrong_digest_is_not_accepted_by_pull(tmp_path: Path) -> None:
    fill_cache(tmp_path, TURBO, [*needed_names(TURBO), "conds.pt"], "749d1c1a" + "0" * 32)
    with pytest.raises(CheckpointError, match="fcf1f8c1"):
        find.pull("turbo")


def test_state_says_what_the_cache_holds(tmp_path: Path) -> None:
    assert not find.state(TURBO).complete
    fill_cache(tmp_path, TURBO, needed_names(TURBO), "749d1c1a" + "0" * 32)
    state = find.state(TURBO)
    assert state.complete
    assert state.bytes_here == sum(len(name) for name in needed_names(TURBO))


def test_the_fingerprint_changes_with_the_weights_that_make_voices(tmp_path: Path) -> None:
    folder = fill_folder(tmp_path / "w", *needed_names(TURBO))
    before = find.locate(folder).fingerprint
    assert find.locate(folder).fingerprint == before
    (folder / "ve.safetensors").write_bytes(b"other weights")
    assert find.locate(folder).fingerprint != before
