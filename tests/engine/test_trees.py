"""What trees of drafted tokens could gain: the shapes, how far they get, what they cost."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from engine.bench.trees import LONGEST, MOST_NODES, Shape, lines, pass_ms, shapes, tokens_per_pass
from engine.costs import PassCost


def test_shapes_are_chains_trees_and_combs_within_the_bounds() -> None:
    made = list(shapes())
    assert len(set(made)) == len(made)
    assert {str(shape) for shape in made} >= {"chain 1", f"chain {LONGEST}", "tree 2 1 1", "tree 4 2", "comb 4x2"}
    assert all(shape.nodes <= MOST_NODES for shape in made)


@pytest.mark.parametrize(
    ("shape", "ranks", "accepted"),
    [
        (Shape((1, 1, 1)), [1, 1, 2, 1], 2),
        (Shape((1, 1, 1)), [1, 1, 1, 1], 3),
        (Shape((2, 1, 1)), [2, 1, 1, 1], 3),
        (Shape((2, 1, 1)), [2, 2, 1, 1], 1),
        (Shape((2, 2), comb=True), [2, 1, 1], 1),
        (Shape((2, 2), comb=True), [1, 2, 1], 2),
        (Shape((2, 2), comb=True), [3, 1, 1], 0),
        (Shape((1, 1, 1)), [1], 1),
    ],
)
def test_a_shape_gets_as_far_as_the_true_tokens_are_in_it(shape: Shape, ranks: list[int], accepted: int) -> None:
    assert shape.accepted(ranks) == accepted


def test_every_pass_adds_a_token_of_its_own() -> None:
    assert tokens_per_pass(Shape((1, 1)), [1, 1, 5, 1, 1, 5]) == 3.0
    assert tokens_per_pass(Shape((1, 1)), [5, 5, 5]) == 1.0


def test_a_tree_costs_a_draft_pass_for_each_level_and_one_middle_pass() -> None:
    draft, middle = PassCost(1.0, 0.1), PassCost(10.0, 0.5)
    assert pass_ms(Shape((1, 1)), draft, middle) == pytest.approx(2.0 + 11.0)
    assert pass_ms(Shape((2, 2)), draft, middle) == pytest.approx(1.0 + 1.1 + 10.0 + 0.5 * 6)
    assert pass_ms(Shape((2, 2), comb=True), draft, middle) == pytest.approx(2.0 + 10.0 + 0.5 * 4)


def test_the_best_chain_is_the_baseline() -> None:
    rows = list(lines([1, 2] * 20, PassCost(1.0, 0.0), PassCost(10.0, 0.0)))
    assert rows[0] == "chain 1 | 1 | 2.00 | 5.50 | 1.00x"
    assert {row.split(" | ", 1)[1] for row in rows[1:]} <= {f"{n} | 4.00 | 3.25 | 1.69x" for n in range(MOST_NODES + 1)}
