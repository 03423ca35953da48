"""``ask`` on a book that was read before: opened from disk, unless told not to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.cli.main import main


def test_a_book_is_opened_from_disk_the_second_time(
    book_file: Path, pair: list[str], capfd: pytest.CaptureFixture[str], data_folder: Path
) -> None:
    line = ["ask", str(book_file), "Who lit it?", *pair, "--max-tokens", "8", "--json"]

    def report(*options: str) -> dict[str, object]:
        assert main([*line, *options]) == 0
        made: dict[str, object] = json.loads(capfd.readouterr().out)
        return made

    anew = report("--no-snapshot")
    assert not (data_folder / "snapshots").exists()
    first, second, third = report(), report(), report("--no-snapshot")
    assert [made["source"] for made in (anew, first, second, third)] == ["read", "read", "snapshot", "read"]
    assert second["restored_tokens"] == second["book_tokens"]
    assert float(str(second["open_s"])) > 0
    assert len({str(made["token_ids"]) for made in (anew, first, second, third)}) == 1
