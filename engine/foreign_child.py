"""Loads and uses a model's tokenizer, or renders its chat template, in a bounded child process.

    python -m engine.foreign_child        started by ``engine.foreign``, as a child of ``engine.sandbox``

The counts and ids in a tokenizer's files are checked first, because a library would allocate memory for them. Then the
tokenizer is loaded, and used on prose and on runs of a repeated character. A GGUF file's vocabulary is first converted
to transformers' format. A chat template is cut into pieces. The parent process uses only these pieces, and loads a
tokenizer only after the child has tried it.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import json
import sys
import tempfile
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from engine import chat_template, model_files
from engine.errors import ModelError
from engine.sandbox import Voice, serve

TRYING = "trying"
"""The child's message after it has converted a vocabulary, before it tries the tokenizer."""
USE_S = 10.0
"""Maximum seconds for loading and using a tokenizer."""
IDLE_S = 300.0
"""Seconds of idleness after which the permanent child ends."""
ANOTHER = "Choose another model."
"""The remedy for a model that cannot be used."""

MOST_ADDED = 100_000
"""Maximum number of tokens that may be added to a vocabulary. Real models add at most some ten thousand. The tokenizers
library takes 50 microseconds for each added token.
"""
MOST_NAMED = 10_000
"""Maximum number of special tokens that a tokenizer's settings may name. Real models name at most some thousand.
transformers takes quadratic time, because for each token it looks at all special tokens.
"""
_LARGEST_ID = 1 << 24
# Maximum factor by which a normalizer may lengthen a text, or by which a decoder may lengthen a token. Real models make
# at most two characters out of one.
_MOST_GROWTH = 16.0
# The only setting that may be larger than ``MOST_ADDED``. Tokenizers state 10 to the power of 30 for "any length".
_LONGEST = "model_max_length"
_NUMBERED = "added_tokens_decoder"
_NAMED = ("additional_special_tokens", "extra_special_tokens")
# Settings that name further files or words. The check has not seen these, so the settings are not allowed.
_OTHER_FILES = ("fast_tokenizer_files", "vocab", "merges")
_SIGNS = "".join(map(chr, range(0x20, 0x7F))) + "\n\u00e9\u4e2d\u0416\u2581"
_RUN = 48  # number of repetitions of a character, enough to make a regular expression with exponential time slow
_PROSE = "The keeper's log of 1897 says: \u201cNo light, 3 nights\u201d \u2014 na\u00efve, isn't it?\r\n\r\n\tYes... "
_PROSE_TIMES = 200
_FIRST_PLANE = "".join(map(chr, (*range(0x20, 0xD800), *range(0xE000, 0xFFFE))))
_REASON = 200  # maximum characters quoted from a library's message

LINEAR = "linear"
"""The child's answer for a tokenizer that takes linear time."""
_LINEAR_MODELS = ("BPE", "WordLevel")
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_WITH_SLASH = _REST.replace(r"[\r\n]*", r"[\r\n/]*", 1)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
_NAME = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
_LINEAR_EXPRESSIONS = (
    # The expressions belong, in this order, to the bundled models, GPT-2, Llama 3, Qwen 2 and 3, Qwen 3.5, Mistral
    # (Tekken) and GPT-4o.
    "[\u201c\u201d]",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    rf"{_WORD}|{_NAME}|\p{{N}}|{_REST_WITH_SLASH}",
    rf"{_WORD}{_CONTRACTIONS}?|{_NAME}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_REST_WITH_SLASH}",
)
"""Regular expressions with which known models cut a text into words."""


def _prepare(request: dict[str, Any]) -> None:
    """Import only the modules that the requested work needs, because a model's first start waits for these imports."""
    # Garbage collection would take nine tenths of the time. It is not needed: all memory is freed when this process
    # ends.
    gc.disable()
    if request["work"] == "template":
        _renderer()
    elif request["work"] != "gguf" and (Path(request["folder"]) / model_files.TOKENIZER).exists():
        importlib.import_module("tokenizers")
    else:
        sys.modules["torch"] = None  # type: ignore[assignment]  # not needed, and importing torch takes a second
        importlib.import_module("transformers").AutoTokenizer  # noqa: B018 - the access imports it


@lru_cache(maxsize=1)
def _renderer() -> Any:
    """transformers' renderer of templates. Avoids importing all of transformers, which takes a second."""
    name = "transformers.utils.chat_template_utils"
    spec = importlib.util.find_spec("transformers")
    places = (spec.submodule_search_locations if spec else None) or ()
    for package, parts in (("transformers", ()), ("transformers.utils", ("utils",))):
        bare = types.ModuleType(package)
        bare.__path__ = [str(Path(place, *parts)) for place in places]
        sys.modules[package] = bare
    try:
        return importlib.import_module(name).render_jinja_template
    except (ImportError, AttributeError):  # in a different version of transformers, all of the package is imported
        for package in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
            del sys.modules[package]
        return importlib.import_module(name).render_jinja_template


