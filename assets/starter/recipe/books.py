"""The books that are kept out of training, in addition to those that the demo's rule holds back."""

OF_THE_EVALUATION = frozenset(("kidnapped", "moby-dick", "pride-and-prejudice", "adventures-of-huckleberry-finn"))
"""Works that the project uses as documents in its evaluation and elsewhere."""
