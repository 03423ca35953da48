"""The arguments and results of torch's operations, walked: tuples, lists and dictionaries of tensors and numbers.

As torch's own pytree, which knows more kinds and takes several times as long: simulated devices walk at each operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def tree_map(change: Callable[[Any], Any], tree: Any) -> Any:
    """The same with each leaf changed; named tuples come back as plain ones."""
    if isinstance(tree, tuple) and not hasattr(tree, "numel"):
        return tuple([tree_map(change, x) for x in tree])
    if isinstance(tree, list):
        return [tree_map(change, x) for x in tree]
    if isinstance(tree, dict):
        return {key: tree_map(change, x) for key, x in tree.items()}
    return change(tree)


def tree_leaves(tree: Any) -> Iterator[Any]:
    """All that is neither a tuple, a list nor a dictionary, in order."""
    if isinstance(tree, (tuple, list)) and not hasattr(tree, "numel"):
        for x in tree:
            yield from tree_leaves(x)
    elif isinstance(tree, dict):
        for x in tree.values():
            yield from tree_leaves(x)
    else:
        yield tree
