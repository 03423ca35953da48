"""Runs ``engine.distill`` from the command line: ``python -m engine.distill``."""

from __future__ import annotations

import logging
import sys

from engine.distill import main
from engine.errors import TrifoldError
from engine.threads import sleep_while_waiting

if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    sleep_while_waiting()
    try:
        sys.exit(main(sys.argv[1:]))
    except TrifoldError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Stopped. The same command goes on from here.")
