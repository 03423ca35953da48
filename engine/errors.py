"""Every error that Trifold raises on purpose, as one small tree.

    TrifoldError
      InputError            what the person gave cannot be used
        DocumentError       the file cannot be read as a book
          PasswordNeeded    the document is encrypted and the password is missing or wrong
          NoTextLayer       the pages are images
        ContextTooSmall     the book and the question do not fit in the window
        OptionError         a setting is unknown or out of range
      ModelError            the model folder cannot be used
        ModelNotFound       there is no such folder, or the hub cannot be reached
        UnsupportedModel    the engine does not support the architecture
        VocabularyMismatch  draft and target do not share a vocabulary
      ResourceError         this machine lacks memory, disk space or a port
      SnapshotRefused       the saved KV of a book cannot be used; the book is read again
        SnapshotUnreadable  the saved KV could not be opened this time; it may be intact
      EngineError           the engine failed while working; the request is lost, the session is not
        Busy                another question is being answered
        Closed              the engine serves nothing more: it has been shut down, or its GPU has failed

A message says the cause; ``remedy`` says what the person can do. Both are sentences for the person who uses the
program: they name files and numbers, never classes. They may quote a file or a library, so they are put on one line
without control characters. This module does not decide how an error is shown.
"""

from __future__ import annotations

import re

__all__ = [
    "CONTROLS",
    "Busy",
    "Closed",
    "ContextTooSmall",
    "DocumentError",
    "EngineError",
    "InputError",
    "ModelError",
    "ModelNotFound",
    "NoTextLayer",
    "OptionError",
    "PasswordNeeded",
    "ResourceError",
    "SnapshotRefused",
    "SnapshotUnreadable",
    "TrifoldError",
    "UnsupportedModel",
    "VocabularyMismatch",
    "on_one_line",
    "plain",
]

# Phrases in out-of-memory errors, in this order: torch's allocators for GPUs, cuBLAS (the second phrase if there is no
# memory for its handle), torch's allocator on a CPU, Windows, Metal (a buffer is too large), and Intel's driver (three
# phrases).
_OUT_OF_MEMORY = (
    "out of memory",
    "cublas_status_alloc_failed",
    "cublas_status_not_initialized",
    "can't allocate memory",
    "not enough memory",
    "invalid buffer size",
    "out_of_device_memory",
    "out_of_host_memory",
    "out_of_resources",
)
CONTROLS = (*range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that control a terminal: all controls except tab and line break, and marks that change the direction of
text.
"""

LONGEST_SENTENCE = 1000
"""Maximum characters of a cause or a remedy."""

_PLAIN = dict.fromkeys(CONTROLS, "\ufffd")
_CARD = re.compile(r"\bGPU (\d+) has a total capacity")


def plain(text: str) -> str:
    """Replace each control character of a text by a visible sign, except tabs and line breaks."""
    return text.translate(_PLAIN)


def on_one_line(text: str) -> str:
    """Return a text on one line, with a visible sign for each control character."""
    return plain(" ".join(text.split()))


def _shortened(sentence: str) -> str:
    """Cut the middle out of a sentence that is too long, usually because it quotes a long text."""
    half = LONGEST_SENTENCE // 2
    return sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:half]} \u2026 {sentence[-half:]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out, on a GPU or in this process. torch raises such errors as
    RuntimeError.
    """
    text = str(error).lower()
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(words in text for words in _OUT_OF_MEMORY)
    )


def full_card(error: BaseException | None) -> int | None:
    """The number of the GPU whose memory ran out, if torch's message names it; else None."""
    match = _CARD.search(str(error))
    return int(match[1]) if match else None


class TrifoldError(Exception):
    """Base of all errors meant for a person.

    Args:
        cause: one sentence: what is wrong, with the names and numbers.
        remedy: one sentence: what to do about it; may be empty.
    """

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause, self.remedy = (_shortened(on_one_line(words)) for words in (cause, remedy))
        super().__init__(f"{self.cause} {self.remedy}".strip())


class InputError(TrifoldError):
    """What the person gave cannot be used."""


class DocumentError(InputError):
    """The file cannot be read as a book."""


class PasswordNeeded(DocumentError):
    """The document is encrypted and the password is missing or wrong."""


class NoTextLayer(DocumentError):
    """The pages of the document are images without text."""


class ContextTooSmall(InputError):
    """The book and the question do not fit in the window."""


class OptionError(InputError):
    """A setting is unknown or out of range."""


class ModelError(TrifoldError):
    """The model folder cannot be used."""


class ModelNotFound(ModelError):
    """There is no such model folder, or the hub cannot be reached."""


class UnsupportedModel(ModelError):
    """The engine does not support the architecture."""


class VocabularyMismatch(ModelError):
    """Draft and target do not share a vocabulary."""


class ResourceError(TrifoldError):
    """This machine lacks what the work needs: memory, disk space or a port."""


class SnapshotRefused(TrifoldError):
    """The saved KV of a book cannot be used; the book is read again."""


class SnapshotUnreadable(SnapshotRefused):
    """Saved KV could not be opened this time, for example because memory ran out; it may be intact."""


class EngineError(TrifoldError):
    """The engine failed while working; the request is lost, the session is not."""


class Busy(EngineError):
    """Another question is being answered."""


class Closed(EngineError):
    """The engine serves nothing more: it has been shut down, or its GPU no longer computes for this process."""
