"""Tokenizers and chat templates that do harm: each is a sentence, and nothing of them happened in this process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from app.core.settings import DEMO_DRAFT, DEMO_MODEL
from engine import foreign, foreign_child
from engine.chat_template import FALLBACK_TEMPLATE, chat_format
from engine.errors import ModelError
from engine.prompt import BookTokenizer
from engine.sandbox import ChildFailed
from tests.tally import count

_GOOD = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{{ eos_token }}{% endfor %}"
_GOOD += "{% if add_generation_prompt %}[assistant]{% endif %}"
_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# What real templates do: white space that is trimmed, loops that are left, a date, JSON, a namespace, a macro.
_TRICKY = """{%- set ns = namespace(first=true) %}
{%- macro turn(role, words) -%}<|{{ role }}|>{{ words }}<|end|>{%- endmacro -%}
{% for m in messages %}
    {%- if m.role == 'nobody' %}{% continue %}{% endif %}
    {%- if ns.first %}{{ bos_token }}{% set ns.first = false %}{% endif %}
    {{- turn(m['role'], m['content'] | trim) }}
{% endfor %}
{{ {"é": [1, 2]} | tojson }}{{ strftime_now("%Y") }}{% if tools is not none %}{{ tools }}{% endif %}
{% if add_generation_prompt %}{% generation %}<|assistant|>{% endgeneration %}{% endif %}"""


def _pieces(template: str, tokens: dict[str, str] | None = None) -> tuple[str, ...]:
    return foreign.chat_format(template, tokens or _TOKENS, "A title").pieces


@pytest.mark.parametrize("template", [_TRICKY, FALLBACK_TEMPLATE])
def test_a_template_is_rendered_as_the_library_renders_it(template: str) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO_MODEL)

    def render(messages: Any, *, add_generation_prompt: bool) -> str:
        words: str = tokenizer.apply_chat_template(
            list(messages), chat_template=template, tokenize=False, add_generation_prompt=add_generation_prompt
        )
        return words

    expected = chat_format(render, "A title")
    assert foreign.chat_format(template, tokenizer.special_tokens_map, "A title") == expected


def test_a_template_that_looks_for_more_than_its_messages() -> None:
    """Templates without end and those that fill memory: ``tests/fuzz/test_foreign_models.py``."""
    with pytest.raises(ModelError, match="does not keep a book"):
        _pieces("{{ messages.__class__.__mro__[1].__subclasses__() }}" + _GOOD)
    count("model folders, damaged or altered")


def test_a_known_template_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign._checks.clear()
    first = foreign.chat_format(_GOOD, _TOKENS, "One", str(tmp_path))
    foreign._checks.clear()
    monkeypatch.setattr(foreign, "run_in_child", None)
    assert foreign.chat_format(_GOOD, _TOKENS, "Two", str(tmp_path)).pieces == first.pieces
    with pytest.raises(TypeError):  # another one has another sum
        foreign.chat_format(_GOOD + " ", _TOKENS, "Two", str(tmp_path))
    foreign._checks.clear()
    (kept,) = tmp_path.iterdir()
    for broken in ("", "[1]", "{}", '["a"]', "[" * 100_000):
        kept.write_text(broken, encoding="utf-8")
        with pytest.raises(TypeError):  # it is tried again
            foreign.chat_format(_GOOD, _TOKENS, "Two", str(tmp_path))


# Tokenizers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    shutil.copytree(DEMO_MODEL, made, ignore=shutil.ignore_patterns("*.safetensors"))
    return made


def _change(folder: Path, change: Callable[[dict[str, Any]], None], name: str = "tokenizer.json") -> None:
    stated = json.loads((folder / name).read_text(encoding="utf-8"))
    change(stated)
    (folder / name).write_text(json.dumps(stated), encoding="utf-8")


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _chained(stated: dict[str, Any]) -> None:
    steps = [_replace({"String": "a"}, "a" * 1000)] * 4
    stated["normalizer"] = {"type": "Sequence", "normalizers": steps}


def _chained_decoder(stated: dict[str, Any]) -> None:
    steps = [_replace({"Regex": ""}, "aaaaaaaaaa")] * 4
    stated["decoder"] = {"type": "Sequence", "decoders": [{"type": "Sequence", "decoders": steps}]}


def _split(expression: str) -> Callable[[dict[str, Any]], None]:
    def change(stated: dict[str, Any]) -> None:
        stated["pre_tokenizer"] = {
            "type": "Split",
            "pattern": {"Regex": expression},
            "behavior": "Isolated",
            "invert": False,
        }

    return change


def _added(count: int, first: int = 10_000) -> Callable[[dict[str, Any]], None]:
    def change(stated: dict[str, Any]) -> None:
        for number in range(count):
            token = {**stated["added_tokens"][0], "id": first + number, "content": f"<|{number}|>"}
            stated["added_tokens"].append(token)

    return change


def _numbered(stated: dict[str, Any]) -> None:
    stated["model"]["vocab"]["\u0120zebra"] = 4_294_967_295


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_chained, "makes 1,000,000,000,000 characters of one"),
        (_chained_decoder, "makes 14,641 characters of one"),
        (_added(100_001), "adds 1"),
        (_added(1, first=1 << 31), "id 2,147,483,648"),
        (_numbered, "id 4,294,967,295"),
    ],
)
def test_a_tokenizer_that_says_what_harm_it_does(change: Callable[[dict[str, Any]], None], why: str) -> None:
    """They filled the memory or took minutes."""
    stated = json.loads((DEMO_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    foreign_child._check_stated(stated)
    change(stated)
    with pytest.raises(ModelError, match=why):
        foreign_child._check_stated(stated)
    count("model folders, damaged or altered")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"vocab": "elsewhere.json"}, "names other files or words .vocab"),
        ({"fast_tokenizer_files": ["tokenizer.1.json"]}, "names other files or words .fast_tokenizer_files"),
        ({"added_tokens_decoder": {str(number): {} for number in range(101_000)}}, "adds 101,000 tokens"),
        ({"additional_special_tokens": ["a"] * 10_001}, "adds 10,001 tokens"),
        # They passed, and 90,000 of them loaded for minutes.
        ({"extra_special_tokens": {f"t{number}": "<x>" for number in range(10_001)}}, "adds 10,001 tokens"),
        ({"added_tokens_decoder": {"9" * 12: {"content": "<x>"}}}, "id 999,999,999,999"),
    ],
)
def test_settings_of_a_tokenizer_that_do_harm(folder: Path, more: dict[str, Any], why: str) -> None:
    foreign_child._check_settings(folder)
    _change(folder, lambda stated: stated.update(more), "tokenizer_config.json")
    with pytest.raises(ModelError, match=why):
        foreign_child._check_settings(folder)


def test_a_child_that_dies_or_takes_too_much_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_TOKENIZER_BOUNDS", foreign.Bounds(60_000_000, 10.0))
    _change(folder, lambda stated: stated.update(more="x" * 20_000_000))
    with pytest.raises(ModelError, match=r"tokenizer takes more than 0\.1 GB of memory or breaks"):
        foreign.check_tokenizer(folder)


def test_what_a_tokenizer_lacks_is_said() -> None:
    """A vocabulary in a GGUF file without merges and scores "cannot be used: 'scores'"."""
    assert (
        foreign_child._refusal(KeyError("scores"))["cause"]
        == "This model's tokenizer cannot be used: it lacks 'scores'."
    )


def test_a_panic_at_a_text_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the check did not meet: an expression that is slow on words of its own."""
    _change(folder, _split("(?:xyz|xyz|xyz)*$"))
    tokenizer = BookTokenizer(str(folder))
    assert tokenizer.words("Ordinary words.")
    with pytest.raises(ModelError, match=r"tokenizer cannot be used: .*retry-limit-in-match"):
        tokenizer.words("xyz" * 40 + "b")
    assert tokenizer.words("Other ordinary words.")


