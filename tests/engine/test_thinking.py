"""Thought and answer are split token by token, for every family of marks, and for hostile answers."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from engine import foreign
from engine.chat_template import FALLBACK_TEMPLATE
from engine.errors import OptionError
from engine.thinking import FAMILIES, NO_THINKING, SplitText, ThinkingForm, ThoughtMarks, ThoughtParser, check_wanted
from tests.engine import thinking_templates as made

CHANNELS, GEMMA, MAGISTRAL, TAGS, SEED = FAMILIES


def parser(family: ThoughtMarks, *, opened: bool = False, special: bool = False) -> ThoughtParser:
    marks = frozenset(family.marks) if special else frozenset[str]()
    return ThoughtParser(family, opened=opened, special=marks)


def split(parsed: ThoughtParser, pieces: Iterable[str], marks: Iterable[str] = ()) -> SplitText:
    """Feed ``pieces``; those in ``marks`` are special tokens."""
    known, found = frozenset(marks), []
    for piece in pieces:
        found.append(parsed.feed("", piece) if piece in known else parsed.feed(piece))
    found.append(parsed.end())
    return SplitText("".join(one.thought for one in found).rstrip(), "".join(one.answer for one in found))


TEXTS = {
    "a thought": (TAGS, False, "<think>\nWell, 1 < 2.\n</think>\n\nThe answer.", "Well, 1 < 2.", "The answer."),
    "begun by the prompt": (TAGS, True, "Well.\n</think>\n\nYes.", "Well.", "Yes."),
    "begun by the prompt and again": (TAGS, True, "<think>\nWell.</think>Yes.", "Well.", "Yes."),
    "no thought": (TAGS, False, "Just <b>this</b>.", "", "Just <b>this</b>."),
    "an empty thought": (TAGS, False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
    "never closed": (TAGS, False, "<think>On and on", "On and on", ""),
    "closed twice": (TAGS, False, "<think>a</think></think>\n\nb", "a", "b"),
    "closed before it was opened": (TAGS, False, "</think>\nb", "", "b"),
    "two thoughts": (TAGS, False, "<think>a</think>\n<think>b</think>c", "ab", "c"),
    "nested": (TAGS, False, "<think>a\n<think>b</think>c</think>d", "abc".replace("a", "a\n"), "d"),
    "nested and not closed": (TAGS, False, "<think>a\n<think>b</think> c.", "a\nb c.", "c."),
    "marks quoted in the answer": (TAGS, False, "<think>a</think>`<think>`, </think>.", "a", "`<think>`, </think>."),
    "a mark in code of the answer": (TAGS, False, "```\n<think>x</think>\n```", "", "```\n<think>x</think>\n```"),
    "a closing mark quoted in the thought": (TAGS, False, "<think>`</think>` ends.</think>b", "`</think>` ends.", "b"),
    "a quotation ends at the mark": (TAGS, False, '<think>He said "no"</think>b', 'He said "no"', "b"),
    "an opening mark named in the thought": (TAGS, False, "<think>the <think> tag</think>b", "the <think> tag", "b"),
    "a mark cut off": (TAGS, False, "<think>a</thi", "a</thi", ""),
    "a sign that begins a mark": (TAGS, False, "<", "", "<"),
    "another family's marks": (TAGS, False, "[THINK]a[/THINK]b", "", "[THINK]a[/THINK]b"),
    "square brackets": (MAGISTRAL, False, "[THINK]a [1]\n[/THINK]b [2]", "a [1]", "b [2]"),
    "another tag": (SEED, False, "<seed:think>\na</seed:think>\nb", "a", "b"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_text_is_split_wherever_its_tokens_are_cut(name: str) -> None:
    family, opened, text, thought, answer = TEXTS[name]
    chance = random.Random(name)
    cuts = [list(text), [text], *(_cut(text, chance) for _ in range(40))]
    for pieces in cuts:
        assert split(parser(family, opened=opened), pieces) == SplitText(thought, answer), pieces


def _cut(text: str, chance: random.Random) -> list[str]:
    borders = sorted(chance.sample(range(1, len(text)), min(len(text) - 1, chance.randrange(1, 6)))) if text[1:] else []
    return [text[start:stop] for start, stop in zip([0, *borders], [*borders, len(text)], strict=True)]


ANALYSIS = ("<|channel|>", "analysis", "<|message|>")
NEXT = ("<|end|>", "<|start|>", "assistant", "<|channel|>")
TOKENS = {
    "gpt-oss": (
        CHANNELS,
        [*ANALYSIS, "Look", " it up.", *NEXT, "final", "<|message|>", "The", " lamp."],
        "Look it up.",
        "The lamp.",
    ),
    "gpt-oss with a remark": (
        CHANNELS,
        [*ANALYSIS, "a", *NEXT, "comment", "ary", "<|message|>", "b", *NEXT, "final", "<|message|>", "c", "<|return|>"],
        "ab",
        "c",
    ),
    "gpt-oss at once": (CHANNELS, ["<|channel|>", "final", "<|message|>", "c"], "", "c"),
    "gpt-oss without marks": (CHANNELS, ["c", " d"], "", "c d"),
    "gpt-oss that ends in its thought": (CHANNELS, [*ANALYSIS, "a"], "a", ""),
    "a header without an end": (CHANNELS, ["<|channel|>", "The words ", "of an answer"], "", "The words of an answer"),
    "a long header": (CHANNELS, ["<|channel|>", *(["word "] * 30)], ("word " * 30).strip(), ""),
    "Gemma 4": (GEMMA, ["<|channel>", "thought", "\n", "Look.", "<channel|>", "The lamp."], "Look.", "The lamp."),
    "Gemma 4 in pieces": (GEMMA, ["<|channel>", "thou", "ght\nLook.", "<channel|>", "\nYes."], "Look.", "Yes."),
    "Gemma 4, empty": (GEMMA, ["<|channel>", "thought", "\n", "<channel|>", "The lamp."], "", "The lamp."),
    "Magistral": (MAGISTRAL, ["[THINK]", "a", "[/THINK]", "Say [THINK]."], "a", "Say [THINK]."),
    "a special mark in the answer": (MAGISTRAL, ["[THINK]", "a", "[/THINK]", "b", "[THINK]", "c"], "a", "bc"),
}


@pytest.mark.parametrize("name", TOKENS)
def test_marks_that_are_special_tokens_are_never_shown(name: str) -> None:
    family, pieces, thought, answer = TOKENS[name]
    assert split(parser(family, special=True), pieces, family.marks) == SplitText(thought, answer)


def test_what_is_certain_is_shown_at_once() -> None:
    parsed = parser(TAGS)
    assert parsed.feed("<thi") == SplitText("", "")
    assert not parsed.thinking
    assert not parsed.answering
    assert parsed.feed("nk>\nWell") == SplitText("Well", "")
    assert parsed.thinking
    assert parsed.feed(", 1 <") == SplitText(", 1 ", "")
    assert parsed.feed(" 2") == SplitText("< 2", "")
    assert parsed.feed("</think>") == SplitText("", "")
    assert parsed.answering
    assert parsed.closed
    assert parsed.feed("\n\n") == SplitText("", "")
    assert parsed.feed("Yes") == SplitText("", "Yes")


def test_a_thought_that_the_prompt_closes_is_closed() -> None:
    for family in FAMILIES:
        parsed = parser(family, opened=True)
        found = parsed.feed("On and <").thought + parsed.close().thought
        assert found == "On and <"
        assert parsed.answering
        assert parsed.feed("\nYes.") == SplitText("", "Yes.")


def test_an_answer_opens_a_bounded_number_of_thoughts() -> None:
    found = split(parser(TAGS), ["<think>a</think>"] * 100)
    assert found == SplitText("a" * 8, "<think>a</think>" * 92)


def test_a_form_goes_through_pieces() -> None:
    form = ThinkingForm(TAGS, "on", "off", can_stop=True, can_think=True)
    assert ThinkingForm.of_pieces(form.pieces) == form
    assert ThinkingForm.of_pieces(NO_THINKING) is None


def test_budgets() -> None:
    switched = ThinkingForm(TAGS, "on", "off", can_stop=True, can_think=True)
    always = ThinkingForm(TAGS, "on", "on", can_stop=False, can_think=True)
    assert switched.budget(think=False, tokens=None) == 0 == switched.budget(think=False, tokens=900)
    assert switched.budget(think=True, tokens=0) == 0
    assert switched.budget(think=True, tokens=None) == 4096 == always.budget(think=True, tokens=None)
    assert always.budget(think=False, tokens=None) == 512
    assert always.budget(think=False, tokens=100) == 100


def test_a_thought_that_the_model_cannot_have_is_refused_in_one_sentence() -> None:
    only_marks = ThinkingForm(TAGS, "", "", can_stop=True, can_think=False)
    for form in (None, only_marks):
        with pytest.raises(OptionError, match="This model does not think before it answers"):
            check_wanted(form, think=True)
        check_wanted(form, think=False)
        check_wanted(form, think=None)


# Templates -----------------------------------------------------------------------------------------------------------

_CHATML = "<|im_end|>\n<|im_start|>assistant\n"
# The words after a question whose answer is not to be thought about first, those if it is, the words between a question
# and its answer in the history of a chat, and whether the model can be stopped from thinking.
FORMS = {
    "Qwen 3": (made.QWEN3, f"{_CHATML}<think>\n\n</think>\n\n", _CHATML, None, True),
    "Qwen 3.5": (made.QWEN35, f"{_CHATML}<think>\n\n</think>\n\n", f"{_CHATML}<think>\n", None, True),
    "SmolLM3": (made.SMOLLM3, f"{_CHATML}<think>\n\n</think>\n", f"{_CHATML}<think>\n", None, True),
    "a word alone": (made.ONLY_A_WORD, f"{_CHATML}<think>\n\n</think>\n\n", _CHATML, None, True),
    "DeepSeek": (made.DEEPSEEK, "<｜Assistant｜><think>\n", "<｜Assistant｜><think>\n", "<｜Assistant｜>", False),
    "Magistral": (made.MAGISTRAL, "[/INST]", "[/INST][THINK]", None, True),
    "gpt-oss": (
        made.GPT_OSS,
        "<|end|><|start|>assistant",
        "<|end|><|start|>assistant",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        False,
    ),
    "Gemma 4": (
        made.GEMMA4,
        "<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
        "<turn|>\n<|turn>model\n<|channel>thought\n",
        None,
        True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_what_a_model_can_do_is_found_in_its_template(name: str) -> None:
    template, off, on, in_history, can_stop = FORMS[name]
    form = foreign.chat_format(template, {}, "A title")
    assert form.thinking is not None
    assert (form.asked(think=False), form.asked(think=True)) == (off, on)
    assert form.after_question == (off if in_history is None else in_history)
    assert form.thinking.can_stop is can_stop
    assert form.thinking.can_think
    assert "/think" not in form.before_title.replace("/no_think", "")
    assert "<|think|>" not in form.before_title


@pytest.mark.parametrize("template", [FALLBACK_TEMPLATE, "{{ enable_thinking }}" + FALLBACK_TEMPLATE])
def test_a_template_without_marks_knows_no_thoughts(template: str) -> None:
    form = foreign.chat_format(template, {}, "A title")
    assert form.thinking is None
    assert form.asked(think=True) == form.after_question


def test_a_template_that_breaks_at_a_variable_is_rendered_without_it() -> None:
    breaks = "{%- if thinking is defined %}{{ raise_exception('no') }}{%- endif %}" + made.DEEPSEEK
    form = foreign.chat_format(breaks, {}, "A title")
    assert form.asked(think=False) == "<｜Assistant｜><think>\n"
