"""Tries a model's tokenizer and chat template, which have to run before the model can be used.

Both are tried in a bounded child process (``engine.sandbox``, ``python -m engine.foreign``). This process loads a
tokenizer only after the child has loaded and used it: a tokenizer may be made to fill the memory, never end, or break
its library. A chat template is a program. The child compiles and renders it, once, into the pieces that are used
(``engine.chat_template``); it never runs in this process. Results are kept by a hash of the tried files, so that a
model is tried only at its first start. ``begin`` starts the trials of a model while this process imports its libraries;
the use of a tokenizer or a template waits for the result.

The child tries prose and runs of every sign. A tokenizer can still be made to be slow on a text of its own, by an
expression or a model that takes more than linear time. Tokenizers of known models take linear time. With any other
tokenizer each text is encoded in a child first (``Texts``), within a time that grows with the text's length: thirty
characters can be enough to stall it.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import threading
import time
import types
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine import chat_template, model_files
from engine.chat_template import ChatFormat
from engine.errors import ModelError
from engine.sandbox import Bounds, ChildFailed, Voice, run_in_child, serve

_TOKENIZER_BOUNDS = Bounds(1_200_000_000, 10.0)
_TEMPLATE_BOUNDS = Bounds(500_000_000, 4.0)
# Bounds for converting a GGUF vocabulary. One of 260,000 SentencePiece tokens takes the most; the header states its
# length, and is checked first.
_GGUF_BOUNDS = Bounds(1_500_000_000, 90.0)
_TEXT_S, _TEXT_S_PER_CHARACTER = 5.0, 2e-5  # ten times the time of an ordinary tokenizer
_TEXT_BYTES_PER_CHARACTER = 300  # memory of an encoding with its offsets
_SHORT = 10_000  # characters of a text for the permanent child
_IDLE_S = 300.0  # seconds of idleness after which the permanent child ends
_LIFE_S = 1800.0  # seconds after which the child is replaced, since its processor time is limited
_MOST_KNOWN = 1000  # texts whose results are remembered
_START_S = 30.0  # seconds for a child's start on a cold disk
_FORMAT = 2  # version of the kept results
_TRYING = "trying"
"""The child's message that a vocabulary is converted and now being tried."""
_PIECES = {"tokenizer": 1, "template": 5, "text": 0}
"""Number of words that a kept result has, by kind."""
_REMEMBERED = 64  # results that a process remembers
_MOST_FILES = 1000  # results on disk; the oldest are removed
_MOST_KEPT_BYTES = 1 << 20
_ANOTHER = "Choose another model."

MOST_ADDED = 100_000
"""Tokens added to a vocabulary at most. Models have up to some ten thousand, and the library takes 50 microseconds for
each.
"""
MOST_NAMED = 10_000
"""Special tokens that a tokenizer's settings name at most. Models have up to some thousand. transformers looks at all
of them for each one.
"""
_LARGEST_ID = 1 << 24
# Characters that a tokenizer may make of one before it cuts a text. Models make two.
_MOST_GROWTH = 16.0
_LONGEST = "model_max_length"  # its value is 10 to the power of 30 for "any"
_NUMBERED = "added_tokens_decoder"
_NAMED = ("additional_special_tokens", "extra_special_tokens")
_OTHER_FILES = ("fast_tokenizer_files", "vocab", "merges")  # settings that would replace the tried files
_SIGNS = "".join(map(chr, range(0x20, 0x7F))) + "\n\u00e9\u4e2d\u0416\u2581"
_RUN = 48  # repetitions of each sign: a badly made expression becomes slow on them
_PROSE = "The keeper's log of 1897 says: \u201cNo light, 3 nights\u201d \u2014 na\u00efve, isn't it?\r\n\r\n\tYes... "
_PROSE_TIMES = 200
_FIRST_PLANE = "".join(map(chr, (*range(0x20, 0xD800), *range(0xE000, 0xFFFE))))


_LINEAR = "linear"
"""The child's word for a tokenizer that takes linear time."""
_LINEAR_MODELS = ("BPE", "WordLevel")
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASH = _REST.replace(r"[\r\n]*", r"[\r\n/]*", 1)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_NAME = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_LINEAR_EXPRESSIONS = (
    # Sources: the bundled models, GPT-2, Llama 3, Qwen 2 and 3, Qwen 3.5, Mistral (Tekken), GPT-4o.
    "[\u201c\u201d]",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    rf"{_WORD}|{_NAME}|\p{{N}}|{_REST_WITH_SLASH}",
    rf"{_WORD}{_CONTRACTIONS}?|{_NAME}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}",
)
"""Regular expressions of known models that cut a text into words."""


