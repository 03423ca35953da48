"""Runs the rows of the bench, and sweeps. A row is one decoding loop. All rows start with the same cache and prompts,
and take turns. A sweep runs rows with several values of one setting.

| row | what it is |
|---|---|
| hf_generate | transformers' generate with its default attention, on a copy of the same KV |
| hf_prompt_lookup, hf_assisted | generate with prompt lookup; generate with the draft model as assistant |
| llama_cpp | llama.cpp with its own KV, on a GGUF file of the model; needs llama.cpp's Python binding |
| llama_cpp_lookup | llama.cpp with its binding's prompt lookup |
| llama_cpp_draft | llama.cpp with the draft model, if the draft is a GGUF file too |
| plain | our own loop, one token per pass over the full cache; timed before and after the rows compared with it |
| draft_only | drafts verified directly on the full cache (the "naive" row of TriForce) |
| retrieval_only | tokens of the target on the retrieval cache, verified on the full cache; without a draft model |
| streaming_hierarchical | hierarchical, but the retrieval cache holds sinks and newest chunks (StreamingLLM) |
| hierarchical | draft model, middle level (the target on the retrieval cache) and full cache |
| hierarchical_lookup | hierarchical, with the book's words proposed to middle level or full cache: what the app runs |
| lookup_to_middle, lookup_to_full | book's words proposed to middle level or full cache only; run if --rows names it |
| seeded | hierarchical_lookup with proposals as long as in answers with a seed; runs only if --rows names it |

The book is prefilled once for each context length. Between runs the cache is cropped to the book's tokens.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from engine.bench.peers import LLAMA_DRAFT, LLAMA_ROWS, PEERS, LlamaCpp, generate
from engine.bench.report import Axis, Measurement, Run, line_chart, measurement_of, remarks
from engine.bench.workloads import Case, Workloads, tokens_behind
from engine.config import EngineConfig, SamplingParams
from engine.decode import prefill, rounds
from engine.decode.controller import Controller, FixedDraft, FixedLengths, SpeculationPolicy
from engine.decode.drafters import Drafter, LookupDrafter, ModelDrafter, NoDrafter
from engine.decode.head_drafter import HeadDrafter
from engine.decode.levels import Hierarchy, draft_start_ms, selection_ms
from engine.decode.plans import PlanLimits
from engine.decode.rounds import Context, Judge, full_pass, pass_ms
from engine.decode.tuning import TUNING, is_slow
from engine.decode.verify import (
    Distributions,
    SampledTokens,
    make_generator,
    make_sampler,
    rejection_sample,
    rejection_sample_on_device,
)
from engine.events import Round
from engine.generation import PLAIN_PROBES
from engine.kv.full import retry_with_spill
from engine.kv.retrieval import QueryRecorder, RetrievalCache
from engine.kv.selection import PROMPT_QUERIES, KeyIndex

if TYPE_CHECKING:
    from engine.decode.acceptance import Costs
    from engine.model.backends import Backend
    from engine.session import Session


@dataclass(frozen=True)
class RowSetup:
    """The settings of a row (decoding loop) that speculates."""

    draft: bool = True
    middle: bool = True
    lookup: bool = False  # whether the drafter also proposes words from the book to the middle level
    copies: bool = False  # whether words from the book are proposed straight to the full cache
    recent: bool = (
        False  # whether the retrieval cache holds sinks and newest chunks, not the chunks with the best scores
    )
    # Whether the number of proposed tokens is chosen as for an answer with a seed: without a clock.
    seeded: bool = False


SPECULATING = {
    "draft_only": RowSetup(middle=False),
    "retrieval_only": RowSetup(draft=False),
    "streaming_hierarchical": RowSetup(recent=True),
    "hierarchical": RowSetup(),
    "hierarchical_lookup": RowSetup(lookup=True, copies=True),
}
ROWS = (*PEERS, "plain", *SPECULATING)
COMPARED = {
    "lookup_to_middle": RowSetup(lookup=True),
    "lookup_to_full": RowSetup(copies=True),
    "seeded": RowSetup(lookup=True, copies=True, seeded=True),
}
"""Rows that run only if --rows names them."""

_KINDS = SPECULATING | COMPARED
# Minimum number of prompt tokens that are computed again before every case. So every row starts with the same KV, and
# the retrieval cache's first chunks can be chosen with the queries of these tokens.
_RECOMPUTED = 2 * PROMPT_QUERIES
# Bytes of the tensor that is summed to measure how fast memory is read.
_MEMORY_BYTES = 200_000_000
# Number of times that a tensor of ``_MEMORY_BYTES`` is summed. The fastest time counts.
_MEMORY_TIMES = 7
# The row that is run again with the acceptance rates of ``set_acceptance``.
_SET_ROW = "hierarchical"
# Rows that cannot run without a draft model. All other rows that speculate can leave it out.
_DRAFTING = ("hf_assisted", "draft_only")


class NewestChunks:
    """A ``SelectionPolicy`` with which the retrieval cache always holds the attention sinks and the newest chunks,
    whatever the queries and keys are.
    """

    def score(self, queries: torch.Tensor, keys: Sequence[KeyIndex], num_chunks: int) -> torch.Tensor:
        return torch.arange(1.0, num_chunks + 1, device=queries.device).repeat(len(keys), keys[0].kv_heads, 1)


def set_acceptance(rate: float, chances: random.Random) -> Judge:
    """Make a judge that accepts each token with the probability ``rate``, whatever the models say. It computes and
    reads all that rejection sampling does, so that a round takes as long as with models whose acceptance is ``rate``.
    The text is not the target's.
    """

    def judge(
        proposed: torch.Tensor, q: Distributions | None, p: Distributions, generator: torch.Generator
    ) -> SampledTokens:
        sampled, (offered,) = rejection_sample_on_device(proposed, q, p, generator).read(proposed)
        accepted = next((at for at in range(len(offered)) if chances.random() >= rate), len(offered))
        return SampledTokens((*map(int, offered[:accepted]), sampled.tokens[-1]))

    return judge


class Bench:
    """Runs rows (decoding loops) with one session on the tokens of one book."""

    def __init__(self, session: Session, ids: Sequence[int], options: argparse.Namespace) -> None:
        self.session = session
        self.ids = list(ids)
        self.options = options
        self.workloads = Workloads(ids, session.tokenizer, self._first_answer)
        self._policies: dict[str, Controller] = {}
        self._answered: Context | None = None  # context of the most recent answer
        self._recent: tuple[RetrievalCache, Backend] | None = None
        self._cases: dict[tuple[str, int, int], list[Case]] = {}
        self._acceptance: float | None = None  # set acceptance rate of the middle level's tokens (``set_acceptance``)
        self._read = 0  # tokens of the book that have been prefilled
        self._reading: tuple[float, float | None] | None = None
        self._llama: LlamaCpp | None = None

    def run(self, settings: dict[str, Any] | None = None) -> Iterator[Measurement]:
        """Run all rows on each context length in turn. ``settings`` are those of a point of a sweep, and are recorded
        in the results.
        """
        for context in self.options.context:
            self.prefill(context)
            for workload in self.options.workloads:
                asked = workload, context, self.options.questions
                if asked not in self._cases:
                    self._cases[asked] = self.workloads.cases(*asked)
                cases = self._cases[asked]
                for temperature in self.options.temperature:
                    self._policies = {}
                    place = {"workload": workload, "context": context, "temperature": temperature}
                    yield from self._compare(
                        cases, {**place, "settings": {**(settings or {}), **remarks(self.session)}}
                    )

    def one_by_one(self, context: int, acceptances: Sequence[float] = ()) -> Iterator[Measurement]:
        """Run all rows on one prompt, and yield the measurement of each row as soon as it is made. The first answer of
        each row is not counted, because during this answer passes are recorded as CUDA graphs and costs are learned.

        Args:
            acceptances: acceptance rates with which the row ``hierarchical`` is run again (``set_acceptance``). The
                rate is named in the settings of the measurement.
        """
        self.prefill(context)
        (case, *_) = self.workloads.cases("prose", context)
        for temperature in self.options.temperature:
            runs: dict[str, list[Run]] = {}
            for rate in (None, *acceptances):
                self._policies, self._acceptance = {}, rate
                settings = {} if rate is None else {"acceptance": rate}
                place = {"workload": "prose", "context": context, "temperature": temperature, "settings": settings}
                for row in filter(self._can_run, self.options.rows if rate is None else [_SET_ROW]):
                    self.warm(row, case, temperature)
                    run = Run()
                    run.add(self.decode(row, case, temperature))
                    runs[row] = [run]
                    compares = temperature == 0 and rate is None and "plain" in runs
                    difference = self._difference([case], run, runs["plain"][0]) if compares else None
                    line = measurement_of(row, runs, place, difference, None, self._reading)
                    yield line if rate is None else replace(line, identical_to_plain=None)
            self._acceptance = None

    def reshape(self, config: EngineConfig) -> None:
        """Replace the settings by ``config``, and build the drafter and the retrieval cache anew. The full cache is
        kept.
        """
        session = self.session
        session.config = config
        session.hierarchy.close()
        session.hierarchy = Hierarchy(config, session.target, session.draft, session.full, session.costs)
        self._recent = None

    def prefill(self, context: int) -> None:
        """Make the full cache hold the first ``context`` tokens of the book and nothing else."""
        if context > len(self.ids):
            self.workloads.cases("prose", context)  # raises an InputError if the book is too short
        full = self.session.full
        # Crop the cache to the needed tokens of the book, because it may also hold more of the book, or answers of an
        # earlier workload.
        full.crop(full.nearest(min(context, max(0, self._in_cache()))))
        self.session.hierarchy.reset()
        # Reserve memory for the answers too, as a session does. Otherwise the first row would have to copy all KV to a
        # larger buffer while it decodes.
        room = min(full.limit, context + tokens_behind(self.options.workloads, self.options.tokens))
        retry_with_spill(full, lambda: full.reserve(room))
        began, spent = time.perf_counter(), time.process_time()
        missing = context - full.length
        # States of recurrent layers cannot be cropped. So a copy of the states is made shortly before the end of the
        # context, and every case begins from this copy.
        for stop in (context - 2 * _RECOMPUTED, context) if full.shape.recurrent else (context,):
            ids = self.session.target.ids(self.ids[full.length : max(0, stop)])
            if ids.shape[0]:
                prefill.run(self.session.target, full, ids, segment=4096, block=self.session.config.prefill_block)
                if stop < context:
                    full.bounded.mark()
        if missing > 0:
            seconds, cores = time.perf_counter() - began, time.process_time() - spent
            self._reading = missing / seconds, cores / seconds
            self._say(f"read {missing:,} tokens in {seconds:.1f} s")
        # compute the mean keys of the book's chunks, as a session does after reading a book
        retry_with_spill(full, self.session.hierarchy.retrieval.index_book)
        self._read = context

    def _in_cache(self) -> int:
        """Number of the book's tokens in the cache. All later tokens in the cache are questions and answers."""
        return min(self._read, self.session.full.length)

    def _compare(self, cases: list[Case], place: dict[str, Any]) -> Iterator[Measurement]:
        rows = [row for row in self.options.rows if self._can_run(row)]
        runs: dict[str, list[Run]] = {row: [] for row in rows}
        speeds: list[float] = []
        for repeat, row in itertools.product(range(self.options.repeats), _with_plain_again(rows)):
            run = Run()
            if self.options.never_slower:
                # Drop the controller with what it has learned, so that this run starts like the first answer about a
                # book.
                self._policies.pop(row, None)
            for case in cases:
                run.add(self.decode(row, case, place["temperature"], repeat))
            runs[row].append(run)
            if row == "plain":
                speeds.append(memory_gb_per_s(self.session.target.device))
            where = f"{place['workload']} {place['context']:,} T={place['temperature']}"
            self._say(f"{where} {row} {repeat + 1}: {run.ms_per_token:.1f} ms/token")
        for row in rows:
            greedy = place["temperature"] == 0 and "plain" in runs
            difference = self._difference(cases, runs[row][0], runs["plain"][0]) if greedy else None
            right = self._right(cases, runs[row][0], place["context"])
            rate = self._reading if row not in (*LLAMA_ROWS, *PEERS) else None
            if row in LLAMA_ROWS and (theirs := self.llama_cpp().read_tokens_per_s) is not None:
                rate = theirs, None
            line = measurement_of(row, runs, place, difference, right, rate)
            yield _beside_floor(line, self._plain_bytes(place["context"]), speeds) if row == "plain" else line

    def _plain_bytes(self, context: int) -> int | None:
        """Bytes that a plain step after ``context`` tokens reads. None if layers or their KV are in several memories,
        because the minimum time of a step then depends on more than one memory's speed.
        """
        full, target = self.session.full, self.session.target
        if full.placement.spilled or target.split is not None or target.layers_in_host:
            return None
        return target.bytes_read_by_step + full.shape.bytes_per_token * context + full.shape.bounded_bytes_read(context)

    def _can_run(self, row: str) -> bool:
        """Whether a row can run with this model and draft. Rows of transformers cannot run if the model has layers with
        a sliding window or a recurrent state, because only KV of the whole context can be copied to transformers.
        """
        if row in PEERS and self.session.full.shape.bounded:
            return False
        return row not in _DRAFTING or self.session.draft is not None

    def _right(self, cases: list[Case], run: Run, context: int) -> float | None:
        """Share of a run's quotations that are the book's own words. Quotations that were cut off do not count. None if
        no quotation counts.
        """
        ends = list(itertools.accumulate(run.cases))
        judged = [
            self.workloads.is_quotation(case, context, run.tokens[end - length : end])
            for case, end, length in zip(cases, ends, run.cases, strict=True)
            if case.key and length < self.options.tokens
        ]
        return sum(judged) / len(judged) if judged else None

    def decode(self, row: str, case: Case, temperature: float, repeat: int = 0) -> Run:
        """Decode one answer of a row. The seed is different for every ``repeat``, so that sampled texts differ."""
        session, options = self.session, self.options
        queries = self.start(case)
        top_p = options.top_p if temperature else 1.0
        if row in LLAMA_ROWS:
            llama = self.llama_cpp()
            if row == LLAMA_DRAFT:
                llama.take_draft(options.draft_gguf)
            llama.read(self.ids[: self._read])
            sampling = {"temperature": temperature, "top_p": top_p, "seed": options.seed + repeat}
            # no repetition penalty, because llama.cpp would apply it to other tokens than our rows do
            sampling["top_k"] = options.top_k
            ends = session.end_ids if case.ends else frozenset()
            return llama.generate(case.prompt, options.tokens, ends, sampling, row)
        if row in PEERS:
            stops = sorted(session.end_ids) if case.ends else None
            sampling = {"temperature": temperature, "top_p": top_p, "seed": options.seed + repeat}
            count = options.tokens
            return generate(row, session.target, session.draft, session.full, case.prompt, count, stops, sampling)
        # as the engine does before a question comes
        for _ in session.hierarchy.start_draft_ahead(self.ids[: self._read], self.ids[: self._read]):
            pass
        asked = time.perf_counter()
        return _timed(self.rounds(row, self.context_of(case, temperature, top_p, repeat), queries), asked)

    def warm(self, row: str, case: Case, temperature: float) -> None:
        """Decode an answer that is not measured. Then record passes as CUDA graphs, and measure how long passes take,
        as the engine does between two answers.
        """
        levels = self.session.hierarchy
        for _ in levels.record_ahead(case.prompt):
            pass
        self.decode(row, case, temperature)
        for _ in levels.record_ahead(case.prompt):
            pass
        policy = self._policies.get(row)
        if policy and self._answered:
            kind = _KINDS[row]
            retrieval, middle = self._middle_level(kind)
            if costs := levels.timed_again(self._answered, retrieval, middle, self._model_drafter(kind)):
                policy.replace_costs(costs, self._limits(kind, costs))

    def llama_cpp(self) -> LlamaCpp:
        """Return llama.cpp. The first call loads it.

        Raises:
            OptionError: llama.cpp cannot load the file that --gguf names.
        """
        if self._llama is None:
            options = self.options
            window = max(options.context) + tokens_behind(options.workloads, options.tokens)
            half_kv = not self.session.full.shape.quantized
            self._llama = LlamaCpp(options.gguf, self.session.target, window, half_kv)
        return self._llama

    def close(self) -> None:
        """End the process of llama.cpp, if it is running."""
        if self._llama is not None:
            self._llama.close()
            self._llama = None

    def start(self, case: Case) -> QueryRecorder:
        """Bring all tokens of the prompt except the last into the full cache. Returns the queries with which the
        retrieval cache's first chunks are chosen.
        """
        session, prompt = self.session, case.prompt
        full, target = session.full, session.target
        queries = QueryRecorder(full.shape.layers)
        full.crop(full.nearest(max(0, min(self._in_cache(), case.selection_position - 1 - _RECOMPUTED))))
        for stop, observer in ((case.selection_position, queries), (len(prompt) - 1, None)):
            rest = target.ids(prompt[full.length : min(stop, len(prompt) - 1)])
            if rest.shape[0]:
                block = session.config.prefill_block
                prefill.run(target, full, rest, segment=4096, block=block, observer=observer)
        return queries

    def context_of(self, case: Case, temperature: float, top_p: float, repeat: int = 0) -> Context:
        session, options, rate = self.session, self.options, self._acceptance
        judge = rejection_sample if rate is None else set_acceptance(rate, random.Random(options.seed + repeat))
        return Context(
            session.hierarchy.verify,
            session.full,
            list(case.prompt),
            make_sampler(self._sampling(temperature, top_p), session.target.ids([])),
            make_generator(options.seed + repeat, session.target.token_device),
            session.end_ids if case.ends else frozenset(),
            options.tokens,
            judge=judge,
        )

    def _sampling(self, temperature: float, top_p: float) -> SamplingParams:
        if not temperature:
            return SamplingParams()
        options = self.options
        penalty = options.repetition_penalty
        return SamplingParams(temperature=temperature, top_p=top_p, top_k=options.top_k, repetition_penalty=penalty)

    def rounds(self, row: str, context: Context, queries: QueryRecorder) -> Iterator[Round]:
        """Decode an answer of one of our own rows, round by round. ``start`` must have brought the prompt into the
        cache.
        """
        self._answered = context
        if row == "plain":
            return rounds.plain(context)
        kind, levels = _KINDS[row], self.session.hierarchy
        context.repeats = kind.seeded
        retrieval, middle = self._middle_level(kind)
        drafter = self._drafter(kind)

        def begin(first: Round) -> Iterator[Round]:
            if not context.max_tokens:
                return iter(())
            rounds.start(context, retrieval, drafter, queries)
            policy = self._policy(row, kind, context, rounds.plain_step_ms(first), retrieval, middle)
            index = levels.index if kind.draft and (kind.lookup or kind.copies) else None
            return rounds.hierarchical(context, retrieval, drafter, levels.speculation(policy, index, middle))

        first, others = rounds.first_token(context, None, begin)
        return itertools.chain((first,), _when_asked(others))

    def _middle_level(self, kind: RowSetup) -> tuple[RetrievalCache, Backend]:
        """Return the retrieval cache of a row, and the backend that runs passes over this cache."""
        levels = self.session.hierarchy
        return self._recent_chunks() if kind.recent else (levels.retrieval, levels.middle)

    def _model_drafter(self, kind: RowSetup) -> ModelDrafter | HeadDrafter | None:
        return self.session.hierarchy.model_drafter if kind.draft else None

    def _limits(self, kind: RowSetup, costs: Costs) -> PlanLimits:
        """Return the maximum numbers of tokens and passes in a round of a row, given the costs of passes."""
        allowed = self.session.hierarchy.limits(costs)
        return PlanLimits(
            allowed.draft if kind.draft else 0,
            allowed.passes if kind.middle else 0,
            TUNING.copy_lengths[-1] if kind.copies else 0,
        )

    def _recent_chunks(self) -> tuple[RetrievalCache, Backend]:
        """Return a retrieval cache that holds the newest chunks, and the backend that runs passes over this cache. Both
        are made once and used for all answers.
        """
        if self._recent is None:
            levels = self.session.hierarchy
            self._recent = levels.make_retrieval(NewestChunks()), levels.make_middle()
        return self._recent

    def _drafter(self, kind: RowSetup) -> Drafter:
        levels, device = self.session.hierarchy, self.session.target.token_device
        if not kind.draft:
            return NoDrafter(device)
        if kind.lookup:
            return levels.drafter
        model = levels.model_drafter or NoDrafter(device)
        if kind.copies and levels.index is not None:
            return LookupDrafter(model, levels.index, 0, device)
        return model

    def _policy(
        self, row: str, kind: RowSetup, context: Context, plain_ms: float, retrieval: RetrievalCache, middle: Backend
    ) -> SpeculationPolicy:
        """Return the policy that decides how many tokens the row proposes. If the options give numbers, these are
        proposed in every round. A seeded row has the policy of answers with a seed. Every other row has a controller,
        which it keeps for all its runs.

        Args:
            plain_ms: milliseconds of the step that made the first token.
        """
        levels = self.session.hierarchy
        draft = levels.fixed.plan.draft if kind.draft else 0
        if levels.lengths_are_given:
            given = levels.fixed.plan
            return FixedLengths(draft, given.pending) if kind.middle else FixedDraft(draft)
        if kind.seeded:
            return levels.seeded_policy(context)
        if row not in self._policies:
            for _ in () if is_slow(plain_ms) else range(PLAIN_PROBES - 1):
                plain_ms = min(plain_ms, pass_ms(context.backend, context.full, context.tokens, 1, None))
            costs = levels.first_costs(context, plain_ms, retrieval, middle, self._model_drafter(kind))
            self._policies[row] = Controller(costs, self._limits(kind, costs))
        model, policy = self._model_drafter(kind), self._policies[row]
        start_ms = draft_start_ms(context, policy.costs, model)
        policy.begin(start_ms, selection_ms(retrieval, policy.costs), context.max_tokens)
        return policy

    def _first_answer(self, prompt: list[int], count: int) -> list[int]:
        """Decode a greedy answer of at most ``count`` tokens without speculation."""
        case = Case(prompt, len(prompt), ends=True)
        self.start(case)
        context = self.context_of(case, 0.0, 1.0)
        context.max_tokens = count
        return [token for done in rounds.plain(context) for token in done.tokens]

    def _difference(self, cases: list[Case], run: Run, plain: Run) -> tuple[int, float] | None:
        """Find the first token at which the answers of a greedy row differ from those of plain decoding. Returns its
        position, and the difference between the logits of plain decoding's token and the row's token; None if no token
        differs.
        """
        start = 0
        for case, mine, theirs in zip(cases, run.cases, plain.cases, strict=True):
            ours, expected = run.tokens[start : start + mine], plain.tokens[start : start + theirs]
            at = next((i for i, pair in enumerate(zip(ours, expected, strict=False)) if pair[0] != pair[1]), None)
            if at is not None:
                return start + at, self._margin(case, expected[:at], expected[at], ours[at])
            start += theirs
        return None

    def _margin(self, case: Case, prefix: list[int], expected: int, found: int) -> float:
        self.start(case)
        session, start = self.session, len(case.prompt) - 1
        with torch.inference_mode():
            logits = full_pass(session.hierarchy.verify, session.full, start, [case.prompt[-1], *prefix])[-1]
        return float(logits[expected] - logits[found])

    def _say(self, text: str) -> None:
        if not self.options.quiet:
            sys.stderr.write(text + "\n")


