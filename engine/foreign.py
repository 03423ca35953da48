"""Tries a model's tokenizer and chat template. Both are untrusted, and both must run before the model can be used.

Both are tried in a child process with limits on memory and time (``engine.sandbox``, ``engine.foreign_child``). A
malicious tokenizer may fill the memory, never end, or crash its library. So this process loads a tokenizer only after a
child has loaded and used it. A chat template is a program. The child compiles it and renders it once into pieces
(``engine.chat_template``). This process uses only the pieces. Results are stored under a hash of the tried files, so
that a model is tried only when it is started for the first time. ``begin`` starts the checks of a model while this
process imports its libraries. Every use of a tokenizer or a template waits for its result.

A tokenizer that passed its check may still stall on a particular text of only thirty characters, if a regular
expression or the tokenizer's model takes more than linear time. Known tokenizers take linear time. With any other
tokenizer a child encodes each text first (``Texts``), with a time limit that grows with the text's length.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine import model_files
from engine.chat_template import PIECES, ChatFormat
from engine.errors import ModelError
from engine.foreign_child import ANOTHER, LINEAR, TRYING, USE_S
from engine.sandbox import Bounds, ChildFailed, run_in_child

__all__ = ["keep"]

_TOKENIZER_BOUNDS = Bounds(1_200_000_000, USE_S)
_TEMPLATE_BOUNDS = Bounds(500_000_000, 4.0)
# Limits for converting a GGUF vocabulary, set for the known vocabulary that needs the most memory and time (260,000
# SentencePiece tokens).
_GGUF_BOUNDS = Bounds(1_500_000_000, 90.0)
# Maximum seconds for encoding a text of any length. ``_TEXT_S_PER_CHARACTER`` is added for each character. Both limits
# are ten times what an ordinary tokenizer takes.
TEXT_S = 5.0
# Seconds that are added to ``TEXT_S`` for each character of a text.
_TEXT_S_PER_CHARACTER = 2e-5
_TEXT_BYTES_PER_CHARACTER = 300  # bytes of memory for encoding a text with offsets, per character of the text
# Maximum characters of a text that the permanent child process tries; each longer text gets its own child.
_SHORT = 10_000
# seconds after which the permanent child is replaced, before it reaches the limit of its processor time
_LIFE_S = 1800.0
_MOST_KNOWN = 1000  # number of tried texts that ``Texts`` remembers; at this number it forgets them all
_START_S = 30.0  # maximum seconds for a child's start, enough for a cold disk
_FORMAT = 3  # version of the stored results
_PIECES = {"tokenizer": 1, "template": PIECES, "text": 0}
"""Number of strings in a stored result, keyed by the kind of check."""
_REMEMBERED = 64  # maximum results of checks that a process keeps in memory
_MOST_FILES = 1000  # maximum results on disk; the oldest are removed
_MOST_KEPT_BYTES = 1 << 20  # maximum bytes of a file with a stored result; a larger file is not read


@dataclass(frozen=True)
class Tried:
    """A tokenizer that proved harmless.

    Args:
        sum: hash of the tokenizer's files.
        linear: whether the tokenizer takes linear time, so that texts need not be tried.
    """

    sum: str
    linear: bool


def begin(model: str, draft: str | None, results_folder: str = "") -> None:
    """Start to try the tokenizers of a model and its draft, and the model's chat template.

    Returns at once. If a check fails, the error is raised where the tokenizer or template is used. The template is
    tried here only if it is in the tokenizer's folder. ``chat_format`` tries a template from another place, or with
    different special tokens.
    """

    def work() -> None:
        with suppress(ModelError, OSError, ValueError, RecursionError):
            for name in (model, draft):
                folder = model_files.folder_of(name) if name else None
                if folder is None:
                    continue
                model_files.check(folder)
                _begin_check(_sum_of(folder), _tokenizer_request(folder), results_folder)
                if name == model and (template := _stated_template(folder)):
                    _begin_check(*_template_check(*template), results_folder)

    threading.Thread(target=work, name="trifold-checks", daemon=True).start()


def check_tokenizer(folder: Path, results_folder: str = "") -> Tried:
    """Try a folder's tokenizer, unless its result is known.

    Args:
        results_folder: folder with earlier good results; "" means none.

    Raises:
        ModelError: the tokenizer takes too much time or memory, breaks its library, or is no tokenizer.
    """
    digest = _sum_of(folder)
    return Tried(digest, _tried(digest, _tokenizer_request(folder), results_folder) == (LINEAR,))


_Child = Generator[dict[str, Any], dict[str, Any] | None, None]


class Texts:
    """Tries a tokenizer on texts before this process encodes them, unless the tokenizer takes linear time.

    One permanent child tries short texts. Each longer text gets a separate child, with memory in proportion to its
    length.

    Args:
        folder: folder of the tokenizer.
        results_folder: as in ``check_tokenizer``, for results of long texts.
    """

    def __init__(self, tokenizer: Tried, folder: Path, results_folder: str = "") -> None:
        self._tokenizer, self._folder, self._kept = tokenizer, folder, results_folder
        self._known: set[tuple[str, bool]] = set()
        self._child: _Child | None = None
        self._until = 0.0
        self._lock = threading.Lock()

    def check(self, text: str, *, split_special_tokens: bool) -> None:
        """Try one text, unless its result is known.

        Raises:
            ModelError: the tokenizer takes too much time or memory for this length, or breaks its library.
        """
        if self._tokenizer.linear:
            return
        if len(text) > _SHORT:
            digest = hashlib.sha256(
                f"{self._tokenizer.sum}\0{split_special_tokens}\0".encode() + text.encode("utf-8", "replace")
            )
            request = self._request(text, split_special_tokens)
            _tried(digest.hexdigest(), json.dumps(request), self._kept)
            return
        with self._lock:
            if (text, split_special_tokens) not in self._known:
                self._try(self._request(text, split_special_tokens))
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known.add((text, split_special_tokens))

    def _request(self, text: str, split: bool) -> dict[str, Any]:
        return {"work": "text", "folder": str(self._folder.resolve()), "text": text, "split": split}

    def _try(self, request: dict[str, Any]) -> None:
        what, bounds, ending = _bounds_of(request)
        try:
            try:
                answer = self._sent(request)
            except ChildFailed as failure:
                if failure.reason not in ("crash", "memory"):
                    raise
                # The child may have failed because of earlier texts. So this text is tried again in a new child.
                answer = None
            if answer is None:
                self._start(bounds)
                answer = self._sent(request)
            _answer(answer, what)
        except ChildFailed as failure:
            self.close()
            raise _failed(what, bounds, ending, failure) from failure
        except ModelError:
            self.close()
            raise

    def _start(self, bounds: Bounds) -> None:
        self.close()
        self._until = time.monotonic() + _LIFE_S
        request = {"work": "texts", "folder": str(self._folder.resolve())}
        self._child = run_in_child("engine.foreign_child", request, bounds, self._until + _LIFE_S)
        _answer(next(self._child, None), "tokenizer")

    def _sent(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request to the child and return its answer. None if there is no child, its time is over, or it has
        ended.
        """
        if self._child is None or time.monotonic() > self._until:
            return None
        try:
            return self._child.send(request)
        except StopIteration:
            return None

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()
        self._child = None