# This process's side ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tried:
    """A tokenizer that proved harmless.

    Args:
        sum: hash of its files.
        linear: whether it takes linear time, so that texts need not be tried.
    """

    sum: str
    linear: bool


def begin(model: str, draft: str | None, kept: str = "") -> None:
    """Start to try the tokenizers of a model and its draft, and the model's chat template.

    Returns at once; errors are raised where tokenizers or templates are used. The template is looked for in its usual
    place. ``chat_format`` itself tries a template from another place, or with other special tokens.
    """

    def work() -> None:
        with suppress(ModelError, OSError, ValueError, RecursionError):
            for name in (model, draft):
                folder = model_files.folder_of(name) if name else None
                if folder is None:
                    continue
                model_files.check(folder)
                _begin_trial(_sum_of(folder), _tokenizer_request(folder), kept)
                if name == model and (template := _stated_template(folder)):
                    _begin_trial(*_template_trial(*template), kept)

    threading.Thread(target=work, name="trifold-trials", daemon=True).start()


def check_tokenizer(folder: Path, kept: str = "") -> Tried:
    """Try a folder's tokenizer, unless its result is known.

    Args:
        kept: folder of earlier good results; "" is none.

    Raises:
        ModelError: the tokenizer takes too much time or memory, breaks its library, or is no tokenizer.
    """
    digest = _sum_of(folder)
    return Tried(digest, _tried(digest, _tokenizer_request(folder), kept) == (_LINEAR,))


_Child = Generator[dict[str, Any], dict[str, Any] | None, None]


