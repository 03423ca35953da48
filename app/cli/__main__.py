"""``python -m app.cli``: the commands without the launcher, for whoever has made an environment of their own."""

import sys

from app.cli.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
