"""How long the fuzzers look: bounded in a normal run, twenty times longer with TRIFOLD_LONG=1. And what they try."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

LONG = bool(os.environ.get("TRIFOLD_LONG"))


def looked_at(examples: int) -> settings:
    """Settings for so many examples, with nothing about this machine's speed in them."""
    quiet = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples * (20 if LONG else 1), deadline=None, suppress_health_check=quiet)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["user", "system", "auto"]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def named(names: list[str], values: Any = JSON) -> Any:
    """Objects with some of these names."""
    return st.dictionaries(st.sampled_from(names), values, max_size=len(names))


def mutated(whole: dict[str, Any]) -> Any:
    """A good record with some of its fields replaced, anywhere in it, or gone."""

    def change(value: Any) -> Any:
        if isinstance(value, dict):
            return st.fixed_dictionaries({}, optional={name: change(inner) for name, inner in value.items()})
        if isinstance(value, list):
            if not value:
                return JSON
            return st.one_of(st.just(value), JSON, st.lists(st.one_of(*map(change, value)), max_size=3))
        return st.one_of(st.just(value), st.just(value), JSON)

    return change(whole)
