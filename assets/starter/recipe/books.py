"""Which books are kept out of training beside those that the demo's rule holds back."""

OF_THE_EVALUATION = frozenset(("kidnapped", "moby-dick", "pride-and-prejudice", "adventures-of-huckleberry-finn"))
"""The project is tried on the same works as documents, in the evaluation and elsewhere."""
