"""A model that has read one text and answers several questions about it at once, greedily.

Owns batched generation behind one reading, and what counts as a right answer. Works with any Llama folder that the app
could open. Knows no question by heart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM

from assets.starter.recipe import network
from assets.starter.recipe.prompting import Prompter
from engine.passages import reminded

MOST_TOKENS = 100
SHORTEST_QUOTATION = 12
"""Characters that a quotation needs to count as one."""
REPEATED_WORDS, REPEATS = 6, 3
"""An answer runs in a circle when so many words in a row come so often in it."""

_MARKS = "“”\"‘’' \n….,;:!?"
_QUOTED = re.compile(r"“([^“”]+(?:“[^“”]*”[^“”]*)*)”|\"([^\"\n]+)\"|“ ?“([^”]+)”")
_NOT_THERE = re.compile(
    r"\b(?:does not (?:say|mention|tell|contain|provide|specify|state)|doesn[’']t (?:say|mention|tell|specify|state)"
    r"|not (?:mentioned|stated|specified|said|in the (?:book|text))|no (?:mention|information)|is not there)\b",
    re.I,
)


class Reader:
    """A model with a text in its memory. Several questions are answered in one batch, each as if it were the first."""

    def __init__(self, model: LlamaForCausalLM, prompter: Prompter, title: str, text: str) -> None:
        network.prepare(model)
        self._model, self._prompter = model, prompter
        self._passages = prompter.passages(text)
        self._num_passages = getattr(model.generation_config, "passages", 0)
        self._sampler = prompter.sampler(text, exact_quotes=getattr(model.generation_config, "exact_quotes", False))
        ids = prompter.book(title, text)
        self.num_tokens = len(ids)
        self._layers = network.read(model, ids)

    @torch.inference_mode()
    def ask(self, questions: Sequence[str]) -> list[str]:
        """The answers, greedy, each up to its end or MOST_TOKENS."""
        beside = [self._passages.about(question, self._num_passages) for question in questions]
        rows = [
            self._prompter.question(reminded(question, found))
            for question, found in zip(questions, beside, strict=True)
        ]
        width = max(map(len, rows))
        empty = torch.tensor([width - len(row) for row in rows])
        keys, _ = self._layers[0]
        none = keys.new_zeros(keys.shape[1], len(rows), 0, keys.shape[3])
        own = [(none, none) for _ in self._layers]
        tokens = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        answers: list[list[int]] = [[] for _ in rows]
        open_rows = set(range(len(rows)))
        samplers = [self._sampler] * len(rows)
        for seen in range(width, width + MOST_TOKENS):
            count = tokens.shape[1]
            places = torch.arange(seen - count, seen)
            visible = (torch.arange(seen)[None, :] >= empty[:, None])[:, None] & (
                torch.arange(seen)[None, :] <= places[:, None]
            )
            bins = network.Bins(
                tokens.flatten(),
                (self.num_tokens + places[None, :] - empty[:, None]).clamp(min=self.num_tokens).flatten(),
                torch.arange(tokens.numel()),
                network.as_bias(visible[:, None], keys.dtype),
            )
            hidden = network.hidden_behind(self._model, self._layers, bins, own)[count - 1 :: count]
            logits = self._model.lm_head(hidden).split(1)
            chosen = [sampler(row).argmax(-1) for sampler, row in zip(samplers, logits, strict=True)]
            samplers = [sampler.after(token) for sampler, token in zip(samplers, chosen, strict=True)]
            tokens = torch.stack(chosen)
            for number in list(open_rows):
                token = int(tokens[number])
                if token in self._prompter.end_ids:
                    open_rows.discard(number)
                else:
                    answers[number].append(token)
            if not open_rows:
                break
        return [self._prompter.decode(answer) for answer in answers]


def plain(words: str) -> str:
    """Words without what type and lines do to them: one kind of quotation mark, single spaces."""
    words = words.replace("’", "'").replace("‘", "'").replace("“", '"').replace("”", '"').replace("…", " ")
    return " ".join(words.split())


def quotations(answer: str) -> list[str]:
    """What stands in an answer between quotation marks, without the marks and pauses at its ends."""
    found = [next(part for part in match if part) for match in _QUOTED.findall(answer)]
    return [part for part in (words.strip(_MARKS) for words in found) if len(part) >= SHORTEST_QUOTATION]


def verified(answer: str, text: str) -> bool:
    """Whether an answer quotes the text, and all that it quotes stands there word for word."""
    whole, parts = plain(text), quotations(answer)
    return bool(parts) and all(plain(part) in whole for part in parts)


def has_fact(answer: str, facts: Sequence[str]) -> bool:
    """Whether one of the wordings of a fact stands in an answer."""
    return any(plain(fact).lower() in plain(answer).lower() for fact in facts)


def says_absent(answer: str) -> bool:
    return bool(_NOT_THERE.search(answer))


def circles(answer: str) -> bool:
    """Whether an answer says the same again and again."""
    words = answer.lower().split()
    runs = Counter(tuple(words[place : place + REPEATED_WORDS]) for place in range(len(words) - REPEATED_WORDS + 1))
    return bool(runs) and max(runs.values()) >= REPEATS


def is_talk(answer: str) -> bool:
    """Whether an answer is a plain reply: some words, no quotation, no word of what is or is not in the book."""
    return bool(answer.strip()) and not quotations(answer) and not says_absent(answer) and not circles(answer)


def quotes(answer: str, passage: str) -> bool:
    """Whether an answer holds a passage word for word."""
    return plain(passage).strip(_MARKS) in plain(answer)
