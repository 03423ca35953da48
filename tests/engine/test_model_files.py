"""Files of a model's folder: what is no file of it, or larger than any, is refused before it is opened."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.core.abilities import Abilities, abilities
from app.core.settings import DEMO_DRAFT, DEMO_MODEL
from app.models import switch
from engine import model_files
from engine.errors import ModelError
from engine.model import weights
from engine.plan import read_config
from engine.prompt import BookTokenizer

_POSIX = pytest.mark.skipif(os.name == "nt", reason="Windows has no such files")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The demo's small files; its weights are not looked at here."""
    made = tmp_path / "model"
    shutil.copytree(DEMO_MODEL, made, ignore=shutil.ignore_patterns("*.safetensors"))
    return made


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _leads_nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def _circle(path: Path) -> None:
    path.symlink_to(path)


def _leads_out(path: Path) -> None:
    outside = path.parent.parent / "outside"
    outside.write_text("{}", encoding="utf-8")
    path.symlink_to(outside)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3_000_000_000)


KINDS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a device": (_device, "not an ordinary file"),
    "a pipe": (_pipe, "not an ordinary file"),
    "a folder": (Path.mkdir, "not an ordinary file"),
    "a link that leads nowhere": (_leads_nowhere, "leads to nothing"),
    "a link to itself": (_circle, "leads to nothing"),
    "a link that leads out": (_leads_out, "leads out of its folder"),
    "three gigabytes of nothing": (_sparse, "which no model needs"),
}


@_POSIX
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"])
def test_what_is_no_file_is_refused_before_it_is_opened(folder: Path, name: str, kind: str) -> None:
    """A device was read without end, and a link that leads nowhere was a fault of the program's."""
    make, why = KINDS[kind]
    (folder / name).unlink()
    make(folder / name)
    with pytest.raises(ModelError, match=why):
        model_files.check(folder)


@_POSIX
@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_of_one_file_asks_first(folder: Path, kind: str) -> None:
    make, why = KINDS[kind]
    for name in ("config.json", "abilities.json", "tokenizer.json"):
        (folder / name).unlink()
        make(folder / name)
    with pytest.raises(ModelError, match=why):
        read_config(folder)
    assert abilities(str(folder)) == Abilities()
    assert switch.shares_vocabulary(folder, DEMO_DRAFT) is None
    if make is not _sparse:  # which weights may well be
        make(folder / "model.safetensors")
        with pytest.raises(ModelError, match=why):
            weights.check_folder(folder)


@_POSIX
def test_further_templates_are_looked_at_too(folder: Path) -> None:
    (folder / model_files.TEMPLATES).mkdir()
    _device(folder / model_files.TEMPLATES / "tool_use.jinja")
    with pytest.raises(ModelError, match=r"tool_use\.jinja is not an ordinary file"):
        model_files.check(folder)


@_POSIX
def test_links_into_the_cache_of_the_hub_are_files(tmp_path: Path) -> None:
    """So its tools keep every model, and folders that they fill link there too."""
    blobs, snapshot = (tmp_path / "models--a--b" / name for name in ("blobs", "snapshots/0"))
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "12ab").write_text("{}", encoding="utf-8")
    (snapshot / "config.json").symlink_to("../../blobs/12ab")
    model_files.check(snapshot)


@pytest.mark.parametrize("content", ["[]", "3", "{", "[" * 50_000, '{"a": ' * 50_000, '{"a": 1, "a": 2}'])
def test_settings_for_generating_that_are_none_are_said_to_be(folder: Path, content: str) -> None:
    """They were told as damaged weights."""
    (folder / "generation_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=r"generation_config\.json is damaged"):
        model_files.check_settings(folder)


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"num_labels": 10**12}, "num_labels is 1000000000000"),
        ({"text_config": {"num_hidden_layers": 10**7}}, "num_hidden_layers is 10000000"),
        ({"vision": [{"out_indices": [10**8]}]}, "out_indices is 100000000"),
        ({"rope_theta": 10**11, "max_position_embeddings": 10**9, "eos_token_id": [10**8], "vocab_size": 10**6}, ""),
    ],
)
def test_numbers_of_which_a_library_makes_lists(folder: Path, stated: dict[str, Any], why: str) -> None:
    """A tokenizer's loading reads them too: ``read`` took all memory before anything had looked at them."""
    settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(settings | stated), encoding="utf-8")
    if not why:
        model_files.check_settings(folder)
        return
    with pytest.raises(ModelError, match=why):
        model_files.check_settings(folder)
    with pytest.raises(ModelError, match=why):
        BookTokenizer(str(folder))


@pytest.mark.parametrize("vocabulary", ['"abc"', "7", '[["a", 0], 3]', '{"a": []}'])
def test_a_vocabulary_that_is_none_shares_nothing(folder: Path, vocabulary: str) -> None:
    broken = f'{{"model": {{"vocab": {vocabulary}}}, "added_tokens": [3]}}'
    (folder / "tokenizer.json").write_text(broken, encoding="utf-8")
    assert switch.shares_vocabulary(folder, DEMO_DRAFT) is None


def test_a_good_folder_passes(folder: Path) -> None:
    model_files.check_settings(folder)
    assert model_files.folder_of(str(folder)) == folder
    assert model_files.folder_of("nobody/has-this-here") is None
    assert model_files.folder_of("no name\nof a model") is None
    assert {path.name for path in model_files.tokenizer_files(folder)} == {"tokenizer.json", "tokenizer_config.json"}
    assert json.loads((folder / "config.json").read_text(encoding="utf-8")) == read_config(folder)
