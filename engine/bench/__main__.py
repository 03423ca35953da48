"""``python -m engine.bench``: the bench without the app, where only torch and transformers are installed.

Books are plain text files here. Without --model the demo pair is used, and without --book the sample book.
"""

from __future__ import annotations

import sys
from pathlib import Path

from engine.bench import main
from engine.bench.bundled import DRAFT, SAMPLE, TARGET
from engine.document import Document, Page
from engine.errors import TrifoldError
from engine.threads import sleep_while_waiting


def open_text(path: Path) -> Document:
    """A text file as a document of one page."""
    return Document(path.stem, "", (Page(1, "1", path.read_text(encoding="utf-8")),), "text", "")


if __name__ == "__main__":
    sleep_while_waiting()
    try:
        sys.exit(main(sys.argv[1:], model=TARGET, draft=DRAFT, book=SAMPLE, open_book=open_text))
    except TrifoldError as error:
        sys.exit(str(error))
