"""A secret has one value, however many programs use its file for the first time."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from app.web import secret_file


def meanwhile(monkeypatch: pytest.MonkeyPatch, path: Path) -> list[str]:
    """Let another program use the file for the first time while this one is making its secret."""
    others: list[str] = []
    random = secrets.token_urlsafe

    def slow(length: int) -> str:
        monkeypatch.setattr(secrets, "token_urlsafe", random)
        others.append(secret_file.load(path, "sk-"))
        return random(length)

    monkeypatch.setattr(secrets, "token_urlsafe", slow)
    return others


def test_two_first_uses_at_once_have_one_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had its own, and one of them no longer opened anything."""
    path = tmp_path / "new" / "page.key"
    others = meanwhile(monkeypatch, path)
    assert [secret_file.load(path, "sk-")] == others == [path.read_text()]
    assert [one.name for one in path.parent.iterdir()] == ["page.key"]


def test_a_folder_without_hard_links_has_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    secret = secret_file.load(tmp_path / "api.key")
    assert (secret_file.load(tmp_path / "api.key"), len(os.listdir(tmp_path))) == (secret, 1)


@pytest.mark.parametrize("damaged", ["", "sk-short", "x" * 60])
def test_a_damaged_secret_is_replaced(damaged: str, tmp_path: Path) -> None:
    path = tmp_path / "api.key"
    path.write_text(damaged)
    secret = secret_file.load(path, "sk-")
    assert (secret[:3], len(secret) > 40, secret_file.load(path, "sk-")) == ("sk-", True, secret)
    assert [secret_file.renew(path, "sk-") != secret, len(os.listdir(tmp_path))] == [True, 1]
