"""Constants of the circuit that `wiring.py` sets by hand: what each dimension of a hidden state holds, and how strongly
it is scaled.
"""

from __future__ import annotations

HEAD_DIM = 128
CODE = 80
"""Number of dimensions of a token's code, of X and of C."""
LAGS = 3
FARTHER = 0.8
"""Weight of lags 4 to 6 relative to 1 to 3, and of lags 7 to 9 relative to 4 to 6."""
TOKEN, NEWEST, THREE, COPY = (slice(part * CODE, (part + 1) * CODE) for part in range(4))
"""Dimensions of a position with its token's code, X, Y and C."""
CONSTANT, BOOK_START, ANY_ROLE, ROLES, ROLE_SEEN = 320, 321, 322, slice(323, 326), slice(326, 329)
ELLIPSIS, BEGUN = 329, slice(330, 332)
"""Dimensions that mark a quotation's ellipsis, an ellipsis one to three tokens back, and an ellipsis four to nine
tokens back.
"""
MARKS = slice(CONSTANT, BEGUN.stop)
THREE_GAIN, ELLIPSIS_SCALE = 0.2, 3.0
CODE_SCALE, CONSTANT_SCALE, MARK_SCALE, LAG_GAIN = 1.75, 5.0, 9.0, 0.55
COPY_GAIN, OUTPUT_GAIN, ROLE_CARRIED = 1.5, 3.0, 0.6
QUESTION_GAIN, BOOK_GAIN, BEGIN_GAIN, NEVER = 5.0, 2.6, 1.2, 6.0
"""Gains of the lookup heads. The question head has the largest, because a false match may mislead the heads of the
book. NEVER: a number of matched tokens that no match reaches.
"""