def _work(request: dict[str, Any], voice: Voice) -> None:
    answer: tuple[str, ...] = ()
    if request["work"] == "template":
        answer = _render(request["template"], request["tokens"])
    elif request["work"] == "tokenizer":
        answer = (_try_tokenizer(Path(request["folder"])),)
    elif request["work"] == "text":
        _encode(_load_tokenizer(Path(request["folder"]))[0], request)
    elif request["work"] == "texts":
        tokenizer, _ = _load_tokenizer(Path(request["folder"]))
        voice.say({"type": "answer", "value": ()})
        while (asked := voice.hear(IDLE_S)) is not None:
            _encode(tokenizer, asked)
            voice.say({"type": "answer", "value": ()})
        return
    else:
        made, stated = _convert(Path(request["gguf"]), request["model_type"], Path(request["out"]))
        voice.say({"type": TRYING, "within_s": USE_S})
        _check_settings(Path(request["out"]))
        _check_stated(stated)
        answer = (_use(made, stated),)
    voice.say({"type": "answer", "value": answer})


def _encode(tokenizer: Any, request: Mapping[str, Any]) -> None:
    tokenizer.encode_special_tokens = request["split"]
    tokenizer.encode(request["text"], add_special_tokens=False)


def _render(template: str, tokens: Mapping[str, str]) -> tuple[str, ...]:
    def render(messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool, **variables: bool | str) -> str:
        chats = [[dict(message) for message in messages]]
        rendered: tuple[list[str], Any] = _renderer()(
            conversations=chats,
            chat_template=template,
            add_generation_prompt=add_generation_prompt,
            **tokens,
            **variables,
        )
        return rendered[0][0]

    return chat_template.chat_format(render, "", template).pieces


def _convert(gguf: Path, model_type: str, out: Path) -> tuple[Any, Any]:
    """Convert the vocabulary of a GGUF file, and save the tokenizer in the folder ``out``.

    The header is read by ``gguf_header`` and given to transformers. transformers itself would read the file twice, and
    its 300,000 tokens one by one.

    Returns:
        The tokenizer and its JSON, as ``_load_tokenizer``.
    """
    from transformers import AutoConfig, AutoTokenizer

    from engine.model import gguf_header

    fields, _ = gguf_header.read(gguf, vocabulary=True)
    with _known_header(fields, model_type), tempfile.TemporaryDirectory(dir=out) as alone:
        # transformers gets an empty file in an empty folder, because it would also read the other files of the model's
        # folder
        (Path(alone) / gguf.name).touch()
        tokenizer = AutoTokenizer.from_pretrained(
            alone, gguf_file=gguf.name, config=AutoConfig.for_model(model_type), trust_remote_code=False
        )
    tokenizer.save_pretrained(out)
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = [" ".join(pair) for pair in content["model"].get("merges") or ()]
    # a merge written as one string takes half the bytes of a list of two strings
    if merges and all(pair.count(" ") == 1 for pair in merges):
        content["model"]["merges"] = merges
    compact = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    (out / model_files.TOKENIZER).write_text(compact, encoding="utf-8")
    return _unlimited(tokenizer.backend_tokenizer), content


@contextmanager
def _known_header(fields: Mapping[str, Any], model_type: str) -> Iterator[None]:
    """Within this context, make transformers use ``fields`` as the header of every GGUF file. Two of transformers'
    modules are replaced: the module that reads headers, which needs torch, and the module that derives a configuration
    from a header.
    """
    package = vars(importlib.import_module("transformers.integrations.gguf"))
    # Attributes that transformers sets in the package on first use, so they are reset below.
    reads, makes = "read_gguf_metadata", "GGUF_CONFIG_ARCHS"
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
    """Load a tokenizer. Returns the library's tokenizer and its JSON, or (None, None) if transformers has no fast
    tokenizer for it.
    """
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
        if tokenizer is None:  # ``BookTokenizer`` raises the error for a missing fast tokenizer
            return None, None
        stated = json.loads(tokenizer.to_str())
        _check_stated(stated)
    return _unlimited(tokenizer), stated


def _unlimited(tokenizer: Any) -> Any:
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _try_tokenizer(folder: Path) -> str:
    tokenizer, stated = _load_tokenizer(folder)
    return "" if tokenizer is None else _use(tokenizer, stated)