@pytest.mark.parametrize(
    ("change", "linear"),
    [
        (lambda stated: None, True),
        (_split(r"\d+(?=(\d{3})*$)"), False),
        (_split(foreign_child._LINEAR_EXPRESSIONS[-1]), True),
        (
            lambda stated: stated.update(
                normalizer={"type": "Sequence", "normalizers": [_replace({"Regex": "a*"}, "")]}
            ),
            False,
        ),
        (lambda stated: stated["model"].update(type="Unigram"), False),
    ],
)
def test_which_tokenizers_take_linear_time(change: Callable[[dict[str, Any]], None], linear: bool) -> None:
    stated = json.loads((DEMO_MODEL / "tokenizer.json").read_text(encoding="utf-8"))
    change(stated)
    assert foreign_child.is_linear(stated) == linear


def test_a_tokenizer_that_is_slow_on_one_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes the check, and took a minute for a book of a hundred kilobytes."""
    monkeypatch.setattr(foreign, "TEXT_S", 0.3)
    _change(folder, _split("(?:xyz|xyz)*[!?]"))
    tokenizer = BookTokenizer(str(folder))
    slow = ("xyz" * 17 + " ") * 200 + "!"
    with pytest.raises(ModelError, match=r"takes longer than \d seconds for a text of 10,401 characters"):
        tokenizer.words(slow)
    count("model folders, damaged or altered")


def test_a_tokenizer_that_is_slow_on_a_short_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes the check, and took seconds for each expression of such a kind, of which there may be thousands."""
    _change(folder, _split(r"[xy](?<=xy|yx)(?:\w|[a-z]){22}[!?]"))
    tokenizer = BookTokenizer(str(folder))
    assert tokenizer.words("Ordinary words.")
    assert tokenizer._texts is not None
    tokenizer._texts.close()  # bounds are those of a child
    monkeypatch.setattr(foreign, "TEXT_S", 0.3)
    with pytest.raises(ModelError, match=r"takes longer than \d seconds for a text of 181 characters"):
        tokenizer.words("xy" * 90 + "!")
    count("model folders, damaged or altered")


