"""Runs the bench without the app: ``python -m engine.bench``. Needs only torch and transformers.

Books are plain text files. Without --model the bundled pair of models is used, and without --book the sample book.
"""

from __future__ import annotations

import logging
import sys

from engine.bench import main
from engine.bench.workloads import DRAFT, SAMPLE, TARGET, open_text
from engine.errors import TrifoldError
from engine.threads import limit_instructions, sleep_while_waiting

if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    sleep_while_waiting()
    limit_instructions()
    try:
        sys.exit(main(sys.argv[1:], model=TARGET, draft=DRAFT, book=SAMPLE, open_book=open_text))
    except TrifoldError as error:
        sys.exit(str(error))