def _sum_of(folder: Path) -> str:
    """A hash of all files of a folder's tokenizer."""
    digest = hashlib.sha256(_versions())
    for path in model_files.tokenizer_files(folder):
        content = model_files.content(path)
        digest.update(f"\0{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _tokenizer_request(folder: Path) -> str:
    return json.dumps({"work": "tokenizer", "folder": str(folder.resolve())})


def chat_format(template: str, tokens: Mapping[str, Any], title: str, results_folder: str = "") -> ChatFormat:
    """In a child process, cut a chat template into the pieces that it writes before and after a book, questions and
    answers.

    Args:
        tokens: the tokenizer's special tokens, which a template may name.
        title: the book's title.
        results_folder: as in ``check_tokenizer``.

    Raises:
        ModelError: the template takes too much time or memory, or does not keep the book before the conversation.
    """
    return ChatFormat.of_pieces(_tried(*_template_check(template, tokens), results_folder), title)


def _template_check(template: str, tokens: Mapping[str, Any]) -> tuple[str, str]:
    """The hash and the request of a chat template's check, with the special tokens that the template names."""
    named = {name: str(token) for name, token in sorted(tokens.items()) if name in template}
    request = json.dumps({"work": "template", "template": template, "tokens": named})
    # A template that writes the date gives different pieces every day, so the date is part of the hash.
    day = time.strftime("%Y-%m-%d") if "strftime_now" in template else ""
    return hashlib.sha256(_versions() + f"{day}\0{request}".encode()).hexdigest(), request


def _stated_template(folder: Path) -> tuple[str, dict[str, str]] | None:
    """The chat template in a folder's files, with its special tokens; None if neither the template file nor the
    tokenizer's settings hold a template.
    """
    settings = model_files.read_object(folder / "tokenizer_config.json")
    path = folder / model_files.TEMPLATE
    template = model_files.content(path).decode() if path.exists() else settings.get("chat_template")
    tokens = {}
    for name, token in settings.items():
        token = token.get("content") if isinstance(token, dict) else token
        if name.endswith("_token") and isinstance(token, str):
            tokens[name] = token
    return (template, tokens) if isinstance(template, str) else None


def save_gguf_tokenizer(gguf: Path, model_type: str, out: Path) -> tuple[str, ...]:
    """Write the tokenizer that a GGUF file describes into a folder, in transformers' form, and try it.

    The same child writes and tries the tokenizer, so that it is loaded only once.

    Args:
        model_type: transformers' name of the model's type.

    Returns:
        The check's result, for ``keep``.

    Raises:
        ModelError: the tokenizer takes too much time or memory, breaks its library, or is no tokenizer.
    """
    return _ask({"work": "gguf", "gguf": str(gguf.resolve()), "model_type": model_type, "out": str(out.resolve())})


def keep(folder: Path, found: Sequence[str], results_folder: str) -> None:
    """Store the result of trying a folder's tokenizer. Call this after the last change to the folder's files, because
    the result is stored under a hash of them.

    Args:
        results_folder: as in ``check_tokenizer``.
    """
    _save(_kept_file(results_folder, _sum_of(folder)), found)


@lru_cache(maxsize=1)
def _versions() -> bytes:
    """The versions of the libraries that a check uses, and the version of the format of stored results. They are part
    of every hash under which a result is stored.
    """
    from importlib.metadata import version

    named = [_FORMAT, *(version(package) for package in ("transformers", "tokenizers", "jinja2"))]
    return json.dumps(named).encode()


_checks: dict[tuple[str, str], Future[tuple[str, ...]]] = {}
"""Running checks, and the newest results, keyed by hash and by the folder of stored results. Failed checks are
removed.
"""
_checks_lock = threading.Lock()


def _tried(digest: str, request: str, results_folder: str) -> tuple[str, ...]:
    """The result of a check: the stored result, or a child's answer.

    Raises:
        ModelError: the check failed.
    """
    return _begin_check(digest, request, results_folder).result()


def _begin_check(digest: str, request: str, results_folder: str) -> Future[tuple[str, ...]]:
    """Return the future result of a check, which runs in a thread unless its result is known."""
    key = digest, results_folder
    with _checks_lock:
        if (known := _checks.get(key)) is not None:
            return known
        result: Future[tuple[str, ...]] = Future()
        _checks[key] = result
        for oldest in [each for each, check in _checks.items() if check.done()][: max(0, len(_checks) - _REMEMBERED)]:
            del _checks[oldest]

    def work() -> None:
        try:
            result.set_result(_result_of(digest, json.loads(request), results_folder))
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            with _checks_lock:
                _checks.pop(key, None)
            result.set_exception(error)

    threading.Thread(target=work, name="trifold-check", daemon=True).start()
    return result


def _result_of(digest: str, request: dict[str, Any], results_folder: str) -> tuple[str, ...]:
    file = _kept_file(results_folder, digest)
    pieces = _load(file)
    if pieces is None or len(pieces) != _PIECES[request["work"]]:
        pieces = _ask(request)
        _save(file, pieces)
    return pieces


def _kept_file(results_folder: str, digest: str) -> Path | None:
    return Path(results_folder) / f"{digest}.json" if results_folder else None


def _load(file: Path | None) -> tuple[str, ...] | None:
    with suppress(OSError, ValueError, RecursionError):
        if file is not None and file.stat().st_size <= _MOST_KEPT_BYTES:
            pieces = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(pieces, list) and all(type(piece) is str for piece in pieces):
                return tuple(pieces)
    return None


def _save(file: Path | None, found: Sequence[str]) -> None:
    """Store a result. If the disk cannot be written, the next start tries again."""
    if file is None:
        return
    partial = file.with_name(f".{file.name}-{os.getpid()}")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(found), encoding="utf-8")
        os.replace(partial, file)
        others = sorted(file.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for oldest in others[:-_MOST_FILES]:
            oldest.unlink()


def _ask(request: dict[str, Any]) -> tuple[str, ...]:
    what, bounds, ending = _bounds_of(request)
    try:
        deadline = time.monotonic() + _START_S + bounds.silence_s
        with closing(run_in_child("engine.foreign_child", request, bounds, deadline)) as heard:
            message = next(heard, None)
            if message is not None and message["type"] == TRYING:
                what, bounds = "tokenizer", replace(bounds, silence_s=_TOKENIZER_BOUNDS.silence_s)
                message = next(heard, None)
            return _answer(message, what)
    except ChildFailed as failure:
        raise _failed(what, bounds, ending, failure) from failure


def _answer(message: Mapping[str, Any] | None, part: str) -> tuple[str, ...]:
    """Check a child's answer; None means that the child gave none.

    Raises:
        ModelError: the child refuses, or gave no answer.
    """
    if message is None:
        raise ModelError(f"This model's {part} could not be tried.", ANOTHER)
    if message["type"] == "refused":
        raise ModelError(message["cause"], message["remedy"])
    return tuple(message["value"])


def _bounds_of(request: Mapping[str, Any]) -> tuple[str, Bounds, str]:
    """Return what a check is about ("tokenizer", for example), its limits, and the ending of its error message. The
    ending states the text's length; it is empty if no text is tried.
    """
    length = len(request.get("text", ""))
    counted = max(length, _SHORT)
    of_text = Bounds(
        _TOKENIZER_BOUNDS.memory_bytes + counted * _TEXT_BYTES_PER_CHARACTER, TEXT_S + counted * _TEXT_S_PER_CHARACTER
    )
    return {
        "tokenizer": ("tokenizer", _TOKENIZER_BOUNDS, ""),
        "template": ("chat template", _TEMPLATE_BOUNDS, ""),
        "gguf": ("vocabulary", _GGUF_BOUNDS, ""),
        "text": ("tokenizer", of_text, f" for a text of {length:,} characters"),
    }[request["work"]]


def _failed(part: str, bounds: Bounds, ending: str, failure: ChildFailed) -> ModelError:
    if failure.reason == "busy":
        return ModelError(f"This model's {part} was not tried in time, because this machine is too busy.", "Try again.")
    if failure.reason in ("time", "page time"):
        why = f"takes longer than {bounds.silence_s:.0f} seconds{ending}"
    else:  # the tokenizers library crashes if memory runs out, so a crash may also mean too little memory
        why = f"takes more than {bounds.memory_bytes / 1e9:.1f} GB of memory{ending} or breaks its library"
    return ModelError(f"This model's {part} {why}.", ANOTHER)