def _when_asked(others: Callable[[], Iterator[Round]]) -> Iterator[Round]:
    yield from others()


def _with_plain_again(rows: list[str]) -> list[str]:
    """Append the row plain to the rows, so that plain decoding is timed both before and after the other rows, which are
    compared with it.
    """
    return [*rows, "plain"] if "plain" in rows and len(rows) > 1 else rows


def memory_gb_per_s(device: torch.device) -> float:
    """Measure how fast all threads read a device's memory, by summing a tensor that is larger than a processor's cache.
    The fastest of several sums counts.
    """
    numbers = torch.ones(_MEMORY_BYTES // 4, device=device)
    taken = []
    for _ in range(_MEMORY_TIMES):
        began = time.perf_counter()
        float(numbers.sum())
        taken.append(time.perf_counter() - began)
    return _MEMORY_BYTES / min(taken) / 1e9


def _beside_floor(line: Measurement, read: int | None, speeds: Sequence[float]) -> Measurement:
    """Return ``line``, a line of the row plain, with ``over_floor`` set: the line's time per token, divided by the time
    of reading ``read`` bytes at the fastest of ``speeds`` (GB/s). If ``read`` is None, ``over_floor`` is not set.
    """
    if read is None:
        return line
    speed = max(speeds)
    return replace(line, over_floor=line.ms_per_token / (read / speed / 1e6), memory_gb_per_s=round(speed, 1))


def _timed(rounds: Iterator[Round], start_s: float) -> Run:
    """Decode all rounds of an answer, and measure their times.

    Args:
        start_s: the time (``time.perf_counter``) when the prompt was in the cache.
    """
    run = Run()
    clock, spent = time.perf_counter(), time.process_time()
    for done in rounds:
        now = time.perf_counter()
        run.tokens += done.tokens
        # The first round was decoded before this loop began (in ``rounds.first_token``). So its time cannot be measured
        # here, and is the total of its ``split``.
        ms = max((now - clock) * 1000.0, done.split.total)
        run.ms += [ms / len(done.tokens)] * len(done.tokens)
        run.rounds.append(done)
        run.first_s = run.first_s or [now - start_s]
        clock = now
    run.processor_s = time.process_time() - spent
    return run


# Sweeps: one setting is varied and all others stay, as in TriForce's ablations -----------------------------------

# Numbers of proposed tokens in most sweeps, whatever the options say. These sweeps compare acceptance, and a controller
# would hide differences, because it proposes fewer tokens if they are accepted less often. The sweep "refresh" also
# compares time, so it does not use fixed numbers.
_FIXED: dict[str, Any] = {"num_draft_tokens": 4, "num_pending_tokens": 8}
BUDGETS = (512, 1024, 2048, 4096, 8192)
_CHUNKS = (1, 2, 4, 8, 16, 64)
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
GAMMAS1 = (1, 2, 4, 6, 8)  # numbers of tokens that the draft model proposes at once (gamma 1), in the sweep "gammas"
GAMMAS2 = (4, 8, 12, 16, 24)  # numbers of tokens that wait for a verification (gamma 2), in the sweep "gammas"
_REFRESHES = ("never", "8", "4", "2", "1", "drop", "default")

SWEEPS = ("budget", "chunk", "temperature", "gammas", "refresh", "threads")


def refresh_settings(name: str) -> dict[str, Any]:
    """Return the settings for a short name of a refresh policy: "never", "drop", "default" (changes nothing), or the
    number of verifications between two refreshes.
    """
    if name == "default":
        return {}
    return {"refresh": "every", "refresh_every": int(name)} if name.isdecimal() else {"refresh": name}


def sweep_points(sweep: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], float | None]]:
    """Yield the points of a sweep. A point consists of a label for the results, changes of the configuration, and a
    temperature (None keeps the temperatures of the options).
    """
    if sweep == "budget":
        yield from (({"budget": n}, {**_FIXED, "retrieval_budget": n}, None) for n in BUDGETS)
    elif sweep == "chunk":
        yield from (({"chunk": n}, {**_FIXED, "chunk_size": n}, None) for n in _CHUNKS)
    elif sweep == "temperature":
        yield from (({"temperature": t}, dict(_FIXED), t) for t in TEMPERATURES)
    elif sweep == "gammas":
        for one in GAMMAS1:
            for two in GAMMAS2:
                label = {"gamma1": one, "gamma2": two}
                yield label, {"num_draft_tokens": one, "num_pending_tokens": two}, None
    elif sweep == "threads":
        yield from (({"threads": n}, dict(_FIXED), None) for n in range(1, torch.get_num_threads() + 1))
    else:
        yield from (({"refresh": name}, refresh_settings(name), None) for name in _REFRESHES)


