"""What stands where in a position of the circuit's models, and how strong it is. Numbers only."""

from __future__ import annotations

HEAD_DIM = 128
CODE = 80
"""Dimensions of a token's code, of X and of C."""
LAGS = 3
FARTHER = 0.8
"""Weight of lags 4 to 6 against 1 to 3, and of 7 to 9 against 4 to 6."""
TOKEN, NEWEST, THREE, COPY = (slice(part * CODE, (part + 1) * CODE) for part in range(4))
"""Of a position: its token's code, X, Y and C."""
CONSTANT, BOOK_START, ANY_ROLE, ROLES, ROLE_SEEN = 320, 321, 322, slice(323, 326), slice(326, 329)
ELLIPSIS, BEGUN = 329, slice(330, 332)
"""A quotation's ellipsis; and that one stands one to three, and four to nine tokens back."""
MARKS = slice(CONSTANT, BEGUN.stop)
THREE_GAIN, ELLIPSIS_SCALE = 0.2, 3.0
CODE_SCALE, CONSTANT_SCALE, MARK_SCALE, LAG_GAIN = 1.75, 5.0, 9.0, 0.55
COPY_GAIN, OUTPUT_GAIN, ROLE_CARRIED = 1.5, 3.0, 0.6
QUESTION_GAIN, BOOK_GAIN, BEGIN_GAIN, NEVER = 5.0, 2.6, 1.2, 6.0
"""The question speaks louder than both heads of the book, which a false match may lead astray; more matched tokens than
there are."""
