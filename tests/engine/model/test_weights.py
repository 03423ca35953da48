"""Weights on disk: a whole file passes, and whatever is cut, altered or something else is refused with the reason."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from app.core.settings import DEMO_MODEL
from engine.errors import ModelError
from engine.model import weights
from engine.model_files import INDEX


def write(path: Path, header: dict[str, Any] | bytes, body: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + body)
    return path


def entry(shape: list[Any], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_what_safetensors_itself_writes_is_whole(tmp_path: Path) -> None:
    tensors = {"a": torch.zeros(3, 5), "b": torch.ones(7, dtype=torch.bfloat16), "c": torch.zeros(0)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert weights.check_folder(tmp_path) == 3 * 5 + 7


def test_the_demo_model_is_whole() -> None:
    assert weights.check_folder(DEMO_MODEL) > 1_000_000


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_file_that_was_cut_off_says_so(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(30, 30)}, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match="cut off"):
        weights.check_folder(tmp_path)


def test_something_behind_the_last_tensor_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(4)}, path)
    path.write_bytes(path.read_bytes() + b"PK\x03\x04")
    with pytest.raises(ModelError, match="behind its last tensor"):
        weights.check_folder(tmp_path)


def test_a_claimed_header_is_not_believed_before_it_is_measured(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cut off"):
        weights.check_file(write(tmp_path / "model.safetensors", b"{}", length=2**62))
    path = tmp_path / "huge.safetensors"
    with path.open("wb") as file:  # a sparse file: the claim fits into it, and nothing of it is read
        file.write(struct.pack("<Q", 200_000_000))
        file.truncate(300_000_000)
    with pytest.raises(ModelError, match="no model has"):
        weights.check_file(path)


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"not json", b""),
        (b"[" * 100_000, b""),
        (b'{"a": 1, "a": 2}', b""),
        ({"a": entry([4], 0, 15)}, bytes(15)),
        ({"a": entry([-4], 0, 16)}, bytes(16)),
        ({"a": entry([4.0], 0, 16)}, bytes(16)),
        ({"a": entry([2**40, 2**40], 0, 16)}, bytes(16)),
        ({"a": entry([4], 0, 16, "PICKLE")}, bytes(16)),
        ({"a": entry([4], 0, 16), "b": entry([4], 8, 24)}, bytes(24)),
        ({"a": entry([4], 0, 16), "b": entry([4], 20, 36)}, bytes(36)),
        ({"a": {"dtype": "F32"}}, b""),
        ({"a": "F32"}, b""),
    ],
)
def test_an_altered_header_is_refused(tmp_path: Path, header: Any, body: bytes) -> None:
    with pytest.raises(ModelError):
        weights.check_file(write(tmp_path / "model.safetensors", header, body))


def sharded(folder: Path, places: dict[str, str]) -> None:
    save_file({"a": torch.zeros(2)}, folder / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(3)}, folder / "model-00002-of-00002.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


def test_all_files_of_an_index_are_looked_at(tmp_path: Path) -> None:
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    sharded(tmp_path, {"a": first, "b": second})
    assert weights.check_folder(tmp_path) == 5
    sharded(tmp_path, {"a": first, "b": first})
    with pytest.raises(ModelError, match="lacks b"):
        weights.check_folder(tmp_path)
    sharded(tmp_path, {"a": first, "b": second})
    (tmp_path / second).unlink()
    with pytest.raises(ModelError, match="missing"):
        weights.check_folder(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "pytorch_model.bin", "sub/x.safetensors"])
def test_an_index_leads_nowhere_else(tmp_path: Path, name: str) -> None:
    sharded(tmp_path, {"a": name})
    with pytest.raises(ModelError, match="not a "):
        weights.check_folder(tmp_path)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        weights.check_folder(tmp_path)
