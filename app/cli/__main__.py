"""``python -m app.cli`` runs the commands without the launcher, in an environment that a person has made."""

import sys

from app.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