def test_the_child_for_short_texts_stays_until_it_is_idle(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def child(module: str, request: dict[str, Any], *_: object) -> Iterator[dict[str, Any]]:
        started.append(request["work"])
        for _each in range(3):
            yield {"type": "answer", "value": ()}

    monkeypatch.setattr(foreign, "run_in_child", child)
    texts = foreign.Texts(foreign.Tried("a", linear=False), folder)
    for number, many in enumerate((1, 1, 2, 2), 1):
        texts.check(f"text {number}", split_special_tokens=True)
        texts.check(f"text {number}", split_special_tokens=True)
        assert started == ["texts"] * many
    foreign.Texts(foreign.Tried("a", linear=True), folder).check("text", split_special_tokens=True)
    assert len(started) == 2


def test_a_child_that_was_killed_while_it_waited_blames_no_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    lives = [2, 2, 1]  # answers of each child, the first one to its start

    def child(*request: object) -> Iterator[dict[str, Any]]:
        started.append(request)
        for _each in range(lives[len(started) - 1]):
            yield {"type": "answer", "value": ()}
        raise ChildFailed("crash", None)

    monkeypatch.setattr(foreign, "run_in_child", child)
    texts = foreign.Texts(foreign.Tried("a", linear=False), folder)
    texts.check("one", split_special_tokens=True)
    texts.check("two", split_special_tokens=True)
    assert len(started) == 2
    with pytest.raises(ModelError, match="a text of 5 characters or breaks its library"):
        texts.check("three", split_special_tokens=True)
    assert len(started) == 3  # and the fresh one, which had nothing but this text, failed as well


def test_a_vocabulary_is_converted_and_tried_by_one_child(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start of a good file paid for a second child, which loaded the same vocabulary again."""
    messages: list[dict[str, Any] | ChildFailed] = [{"type": "trying", "within_s": 10.0}]

    def child(*_: object) -> Iterator[dict[str, Any]]:
        for message in messages:
            if isinstance(message, ChildFailed):
                raise message
            yield message

    monkeypatch.setattr(foreign, "run_in_child", child)
    messages.append({"type": "answer", "value": (foreign_child.LINEAR,)})
    found = foreign.save_gguf_tokenizer(tmp_path / "a.gguf", "llama", folder)
    foreign.keep(folder, found, str(tmp_path / "tried"))
    monkeypatch.setattr(foreign, "run_in_child", None)
    assert foreign.check_tokenizer(folder, str(tmp_path / "tried")).linear
    monkeypatch.undo()
    monkeypatch.setattr(foreign, "run_in_child", child)
    messages[1] = ChildFailed("page time", None)
    with pytest.raises(ModelError, match="tokenizer takes longer than 10 seconds"):
        foreign.save_gguf_tokenizer(tmp_path / "a.gguf", "llama", folder)
    messages.pop(0)
    with pytest.raises(ModelError, match="vocabulary takes longer than 90 seconds"):
        foreign.save_gguf_tokenizer(tmp_path / "a.gguf", "llama", folder)


def test_checks_that_have_begun_are_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's first start waits for its checks only as long as its libraries do not take to be imported."""
    asked: list[str] = []
    answers = {"tokenizer": (foreign_child.LINEAR,), "template": tuple("abcdefghij")}

    def child(_module: str, request: dict[str, Any], *_: object) -> Iterator[dict[str, Any]]:
        asked.append(request["work"])
        yield {"type": "answer", "value": answers[request["work"]]}

    monkeypatch.setattr(foreign, "run_in_child", child)
    monkeypatch.setattr(foreign, "_checks", {})
    foreign.begin(str(DEMO_MODEL), str(DEMO_DRAFT))
    tokenizer = BookTokenizer(str(DEMO_MODEL))
    assert tokenizer.format_for("A title").before_title == "a"
    assert tokenizer.words("A long text. " * 100)  # nothing that takes linear time is tried
    BookTokenizer(str(DEMO_DRAFT))
    assert sorted(asked) == ["template", "tokenizer"]


def test_results_on_disk_do_not_become_more_and_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "_MOST_FILES", 3)
    for number in range(5):
        foreign._save(tmp_path / f"{number}.json", [])
        os.utime(tmp_path / f"{number}.json", (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2.json", "3.json", "4.json"]


def test_one_without_a_template_for_chats(folder: Path) -> None:
    tokenizer = BookTokenizer(str(folder))
    tokenizer._tokenizer.chat_template = {"tool_use": _GOOD}
    with pytest.raises(ModelError, match="none for ordinary chats"):
        tokenizer.format_for("A title")
    tokenizer._tokenizer.chat_template = {"default": _GOOD, "tool_use": "{{"}
    assert tokenizer.format_for("A title").after_book.endswith("[user]")


def test_the_demo_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = foreign.check_tokenizer(DEMO_MODEL, str(tmp_path))
    foreign._checks.clear()
    monkeypatch.setattr(foreign, "run_in_child", None)
    assert foreign.check_tokenizer(DEMO_MODEL, str(tmp_path)) == first
    # the same tokenizer, beside other files
    assert foreign.check_tokenizer(DEMO_DRAFT, str(tmp_path)) == first
