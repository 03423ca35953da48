"""``python -m app.cli`` runs the commands without the launcher, in a Python environment that the user has made."""

import sys

from app.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