class Texts:
    """Tries a tokenizer on texts before this process encodes them, unless the tokenizer takes linear time.

    One permanent child tries short texts. Each longer text has a child of its own, with memory in proportion to its
    length.

    Args:
        folder: folder of the tokenizer.
        kept: as in ``check_tokenizer``, for results of long texts.
    """

    def __init__(self, tokenizer: Tried, folder: Path, kept: str = "") -> None:
        self._tokenizer, self._folder, self._kept = tokenizer, folder, kept
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
        what, bounds, at = _bounds_of(request)
        try:
            try:
                answer = self._sent(request)
            except ChildFailed as failure:
                if failure.reason not in ("crash", "memory"):
                    raise
                # a new child tells whether this text was the cause: the old one has had others, and has waited
                answer = None
            if answer is None:
                self._start(bounds)
                answer = self._sent(request)
            _answer(answer, what)
        except ChildFailed as failure:
            self.close()
            raise _failed(what, bounds, at, failure) from failure
        except ModelError:
            self.close()
            raise

    def _start(self, bounds: Bounds) -> None:
        self.close()
        self._until = time.monotonic() + _LIFE_S
        request = {"work": "texts", "folder": str(self._folder.resolve())}
        self._child = run_in_child("engine.foreign", request, bounds, self._until + _LIFE_S)
        _answer(next(self._child, None), "tokenizer")

    def _sent(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The child's answer to a request; None where there is no child, or it has ended after idling."""
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


def chat_format(template: str, tokens: Mapping[str, Any], title: str, kept: str = "") -> ChatFormat:
    """Cut a chat template into pieces around a book, in a child.

    Args:
        tokens: the tokenizer's special tokens, which a template may name.
        title: the book's title.
        kept: as in ``check_tokenizer``.

    Raises:
        ModelError: the template takes too much time or memory, or keeps no book in front of the conversation.
    """
    return ChatFormat.of_pieces(_tried(*_template_trial(template, tokens), kept), title)


def _template_trial(template: str, tokens: Mapping[str, Any]) -> tuple[str, str]:
    """The hash and the request of a chat template's trial, with the special tokens that the template names."""
    named = {name: str(token) for name, token in sorted(tokens.items()) if name in template}
    request = json.dumps({"work": "template", "template": template, "tokens": named})
    # A template that writes the date gives other pieces tomorrow.
    day = time.strftime("%Y-%m-%d") if "strftime_now" in template else ""
    return hashlib.sha256(_versions() + f"{day}\0{request}".encode()).hexdigest(), request


def _stated_template(folder: Path) -> tuple[str, dict[str, str]] | None:
    """The chat template that a folder states, with its special tokens; None where the template is elsewhere."""
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

    One child does both, since it has already loaded the tokenizer.

    Args:
        model_type: transformers' name of the model's type.

    Returns:
        The trial's result, for ``keep``.

    Raises:
        ModelError: the tokenizer takes too much time or memory, breaks its library, or is no tokenizer.
    """
    return _ask({"work": "gguf", "gguf": str(gguf.resolve()), "model_type": model_type, "out": str(out.resolve())})


def keep(folder: Path, found: Sequence[str], kept: str) -> None:
    """Keep the result of a trial for a folder's tokenizer, once the folder is final.

    Args:
        kept: as in ``check_tokenizer``.
    """
    _save(_kept_file(kept, _sum_of(folder)), found)


@lru_cache(maxsize=1)
def _versions() -> bytes:
    """The versions of the code that tries, as part of a result's name."""
    from importlib.metadata import version

    named = [_FORMAT, *(version(package) for package in ("transformers", "tokenizers", "jinja2"))]
    return json.dumps(named).encode()


_trials: dict[tuple[str, str], Future[tuple[str, ...]]] = {}
"""Results by hash and folder, and running trials. Failed ones are forgotten."""
_trials_lock = threading.Lock()


def _tried(digest: str, request: str, kept: str) -> tuple[str, ...]:
    """The result of a trial: the kept one, or a child's answer.

    Raises:
        ModelError: the trial failed.
    """
    return _begin_trial(digest, request, kept).result()


def _begin_trial(digest: str, request: str, kept: str) -> Future[tuple[str, ...]]:
    """Return the future result of a trial, which runs in a thread unless its result is known."""
    key = digest, kept
    with _trials_lock:
        if (known := _trials.get(key)) is not None:
            return known
        result: Future[tuple[str, ...]] = Future()
        _trials[key] = result
        for oldest in [each for each, trial in _trials.items() if trial.done()][: max(0, len(_trials) - _REMEMBERED)]:
            del _trials[oldest]

    def work() -> None:
        try:
            result.set_result(_result_of(digest, json.loads(request), kept))
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            with _trials_lock:
                _trials.pop(key, None)
            result.set_exception(error)

    threading.Thread(target=work, name="trifold-trial", daemon=True).start()
    return result


def _result_of(digest: str, request: dict[str, Any], kept: str) -> tuple[str, ...]:
    file = _kept_file(kept, digest)
    found = _load(file)
    if found is None or len(found) != _PIECES[request["work"]]:
        found = _ask(request)
        _save(file, found)
    return found


def _kept_file(kept: str, digest: str) -> Path | None:
    return Path(kept) / f"{digest}.json" if kept else None


def _load(file: Path | None) -> tuple[str, ...] | None:
    with suppress(OSError, ValueError, RecursionError):
        if file is not None and file.stat().st_size <= _MOST_KEPT_BYTES:
            found = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(found, list) and all(type(piece) is str for piece in found):
                return tuple(found)
    return None


def _save(file: Path | None, found: Sequence[str]) -> None:
    """Keep a result. If the disk refuses, the next start tries again."""
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
    what, bounds, at = _bounds_of(request)
    try:
        deadline = time.monotonic() + _START_S + bounds.silence_s
        with closing(run_in_child("engine.foreign", request, bounds, deadline)) as heard:
            message = next(heard, None)
            if message is not None and message["type"] == _TRYING:
                what, bounds = "tokenizer", replace(bounds, silence_s=_TOKENIZER_BOUNDS.silence_s)
                message = next(heard, None)
            return _answer(message, what)
    except ChildFailed as failure:
        raise _failed(what, bounds, at, failure) from failure


def _answer(message: Mapping[str, Any] | None, what: str) -> tuple[str, ...]:
    """Check a child's answer; None means that it gave none.

    Raises:
        ModelError: the child refuses, or gave no answer.
    """
    if message is None:
        raise ModelError(f"This model's {what} could not be tried.", _ANOTHER)
    if message["type"] == "refused":
        raise ModelError(message["cause"], message["remedy"])
    return tuple(message["value"])


def _bounds_of(request: Mapping[str, Any]) -> tuple[str, Bounds, str]:
    """The subject of a trial, its limits, and the text that they are for."""
    length = len(request.get("text", ""))
    counted = max(length, _SHORT)
    of_text = Bounds(
        _TOKENIZER_BOUNDS.memory_bytes + counted * _TEXT_BYTES_PER_CHARACTER, _TEXT_S + counted * _TEXT_S_PER_CHARACTER
    )
    return {
        "tokenizer": ("tokenizer", _TOKENIZER_BOUNDS, ""),
        "template": ("chat template", _TEMPLATE_BOUNDS, ""),
        "gguf": ("vocabulary", _GGUF_BOUNDS, ""),
        "text": ("tokenizer", of_text, f" for a text of {length:,} characters"),
    }[request["work"]]


def _failed(what: str, bounds: Bounds, at: str, failure: ChildFailed) -> ModelError:
    if failure.reason in ("time", "page time"):
        why = f"takes longer than {bounds.silence_s:.0f} seconds{at}"
    else:  # Rust ends a process that runs out of memory
        why = f"takes more than {bounds.memory_bytes / 1e9:.1f} GB of memory{at} or breaks its library"
    return ModelError(f"This model's {what} {why}.", _ANOTHER)


# The child's side ----------------------------------------------------------------------------------------------------


def _prepare(request: dict[str, Any]) -> None:
    """Import as few modules as the work needs, since a model's first start waits for this."""
    gc.disable()  # saves nine tenths of the time: there are no cycles, and everything ends with this process
    if request["work"] == "template":
        _renderer()
    elif request["work"] != "gguf" and (Path(request["folder"]) / model_files.TOKENIZER).exists():
        importlib.import_module("tokenizers")
    else:
        sys.modules["torch"] = None  # type: ignore[assignment]  # it is of no use here, and takes a second
        importlib.import_module("transformers").AutoTokenizer  # noqa: B018 - imported when it is named


@lru_cache(maxsize=1)
def _renderer() -> Any:
    """transformers' own renderer of templates, without the second that importing all of transformers takes."""
    name = "transformers.utils.chat_template_utils"
    spec = importlib.util.find_spec("transformers")
    places = (spec.submodule_search_locations if spec else None) or ()
    for package, parts in (("transformers", ()), ("transformers.utils", ("utils",))):
        bare = types.ModuleType(package)
        bare.__path__ = [str(Path(place, *parts)) for place in places]
        sys.modules[package] = bare
    try:
        return importlib.import_module(name).render_jinja_template
    except (ImportError, AttributeError):  # another version: take the slow way
        for package in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
            del sys.modules[package]
        return importlib.import_module(name).render_jinja_template


def _work(request: dict[str, Any], voice: Voice) -> None:
    found: tuple[str, ...] = ()
    if request["work"] == "template":
        found = _render(request["template"], request["tokens"])
    elif request["work"] == "tokenizer":
        found = (_try_tokenizer(Path(request["folder"])),)
    elif request["work"] == "text":
        _encode(_load_tokenizer(Path(request["folder"]))[0], request)
    elif request["work"] == "texts":
        tokenizer, _ = _load_tokenizer(Path(request["folder"]))
        voice.say({"type": "answer", "value": ()})
        while (asked := voice.hear(_IDLE_S)) is not None:
            _encode(tokenizer, asked)
            voice.say({"type": "answer", "value": ()})
        return
    else:
        made, stated = _convert(Path(request["gguf"]), request["model_type"], Path(request["out"]))
        voice.say({"type": _TRYING, "within_s": _TOKENIZER_BOUNDS.silence_s})
        _check_settings(Path(request["out"]))
        _check_stated(stated)
        found = (_use(made, stated),)
    voice.say({"type": "answer", "value": found})


def _encode(tokenizer: Any, request: Mapping[str, Any]) -> None:
    tokenizer.encode_special_tokens = request["split"]
    tokenizer.encode(request["text"], add_special_tokens=False)


def _render(template: str, tokens: Mapping[str, str]) -> tuple[str, ...]:
    def render(messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
        chats = [[dict(message) for message in messages]]
        rendered: tuple[list[str], Any] = _renderer()(
            conversations=chats, chat_template=template, add_generation_prompt=add_generation_prompt, **tokens
        )
        return rendered[0][0]

    return chat_template.chat_format(render, "").pieces


def _convert(gguf: Path, model_type: str, out: Path) -> tuple[Any, Any]:
    """Write transformers' form of a vocabulary. transformers alone would read the file twice, 300,000 words one by one.

    Returns:
        The result of ``_load_tokenizer``.
    """
    from transformers import AutoConfig, AutoTokenizer

    from engine.model import gguf_header

    fields, _ = gguf_header.read(gguf, vocabulary=True)
    with _known_header(fields, model_type), tempfile.TemporaryDirectory(dir=out) as alone:
        (Path(alone) / gguf.name).touch()  # other files in the folder would change the meaning
        tokenizer = AutoTokenizer.from_pretrained(
            alone, gguf_file=gguf.name, config=AutoConfig.for_model(model_type), trust_remote_code=False
        )
    tokenizer.save_pretrained(out)
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = [" ".join(pair) for pair in content["model"].get("merges") or ()]
    if merges and all(pair.count(" ") == 1 for pair in merges):  # half of the bytes
        content["model"]["merges"] = merges
    compact = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    (out / model_files.TOKENIZER).write_text(compact, encoding="utf-8")
    return _unlimited(tokenizer.backend_tokenizer), content


@contextmanager
def _known_header(fields: Mapping[str, Any], model_type: str) -> Iterator[None]:
    """Make transformers find these fields in every GGUF file, without its modules that read them, which need torch, and
    without making settings of them.
    """
    package = vars(importlib.import_module("transformers.integrations.gguf"))
    reads, makes = "read_gguf_metadata", "GGUF_CONFIG_ARCHS"  # the package keeps these functions after their first use
    reader = types.ModuleType(f"{package['__name__']}.reader")
    settings = types.ModuleType("transformers.modeling_gguf_pytorch_utils")
    vars(reader)[reads] = lambda *_: (fields, ())
    vars(settings)["load_gguf_checkpoint"] = lambda *_, **__: {"config": {"model_type": model_type}}
    kept = {each.__name__: sys.modules.pop(each.__name__, None) for each in (reader, settings)}
    package.pop(reads, None)
    package[makes] = ()
    sys.modules.update({each.__name__: each for each in (reader, settings)})
    try:
        yield
    finally:
        del package[makes]
        package.pop(reads, None)
        for name, module in kept.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def _load_tokenizer(folder: Path) -> tuple[Any, Any]:
    """Load a tokenizer of the library. Return it with its JSON; None where the library has none for it."""
    _check_settings(folder)
    path = folder / model_files.TOKENIZER
    if path.exists():
        from tokenizers import Tokenizer

        content = path.read_bytes()
        stated = json.loads(content)
        _check_stated(stated)
        tokenizer: Any = Tokenizer.from_buffer(content)
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        tokenizer = getattr(tokenizer, "backend_tokenizer", None)
        if tokenizer is None:  # reported where the tokenizer is loaded
            return None, None
        stated = json.loads(tokenizer.to_str())
        _check_stated(stated)
    return _unlimited(tokenizer), stated


def _unlimited(tokenizer: Any) -> Any:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _try_tokenizer(folder: Path) -> str:
    """Load a tokenizer and use it by ``_use``."""
    tokenizer, stated = _load_tokenizer(folder)
    return "" if tokenizer is None else _use(tokenizer, stated)


def _use(tokenizer: Any, stated: Mapping[str, Any]) -> str:
    """Use a tokenizer. Return whether it takes linear time."""
    if tokenizer.normalizer is not None:
        grown = len(tokenizer.normalizer.normalize_str(_FIRST_PLANE))
        if grown > _MOST_GROWTH * len(_FIRST_PLANE):
            raise ModelError("This model's tokenizer makes texts much longer before it cuts them.", _ANOTHER)
    for special in (True, False):
        tokenizer.encode_special_tokens = special
        for text in (_PROSE * _PROSE_TIMES, *(sign * _RUN + other for sign, other in _pairs())):
            encoded = tokenizer.encode(text, add_special_tokens=False)
            if len(text) > len(_PROSE) and not encoded.ids:
                raise ModelError("This model's tokenizer makes no token of a text.", _ANOTHER)
            tokenizer.decode(encoded.ids, skip_special_tokens=True)
    return _LINEAR if is_linear(stated) else ""


def is_linear(stated: Mapping[str, Any]) -> bool:
    """Whether the tokenizer of a ``tokenizer.json`` takes linear time: it cuts words by known expressions, and joins
    pairs.

    SentencePiece models with scores are not linear: they look at every piece that may begin at a character, however
    long.
    """
    model = stated.get("model")
    parts = [stated.get(name) for name in ("normalizer", "pre_tokenizer")]
    return (
        isinstance(model, dict)
        and model.get("type") in _LINEAR_MODELS
        and all(expression in _LINEAR_EXPRESSIONS for part in parts for expression in _expressions(part))
    )


def _expressions(part: Any) -> Iterator[Any]:
    """All regular expressions in a part of ``tokenizer.json``."""
    values: Any = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    if isinstance(part, dict) and "Regex" in part:
        yield part["Regex"]
    for value in values:
        yield from _expressions(value)


def _pairs() -> Iterator[tuple[str, str]]:
    """Every sign, with another sign that ends a run of it."""
    return ((sign, "!" if sign != "!" else "a") for sign in _SIGNS)


def _check_settings(folder: Path) -> None:
    """Check the files next to ``tokenizer.json``, from which the library adds tokens one by one."""
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        path = folder / name
        stated = json.loads(path.read_bytes()) if path.exists() else {}
        if not isinstance(stated, dict):
            raise ModelError(f"{name} is broken: it holds no JSON object.", _ANOTHER)
        if odd := [key for key in _OTHER_FILES if stated.get(key)]:
            raise ModelError(f"{name} names other files or words ({odd[0]}) for the tokenizer.", _ANOTHER)
        for key, value in stated.items():  # some classes of transformers add this many tokens
            if type(value) is int and value > MOST_ADDED and name == "tokenizer_config.json" and key != _LONGEST:
                raise ModelError(f"{name} is broken: {key} is {value:,}.", _ANOTHER)
        lists = [stated[key] for key in _NAMED if isinstance(stated.get(key), list | dict)]
        _check_added(max(map(len, lists), default=0), MOST_NAMED)
        _check_added(len(stated))
        numbered = stated.get(_NUMBERED)
        if isinstance(numbered, dict):
            _check_added(len(numbered))
            _check_ids(int(key) for key in numbered if key.isdecimal())
        if name == "added_tokens.json":
            _check_ids(stated.values())


def _check_stated(stated: Any) -> None:
    """Check the numbers in ``tokenizer.json`` before anything is allocated by them."""
    if not isinstance(stated, dict):
        raise ModelError("tokenizer.json is broken: it holds no JSON object.", _ANOTHER)
    added, model = stated.get("added_tokens") or (), stated.get("model")
    _check_added(len(added))
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(model, dict) and model.get("dropout"):
        raise ModelError("This model's tokenizer cuts words by chance (dropout).", _ANOTHER)
    _check_ids(each.get("id") for each in added if isinstance(each, dict))
    _check_ids(vocabulary.values() if isinstance(vocabulary, dict) else ())
    for part in ("normalizer", "decoder"):
        growth = 1.0
        for step in _steps(stated.get(part)):
            growth *= _growth(step)
        if growth > _MOST_GROWTH:
            raise ModelError(f"This model's tokenizer makes {growth:,.0f} characters of one ({part}).", _ANOTHER)


def _check_added(count: int, most: int = MOST_ADDED) -> None:
    if count > most:
        raise ModelError(f"This model's tokenizer adds {count:,} tokens to its vocabulary.", _ANOTHER)


def _check_ids(ids: Any) -> None:
    largest = max((number for number in ids if type(number) is int), default=0)
    if largest > _LARGEST_ID:
        raise ModelError(f"This model's tokenizer has a token of the id {largest:,}.", _ANOTHER)


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or decoder, with the steps of sequences one by one."""
    if isinstance(part, dict):
        inner = [each for name in ("normalizers", "decoders") for each in part.get(name) or ()]
        for each in inner:
            yield from _steps(each)
        if not inner:
            yield part


def _growth(step: Mapping[str, Any]) -> float:
    """Most characters that a step makes of one."""
    if step.get("type") == "Prepend":
        return 1.0 + len(str(step.get("prepend", "")))
    if step.get("type") != "Replace":
        return 1.0
    content, pattern = len(str(step.get("content", ""))), step.get("pattern")
    named = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(named, str) and named:
        return max(1.0, content / len(named))
    return 1.0 + content  # an expression may match between any two characters


def _refusal(error: BaseException) -> dict[str, Any]:
    if isinstance(error, ModelError):
        return {"type": "refused", "cause": error.cause, "remedy": error.remedy}
    said = " ".join(str(error).split())[:_REASON].rstrip(".!") or type(error).__name__
    if isinstance(error, KeyError):
        said = f"it lacks {said}"
    return {"type": "refused", "cause": f"This model's tokenizer cannot be used: {said}.", "remedy": _ANOTHER}


_REASON = 200  # characters of a library's message


if __name__ == "__main__":
    serve(_work, _refusal, _prepare)
