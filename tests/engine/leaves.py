"""The arguments and results of torch's operations, walked: tuples, lists and dictionaries of tensors and numbers.

As torch's own pytree, which knows more kinds and takes several times as long: simulated devices walk at each operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def tree_map(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same with each leaf changed; named tuples come back as plain ones."""
    kind = type(tree)
    if kind is list:
        return [tree_map(change, x) for x in tree]
    if kind is tuple or (isinstance(tree, tuple) and not hasattr(tree, "numel")):
        return tuple([tree_map(change, x) for x in tree])
    if kind is dict:
        return {key: tree_map(change, x) for key, x in tree.items()}
    return change(tree)


def tree_leaves(tree: Any) -> list[Any]:
    """All that is neither a tuple, a list nor a dictionary, in order."""
    found: list[Any] = []
    _gather(tree, found)
    return found


def _gather(tree: Any, found: list[Any]) -> None:
    kind = type(tree)
    if kind is tuple or kind is list or (isinstance(tree, tuple) and not hasattr(tree, "numel")):
        for x in tree:
            _gather(x, found)
    elif kind is dict:
        for x in tree.values():
            _gather(x, found)
    else:
        found.append(tree)
