"""Files that LibreOffice converts, with a script in its place."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from app.readers import conversion, read_document
from engine.errors import DocumentError

_OLD = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + "WordDocument".encode("utf-16-le")


@pytest.mark.skipif(os.name == "nt", reason="the script is one of a shell")
def test_an_old_file_is_converted_by_the_office_suite_or_refused_with_the_way(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = files.raw("Lease 9.doc", _OLD)
    with pytest.raises(DocumentError, match=r"old Word file") as refused:
        read_document(old)
    assert "install LibreOffice" in refused.value.remedy
    new = files.docx("new.docx", [("P", "The rent is 480 euros.")])
    office = tmp_path / "office"
    # A profile that lets LibreOffice follow a document's links would make requests.
    forbids = "grep -q 'BlockUntrustedRefererLinks.*true' profile/user/registrymodifications.xcu"
    copy = f'{forbids} && cp "{new}" made/"Lease 9.docx"'
    office.write_text(f'#!/bin/sh\ncase "$*" in *"--convert-to docx"*"Lease 9.doc") mkdir made; {copy};; esac\n')
    office.chmod(0o755)
    monkeypatch.setattr(conversion, "program", lambda: str(office))
    with pytest.raises(conversion.ConversionOffer, match=r"old Word file"):
        read_document(old)
    document = read_document(old, convert=True)
    assert (document.text, document.title) == ("The rent is 480 euros.", "Lease 9")
    assert document.sha256 == hashlib.sha256(_OLD).hexdigest()
    assert document.warnings == ("LibreOffice on this machine converted the file to .docx, which was read.",)
    office.write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr(conversion, "_BY_THE_CLOCK", 0.1)
    with pytest.raises(DocumentError, match=r"old Word file.* LibreOffice could not convert it"):
        read_document(old, convert=True)