def run_sweep(bench: Bench, sweep: str) -> Iterator[Measurement]:
    """Run the rows that the options name with every setting of a sweep. The bench's own settings are restored at the
    end.
    """
    own = bench.session.config
    asked, threads = list(bench.options.temperature), torch.get_num_threads()
    for label, changes, temperature in sweep_points(sweep):
        bench.reshape(replace(own, **changes))
        torch.set_num_threads(label.get("threads", threads))
        bench.options.temperature = asked if temperature is None else [temperature]
        yield from bench.run(label)
    bench.reshape(own)
    torch.set_num_threads(threads)
    bench.options.temperature = asked


def sweep_picture(sweep: str, results: list[Measurement]) -> str:
    """Return a chart, as an SVG document, of a sweep's results. It shows how the acceptance of tokens of the middle
    level (the target on the retrieval cache) depends on the setting. For the sweeps "gammas", "threads" and "refresh",
    it shows how the time depends on the setting.
    """
    lines: dict[str, list[tuple[float, float]]] = {}
    for r in results:
        name = f"{r.row}, {r.workload} {r.context:,}"
        value = r.acceptance.get("retrieval_judged")
        if sweep == "gammas":
            lines.setdefault(f"gamma1 {r.settings['gamma1']}", []).append((r.settings["gamma2"], r.ms_per_token))
        elif sweep == "threads":
            for stage in ("draft", "middle", "verify"):
                lines.setdefault(f"{stage}, {name}", []).append((r.settings["threads"], r.time_split[stage]))
        elif sweep == "refresh":
            x = _REFRESHES.index(r.settings["refresh"])
            lines.setdefault(name, []).append((x, r.ms_per_token))
        elif value is not None:
            lines.setdefault(name, []).append((float(r.settings[sweep]), value))
    if sweep == "gammas":
        return line_chart("Time against lengths", Axis("gamma 2"), Axis("ms per token"), lines)
    if sweep == "threads":
        return line_chart("Time by level against threads", Axis("threads"), Axis("ms per token"), lines)
    if sweep == "refresh":
        names = ", ".join(f"{i} = {name}" for i, name in enumerate(_REFRESHES))
        return line_chart("Time against refreshing", Axis(names), Axis("ms per token"), lines)
    axis = Axis(
        {"budget": "retrieval budget, tokens", "chunk": "chunk size, tokens"}.get(sweep, sweep), sweep != "temperature"
    )
    return line_chart(f"Acceptance against {sweep}", axis, Axis("accepted / judged, middle level"), lines)
