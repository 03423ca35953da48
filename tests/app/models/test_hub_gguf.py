"""A GGUF file on the hub: named, fetched with its checksum, opened as any such file."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.settings import is_gguf, is_hub_gguf, is_hub_id
from app.models import gguf_files, hub_gguf
from app.models.catalogue import known, pairs
from app.models.hub import Download
from app.models.local import LocalModels
from engine.errors import ModelNotFound
from tests.app.models.hub import Hub

NAME = "acme/some-GGUF/some-Q4_K_M.gguf"
CONTENT = bytes(range(256)) * 40


@pytest.fixture
def published(hub: Hub, tmp_path: Path) -> Hub:
    folder = tmp_path / "published"
    folder.mkdir()
    (folder / "some-Q4_K_M.gguf").write_bytes(CONTENT)
    hub.add("acme/some-GGUF", folder)
    return hub


def test_a_name_is_of_the_hub_unless_such_a_file_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_hub_gguf(NAME)
    assert not is_gguf(NAME)
    assert not is_hub_id(NAME)
    for other in ("some.gguf", "a/some.gguf", "/a/b/some.gguf", "./a/b/c.gguf", "a/../c.gguf", "a/b/c/d.gguf"):
        assert not is_hub_gguf(other)
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).parent.mkdir(parents=True)
    (tmp_path / NAME).touch()
    assert is_gguf(NAME)
    assert not is_hub_gguf(NAME)


def test_it_is_looked_up_with_its_size_and_a_repository_without_it_says_so(published: Hub) -> None:
    about = Download().about(NAME)
    assert about["total"] == len(CONTENT)
    assert about["licence"] == "apache-2.0"
    with pytest.raises(ModelNotFound, match=r"acme/some-GGUF has no file other\.gguf"):
        Download().about("acme/some-GGUF/other.gguf")


def test_it_is_fetched_checked_and_opened(
    published: Hub, local_models: LocalModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process, and without the children that read a real file."""
    place, made = local_models.own(NAME), []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", published.address)
    address = f"{published.address}/acme/some-GGUF/resolve/main/some-Q4_K_M.gguf"
    monkeypatch.setattr("huggingface_hub.hf_hub_url", lambda *_, **__: address)
    monkeypatch.setattr(gguf_files, "look", lambda path: path.read_bytes())
    monkeypatch.setattr(gguf_files, "make", lambda path, model, folder, say: made.append((path, model, folder)))
    assert local_models.find(NAME) is None
    hub_gguf.get(NAME, place, lambda *_, **__: None)
    assert made == [(place / "some-Q4_K_M.gguf", CONTENT, place)]
    before = len(published.asked)
    hub_gguf.get(NAME, place, lambda *_, **__: None)
    assert [method for method, path, _ in published.asked[before:] if "resolve" in path] == [], "it is here"


def test_of_a_model_in_parts_all_are_fetched(
    hub: Hub, local_models: LocalModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, made = tmp_path / "published", []
    folder.mkdir()
    for number in (1, 2):
        (folder / f"some-0000{number}-of-00002.gguf").write_bytes(CONTENT[number:])
    hub.add("acme/parts-GGUF", folder)
    name = "acme/parts-GGUF/some-00002-of-00002.gguf"
    assert Download().about(name)["total"] == 2 * len(CONTENT) - 3
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.address)
    start = f"{hub.address}/acme/parts-GGUF/resolve/main"
    monkeypatch.setattr("huggingface_hub.hf_hub_url", lambda _, file, **__: f"{start}/{file}")
    monkeypatch.setattr(gguf_files, "look", lambda path: path.name)
    monkeypatch.setattr(gguf_files, "make", lambda path, model, folder, say: made.append(model))
    place = local_models.own(name)
    hub_gguf.get(name, place, lambda *_, **__: None)
    assert made == ["some-00001-of-00002.gguf"]
    assert place.name == "some"
    assert all((place / file.name).read_bytes() == file.read_bytes() for file in folder.iterdir())


def test_the_catalogue_offers_files_by_such_names_alone() -> None:
    files = [pair for pair in pairs() if pair.id.endswith("-file")]
    assert len(files) >= 3
    for pair in files:
        assert is_hub_gguf(pair.target.name)
        model = known(pair.target.name)
        assert model is not None
        assert model.shape is not None
        assert 0.5 < model.shape.stored < 0.7, "4 to 5 bits a weight"
        assert model.licence
