"""What trees of drafted tokens could gain between draft and middle level, at best: measured, and not built.

    python -m engine.bench.trees [--book FILE] [--context 2048,32768] [--workloads prose,quote] [--tokens 96]

The target writes a greedy text, and for every token of it the draft model says at which rank it held that token. So it
is known how far a chain, or a tree of any shape, would have got from every place. What its passes cost is timed on the
same caches: a pass of the draft model for every level of the tree, over as many tokens as have children there, and one
middle pass over all its tokens. Nothing is charged for what a tree needs besides (its mask, and moving the KV of the
path that stands), so the gain is an upper bound. The best chain is the baseline, the better of its lengths.

Shapes are written by how many alternatives are tried at each level: ``2 1 1`` is a tree of two chains of three tokens;
``comb 4x2`` is a chain of four with the second-likeliest token beside each of them, which costs no more of the draft.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from engine.bench import open_bench, parser
from engine.bench.__main__ import open_text
from engine.bench.bundled import DRAFT, SAMPLE, TARGET
from engine.bench.rows import Bench
from engine.bench.workloads import Case
from engine.config import SamplingParams
from engine.costs import PassCost, cost_of
from engine.drafters import ModelDrafter
from engine.hierarchy import measure
from engine.lookup_drafter import LookupDrafter
from engine.sampling import Sampler, make_generator
from engine.threads import sleep_while_waiting

MOST_NODES, LONGEST = 16, 8
_TIMED_TOKENS, _RUNS = 8, 5


@dataclass(frozen=True)
class Shape:
    """Alternatives at each level; in a ``comb`` only the likeliest of them has children."""

    widths: tuple[int, ...]
    comb: bool = False

    @property
    def nodes(self) -> int:
        """Tokens of the tree, its root not among them."""
        return sum(self.levels)

    @property
    def levels(self) -> list[int]:
        """Tokens of each level."""
        return list(self.widths) if self.comb else list(itertools.accumulate(self.widths, int.__mul__))

    @property
    def parents(self) -> list[int]:
        """Tokens that the draft model runs on for each level."""
        return [1] * len(self.widths) if self.comb else [1, *self.levels[:-1]]

    def accepted(self, ranks: Sequence[int]) -> int:
        """Tokens that stand where the next true tokens have these ranks (1 is the draft's likeliest)."""
        for depth, (rank, width) in enumerate(zip(ranks, self.widths, strict=False)):
            if rank > width:
                return depth
            if self.comb and rank > 1:
                return depth + 1
        return min(len(ranks), len(self.widths))

    def __str__(self) -> str:
        if self.comb:
            return f"comb {len(self.widths)}x{self.widths[0]}"
        return f"chain {len(self.widths)}" if set(self.widths) == {1} else "tree " + " ".join(map(str, self.widths))


def shapes() -> Iterator[Shape]:
    """Chains up to ``LONGEST``, and every tree and comb of at most ``MOST_NODES`` tokens that narrows downwards."""
    for length in range(1, LONGEST + 1):
        for widths in itertools.combinations_with_replacement((4, 3, 2, 1), length):
            tree = Shape(widths)
            if tree.nodes <= MOST_NODES:
                yield tree
    for length, width in itertools.product(range(1, LONGEST + 1), (2, 3, 4)):
        if length * width <= MOST_NODES:
            yield Shape((width,) * length, comb=True)


def tokens_per_pass(shape: Shape, ranks: Sequence[int]) -> float:
    """Mean tokens of a middle pass, its own one among them, over a text whose tokens have these ranks."""
    passes = at = 0
    while at < len(ranks):
        at += shape.accepted(ranks[at:]) + 1
        passes += 1
    return len(ranks) / max(1, passes)


def pass_ms(shape: Shape, draft: PassCost, middle: PassCost) -> float:
    """Milliseconds of drafting the shape and judging it in one middle pass."""
    return sum(draft.ms(count) for count in shape.parents) + middle.ms(shape.nodes + 1)


def ranks_of(bench: Bench, drafter: ModelDrafter, case: Case, text: Sequence[int]) -> list[int]:
    """At which rank the draft model held every token of a text that follows the prompt."""
    sampler, generator = Sampler(SamplingParams(temperature=1.0)), make_generator(0, bench.session.target.device)
    drafter.begin(case.prompt)
    ranks = []
    with torch.inference_mode():
        for at, token in enumerate(text):
            context = [*case.prompt, *text[:at]]
            law = drafter.propose(context, 1, sampler, generator).probs
            assert law is not None
            ranks.append(1 + int((law[0] > law[0, token]).sum()))
            drafter.settle([*context, token])
    return ranks


def draft_cost(drafter: ModelDrafter, device: torch.device) -> PassCost:
    """What passes of the draft model cost over one token and over several. The drafter must begin anew afterwards."""

    def timed(count: int) -> float:
        ids = torch.zeros(count, dtype=torch.long, device=device)
        return _best(lambda: drafter.probe(ids))

    return cost_of(timed(1), timed(_TIMED_TOKENS), _TIMED_TOKENS)


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_RUNS):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) * 1000.0)
    return min(times)


def main(arguments: Sequence[str]) -> int:
    """Prints, for every context and workload, the best chain and the best trees."""
    sleep_while_waiting()
    options: argparse.Namespace = parser().parse_args(arguments)
    options.model = options.model or TARGET
    options.draft = options.draft or DRAFT
    options.rows, options.repeats = ["plain"], 1
    book = open_text(options.book or SAMPLE)
    bench = open_bench(options, book)
    session = bench.session
    drafter = session.hierarchy.drafter
    model = drafter.inner if isinstance(drafter, LookupDrafter) else drafter
    if not isinstance(model, ModelDrafter):
        sys.exit("Trees are drafted by a draft model: name one with --draft.")
    sys.stdout.write(
        "| context | text | shape | tokens drafted | tokens a pass | ms a token | against the best chain |\n"
    )
    sys.stdout.write("|---|---|---|---|---|---|---|\n")
    for context, workload in itertools.product(options.context, options.workloads):
        bench.prefill(context)
        ranks: list[int] = []
        for case in bench.workloads.cases(workload, context):
            text = bench.decode("plain", case, 0.0).tokens
            ranks += ranks_of(bench, model, case, text)
        tap, place = bench.start(case), bench.context_of(case, 0.0, 1.0)
        session.hierarchy.aim(place, tap)
        middle = measure(place, 1.0, session.hierarchy.retrieval, model).middle
        draft = draft_cost(model, session.target.device)
        for line in lines(ranks, draft, middle):
            sys.stdout.write(f"| {context:,} | {workload} | {line} |\n")
    return 0


def lines(ranks: Sequence[int], draft: PassCost, middle: PassCost) -> Iterator[str]:
    """The best chain, and the three best shapes that are none."""
    figures = {shape: tokens_per_pass(shape, ranks) for shape in shapes()}
    cost = {shape: pass_ms(shape, draft, middle) / mean for shape, mean in figures.items()}
    ordered = sorted(cost, key=lambda shape: cost[shape])
    chain = next(shape for shape in ordered if str(shape).startswith("chain"))
    trees = [shape for shape in ordered if not str(shape).startswith("chain")][:3]
    for shape in (chain, *trees):
        gain = cost[chain] / cost[shape]
        yield f"{shape} | {shape.nodes} | {figures[shape]:.2f} | {cost[shape]:.2f} | {gain:.2f}x"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
