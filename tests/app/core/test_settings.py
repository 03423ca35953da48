"""Where things live on each platform, and what is used when nobody says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from app.core.settings import DEMO_DRAFT, DEMO_MODEL, data_folder, is_hub_id, make_settings
from app.web.preferences import ModelAsked
from engine.errors import OptionError


@pytest.mark.parametrize(
    ("platform", "environ", "parts"),
    [
        ("linux", {}, (".local", "share", "trifold")),
        ("linux", {"XDG_DATA_HOME": "/x/share"}, ("x", "share", "trifold")),
        ("darwin", {}, ("Library", "Application Support", "Trifold")),
        ("win32", {"LOCALAPPDATA": "/c/Local"}, ("c", "Local", "Trifold")),
        ("win32", {}, ("AppData", "Local", "Trifold")),
        ("linux", {"TRIFOLD_DATA": "/my data/é"}, ("my data", "é")),
    ],
)
def test_data_folder_follows_the_platform(platform: str, environ: dict[str, str], parts: tuple[str, ...]) -> None:
    folder = data_folder(environ, platform)
    assert folder.is_absolute()
    assert folder.parts[-len(parts) :] == parts


def test_a_python_of_the_store_keeps_data_where_others_see_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    local = {"LOCALAPPDATA": str(tmp_path / "AppData" / "Local")}
    store = r"C:\Program Files\WindowsApps\PythonSoftwareFoundation.Python.3.13_3.13.1.0_x64__qbz5n2kfra8p0"
    usual = tmp_path / "AppData" / "Local" / "Trifold"
    assert data_folder(local, "win32", r"C:\Python313") == usual
    assert data_folder(local, "win32", store) == tmp_path / ".trifold"
    usual.mkdir(parents=True)  # an earlier version has kept books here
    assert data_folder(local, "win32", store) == usual
    (tmp_path / ".trifold").mkdir()
    assert data_folder(local, "win32", r"C:\Python313") == tmp_path / ".trifold"


def test_bundled_draft_goes_with_the_bundled_target_only() -> None:
    assert make_settings().draft == str(DEMO_DRAFT)
    assert make_settings(model=str(DEMO_MODEL)).draft == str(DEMO_DRAFT)
    assert make_settings(model="/another/model").draft is None
    assert make_settings(model="owner/name", draft="owner/small").draft == "owner/small"
    assert make_settings(draft="none").draft is None


@pytest.mark.skipif(os.name == "nt", reason="Windows looks up any name, and finds nothing")
@pytest.mark.parametrize("name", ["/" + "a" * 300, "~nobody-of-this-name/x", "~nobody-of-this-name/x.gguf"])
def test_a_name_that_cannot_be_looked_up(name: str) -> None:
    """It was told as "Something went wrong", and the page got a status of 500."""
    with pytest.raises(OptionError, match="cannot be looked up"):
        make_settings(model=name)
    with pytest.raises(OptionError, match="cannot be looked up"):
        make_settings(draft=name)
    with pytest.raises(OptionError, match="cannot be looked up"):
        ModelAsked(model=name)


def test_engine_settings_come_together() -> None:
    config = make_settings(model="/m", context=4096, options={"retrieval_budget": 256}).engine_config()
    assert (config.model, config.context, config.retrieval_budget) == ("/m", 4096, 256)
    with pytest.raises(OptionError, match="retrieval_budget"):
        make_settings(options={"retrieval_budge": 1}).engine_config()


@pytest.mark.parametrize(
    ("name", "hub"),
    [("Qwen/Qwen3-8B", True), ("/models/x", False), ("./x/y", False), ("x", False), ("a/b/c", False), ("~/x", False)],
)
def test_hub_ids_are_told_from_folders(name: str, hub: bool) -> None:
    assert is_hub_id(name) is hub


def test_folder_that_exists_is_not_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert not is_hub_id("owner/name")
