"""The rows of the bench: every decoding loop from the same cache on the same prompt, taking turns.

Rows: ``hf_generate`` (transformers' own generate with its default attention, on a copy of the same KV), ``plain``,
``retrieval_only`` (no draft model), ``hierarchical``, ``hierarchical_lookup`` (drafting from the book too). Workloads:
``prose`` (continue the book), ``quote`` (find a passage). For every context length the book is prefilled once, and
the cache is cropped back between runs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from engine import decoding, prefill
from engine.bench.report import Result
from engine.cache.retrieval import QueryTap
from engine.config import SamplingParams
from engine.controller import Controller, FixedLengths, Pace
from engine.decoding import Context, Speculation
from engine.drafters import Drafter, LookupDrafter, NoDrafter
from engine.errors import InputError
from engine.events import Acceptance, Round
from engine.hierarchy import FIRST_QUERIES, MOST_DRAFT, MOST_PASSES
from engine.sampling import Sampler, make_generator
from engine.session import Session

ROWS = ("hf_generate", "plain", "retrieval_only", "hierarchical", "hierarchical_lookup")
WORKLOADS = ("prose", "quote")
# Words of the sentence that the quote workload asks for.
_KEY_WORDS = 6
# Where in the book that sentence lies, as a share of its length.
_KEY_DEPTH = 0.4


@dataclass
class Run:
    """One decoding of one row."""

    tokens: list[int] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)


class Bench:
    """A session, a book's tokens, and the rows to run on them."""

    def __init__(self, session: Session, ids: Sequence[int], options: argparse.Namespace) -> None:
        self.session = session
        self.ids = list(ids)
        self.options = options
        self._paces: dict[tuple[str, int], Controller] = {}

    def run(self) -> Iterator[Result]:
        """All results, context by context."""
        for context in self.options.context:
            if context > len(self.ids):
                raise InputError(
                    f"The book has {len(self.ids):,} tokens, and a context of {context:,} was asked for.",
                    "Choose a longer book (--book) or a shorter context.",
                )
            self._prefill(context)
            for workload in self.options.workloads:
                prompt = self._prompt(workload, context)
                for temperature in self.options.temperature:
                    yield from self._compare(workload, context, prompt, temperature)

    def _prefill(self, context: int) -> None:
        full = self.session.full
        full.crop(min(full.length, context))
        self.session.hierarchy.reset()
        began = time.perf_counter()
        ids = self.session.target.ids(self.ids[full.length : context])
        prefill.run(self.session.target, full, ids, segment=4096, block=self.session.config.prefill_block)
        self._say(f"read {ids.shape[0]:,} tokens in {time.perf_counter() - began:.1f} s")

    def _prompt(self, workload: str, context: int) -> list[int]:
        """The whole prompt of a workload: the book's tokens, and for a quote the question."""
        book = self.ids[:context]
        if workload == "prose":
            return book
        tokenizer = self.session.tokenizer
        form = tokenizer.format_for("Bench")
        text = tokenizer.decode(book[int(context * _KEY_DEPTH) : int(context * _KEY_DEPTH) + 200])
        sentence = text.split(". ", 2)[1].split()
        key = " ".join(sentence[:_KEY_WORDS])
        question = f"Where does it say “{key}”?"
        return [
            *book,
            *tokenizer.template_words(form.after_book),
            *tokenizer.words(question),
            *tokenizer.template_words(form.after_question),
        ]

    def _compare(self, workload: str, context: int, prompt: list[int], temperature: float) -> Iterator[Result]:
        runs: dict[str, list[Run]] = {row: [] for row in self.options.rows}
        for repeat in range(self.options.repeats):
            for row in self.options.rows:
                run = self._row(row, prompt, temperature)
                runs[row].append(run)
                self._say(
                    f"{workload} {context:,} T={temperature} {row} {repeat + 1}: {_ms_per_token(run):.1f} ms/token"
                )
        for row in self.options.rows:
            yield self._result(row, workload, context, temperature, runs, prompt)

    def _row(self, row: str, prompt: list[int], temperature: float) -> Run:
        session, options = self.session, self.options
        full = session.full
        full.crop(min(full.length, len(prompt) - 1))
        tap = QueryTap(session.target.num_layers, FIRST_QUERIES)
        # The newest tokens run again, so that every row starts with their queries and the same KV.
        full.crop(max(0, len(prompt) - 1 - FIRST_QUERIES) if full.length >= len(prompt) - 1 else full.length)
        rest = session.target.ids(prompt[full.length : -1])
        prefill.run(session.target, full, rest, segment=4096, block=session.config.prefill_block, observer=tap)
        if row == "hf_generate":
            return self._generate(prompt, temperature)
        sampler = Sampler(SamplingParams(temperature=temperature, top_p=options.top_p if temperature else 1.0))
        context = Context(
            session.target,
            full,
            list(prompt),
            sampler,
            make_generator(options.seed, session.target.device),
            frozenset(),
            options.tokens,
        )
        return _timed(self._rounds(row, context, tap))

    def _rounds(self, row: str, context: Context, tap: QueryTap) -> Iterator[Round]:
        session = self.session
        if row == "plain":
            return decoding.plain(context)
        levels, drafter = session.hierarchy, self._drafter(row)
        decoding.aim(context, levels.retrieval, drafter, tap)
        speculation = Speculation(self._pace(row, context), levels.config.refresh_every, levels.longest)
        return decoding.hierarchical(context, levels.retrieval, drafter, speculation)

    def _drafter(self, row: str) -> Drafter:
        session = self.session
        if row == "retrieval_only":
            return NoDrafter(session.target.vocabulary, session.target.device)
        drafter = session.hierarchy.drafter
        if isinstance(drafter, LookupDrafter) and row != "hierarchical_lookup":
            return drafter.inner
        return drafter

    def _pace(self, row: str, context: Context) -> Pace:
        """The row's controller, kept over its runs, or the fixed lengths that were asked for."""
        levels, has_draft = self.session.hierarchy, row != "retrieval_only" and self.session.hierarchy.has_draft_model
        if levels.lengths_are_given:
            return levels.fixed if has_draft else FixedLengths(0, levels.fixed.choice.pending)
        key = (row, len(context.tokens))
        if key not in self._paces:
            plain = decoding.plain_step_ms(context.decoder, context.full, context.tokens, None)
            self._paces[key] = Controller(plain, MOST_DRAFT if has_draft else 0, MOST_PASSES)
        return self._paces[key]

    def _generate(self, prompt: list[int], temperature: float) -> Run:
        """transformers' generate with its default attention, from a copy of the same KV."""
        from transformers import DynamicCache, StoppingCriteriaList

        session, stamps = self.session, [0.0]
        model = session.target.model
        full = session.full
        cache = DynamicCache(config=model.config)
        for layer in range(session.target.num_layers):
            k, v = full.keys(layer, 0, full.length), full.values(layer, 0, full.length)
            cache.update(k.unsqueeze(0).clone(), v.unsqueeze(0).clone(), layer)
        ids = session.target.ids(prompt).unsqueeze(0)

        def stamp(_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
            stamps.append(time.perf_counter())
            return torch.zeros(1, dtype=torch.bool, device=ids.device)

        own = model.config._attn_implementation
        model.set_attn_implementation("sdpa")
        sampling = {"do_sample": temperature > 0}
        if temperature > 0:
            sampling |= {"temperature": temperature, "top_p": self.options.top_p, "top_k": 0}  # type: ignore[dict-item]
        try:
            torch.manual_seed(self.options.seed)
            stamps[0] = time.perf_counter()
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                past_key_values=cache,
                max_new_tokens=self.options.tokens,
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([stamp]),
                **sampling,
            )
        finally:
            model.set_attn_implementation(own)
        gaps = [(b - a) * 1000.0 for a, b in itertools.pairwise(stamps)]
        return Run(out[0, len(prompt) :].tolist(), gaps)

    def _result(
        self,
        row: str,
        workload: str,
        context: int,
        temperature: float,
        runs: dict[str, list[Run]],
        prompt: list[int],
    ) -> Result:
        def median(name: str) -> float | None:
            return statistics.median(_ms_per_token(run) for run in runs[name]) if runs.get(name) else None

        own, plain, generate = median(row), median("plain"), median("hf_generate")
        assert own is not None
        rounds = [done for run in runs[row] for done in run.rounds]
        tokens = sum(len(run.tokens) for run in runs[row])
        verifies = len(rounds) if row != "plain" else 0
        same, difference = self._difference(runs, row, prompt) if temperature == 0 else (None, None)
        return Result(
            row=row,
            workload=workload,
            context=context,
            temperature=temperature,
            budget=self.session.config.retrieval_budget,
            answer_tokens=len(runs[row][0].tokens),
            ms_per_token=own,
            ratio_to_plain=plain / own if plain else None,
            ratio_to_generate=generate / own if generate else None,
            acceptance={
                "middle": _rate([done.middle for done in rounds]),
                "verify": _rate([done.verify for done in rounds]),
            },
            mean_acceptance_length=tokens / verifies if verifies else None,
            time_split=_split(runs[row], tokens),
            identical_to_plain=same,
            first_difference=difference,
        )

    def _difference(
        self, runs: dict[str, list[Run]], row: str, prompt: list[int]
    ) -> tuple[bool | None, dict[str, float] | None]:
        """Whether a greedy row equals plain; if not, where, and how near a tie the plain logits were there."""
        if not runs.get("plain"):
            return None, None
        mine, plain = runs[row][0].tokens, runs["plain"][0].tokens
        at = next((i for i, (a, b) in enumerate(zip(mine, plain, strict=False)) if a != b), None)
        if at is None:
            return True, None
        session = self.session
        tokens = [*prompt, *plain[:at]]
        session.full.crop(len(prompt) - 1)
        with torch.inference_mode():
            start = len(prompt) - 1
            ids = session.target.ids(tokens[start:])
            session.full.reserve(len(tokens))
            rope = session.target.rope(session.target.span(start, ids.shape[0]))
            logits = session.target.forward(ids, rope, session.full.extend(start), rows=1)[0]
        return False, {"position": at, "logit_margin": float(logits[plain[at]] - logits[mine[at]])}

    def _say(self, text: str) -> None:
        if not self.options.quiet:
            sys.stderr.write(text + "\n")


def _timed(rounds: Iterator[Round]) -> Run:
    run = Run()
    clock = time.perf_counter()
    for done in rounds:
        now = time.perf_counter()
        run.tokens += done.tokens
        run.ms += [(now - clock) * 1000.0 / len(done.tokens)] * len(done.tokens)
        run.rounds.append(done)
        clock = now
    return run


def _ms_per_token(run: Run) -> float:
    """Mean over the answer: bursts make a median over tokens meaningless for speculation."""
    return sum(run.ms) / len(run.ms)


def _rate(levels: list[Acceptance]) -> float | None:
    proposed = sum(level.proposed for level in levels)
    return sum(level.accepted for level in levels) / proposed if proposed else None


def _split(runs: list[Run], tokens: int) -> dict[str, float]:
    """Milliseconds per token by stage; ``other`` is everything that no stage accounts for."""
    split = {
        stage: sum(getattr(done.split, stage) for run in runs for done in run.rounds) / tokens
        for stage in ("draft", "middle", "verify", "transfer")
    }
    total = sum(sum(run.ms) for run in runs) / tokens
    split["other"] = max(0.0, total - sum(split.values()))
    return split