def _use(tokenizer: Any, stated: Mapping[str, Any]) -> str:
    """Use a tokenizer on test texts. Returns ``LINEAR`` if it takes linear time, otherwise "".

    Raises:
        ModelError: the tokenizer makes texts much longer, or makes no token of a text.
    """
    if tokenizer.normalizer is not None:
        grown = len(tokenizer.normalizer.normalize_str(_FIRST_PLANE))
        if grown > _MOST_GROWTH * len(_FIRST_PLANE):
            raise ModelError("This model's tokenizer makes texts much longer before it cuts them.", ANOTHER)
    for special in (True, False):
        tokenizer.encode_special_tokens = special
        for text in (_PROSE * _PROSE_TIMES, *(sign * _RUN + other for sign, other in _pairs())):
            encoded = tokenizer.encode(text, add_special_tokens=False)
            if len(text) > len(_PROSE) and not encoded.ids:
                raise ModelError("This model's tokenizer makes no token of a text.", ANOTHER)
            tokenizer.decode(encoded.ids, skip_special_tokens=True)
    return LINEAR if is_linear(stated) else ""


def is_linear(stated: Mapping[str, Any]) -> bool:
    """Whether the tokenizer of a ``tokenizer.json`` surely takes linear time. Its regular expressions must be known,
    and its model must be one of ``_LINEAR_MODELS``.

    SentencePiece models with scores (Unigram) are not linear: at every character they look at all pieces that may begin
    there.
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
    """Pair each test character (``_SIGNS``) with a different one. A test text repeats the first character and ends with
    the second.
    """
    return ((sign, "!" if sign != "!" else "a") for sign in _SIGNS)


def _check_settings(folder: Path) -> None:
    """Check the files next to ``tokenizer.json``, because the library adds tokens from these files one by one.

    Raises:
        ModelError: a number is too large, or a setting is not allowed.
    """
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        path = folder / name
        stated = json.loads(path.read_bytes()) if path.exists() else {}
        if not isinstance(stated, dict):
            raise ModelError(f"{name} is damaged: it holds no JSON object.", ANOTHER)
        if odd := [key for key in _OTHER_FILES if stated.get(key)]:
            raise ModelError(f"{name} names other files or words ({odd[0]}) for the tokenizer.", ANOTHER)
        # some of transformers' tokenizer classes add as many tokens as an integer in the settings says
        for key, value in stated.items():
            if type(value) is int and value > MOST_ADDED and name == "tokenizer_config.json" and key != _LONGEST:
                raise ModelError(f"{name} is damaged: {key} is {value:,}.", ANOTHER)
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
    """Check the counts and ids in ``tokenizer.json`` before a library allocates memory for them.

    Raises:
        ModelError: a number is too large, or the tokenizer cuts words at random (dropout).
    """
    if not isinstance(stated, dict):
        raise ModelError(f"{model_files.TOKENIZER} is damaged: it holds no JSON object.", ANOTHER)
    added, model = stated.get("added_tokens") or (), stated.get("model")
    _check_added(len(added))
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(model, dict) and model.get("dropout"):
        raise ModelError("This model's tokenizer cuts words by chance (dropout).", ANOTHER)
    _check_ids(each.get("id") for each in added if isinstance(each, dict))
    _check_ids(vocabulary.values() if isinstance(vocabulary, dict) else ())
    for part in ("normalizer", "decoder"):
        growth = 1.0
        for step in _steps(stated.get(part)):
            growth *= _growth(step)
        if growth > _MOST_GROWTH:
            raise ModelError(f"This model's tokenizer makes {growth:,.0f} characters of one ({part}).", ANOTHER)


def _check_added(count: int, most: int = MOST_ADDED) -> None:
    if count > most:
        raise ModelError(f"This model's tokenizer adds {count:,} tokens to its vocabulary.", ANOTHER)


def _check_ids(ids: Any) -> None:
    largest = max((number for number in ids if type(number) is int), default=0)
    if largest > _LARGEST_ID:
        raise ModelError(f"This model's tokenizer has a token of the id {largest:,}.", ANOTHER)


def _steps(part: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normalizer or decoder, including the steps in nested sequences."""
    if isinstance(part, dict):
        inner = [each for name in ("normalizers", "decoders") for each in part.get(name) or ()]
        for each in inner:
            yield from _steps(each)
        if not inner:
            yield part


def _growth(step: Mapping[str, Any]) -> float:
    """Maximum number of characters that a step makes of one character."""
    if step.get("type") == "Prepend":
        return 1.0 + len(str(step.get("prepend", "")))
    if step.get("type") != "Replace":
        return 1.0
    content, pattern = len(str(step.get("content", ""))), step.get("pattern")
    named = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(named, str) and named:
        return max(1.0, content / len(named))
    return 1.0 + content  # a regular expression may match the empty string before and after the character


def _refusal(error: BaseException) -> dict[str, Any]:
    if isinstance(error, ModelError):
        return {"type": "refused", "cause": error.cause, "remedy": error.remedy}
    said = " ".join(str(error).split())[:_REASON].rstrip(".!") or type(error).__name__
    if isinstance(error, KeyError):
        said = f"it lacks {said}"
    return {"type": "refused", "cause": f"This model's tokenizer cannot be used: {said}.", "remedy": ANOTHER}


if __name__ == "__main__":
    serve(_work, _refusal, _prepare)
