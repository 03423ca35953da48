"""Which environment variables a process inside the program's environment is started with."""

from __future__ import annotations

import os
from collections.abc import Mapping

# A person's settings for their own installs must not send packages elsewhere, nor another Python's files in.
_FOREIGN_VARIABLES = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "__PYVENV_LAUNCHER__", "VIRTUAL_ENV"),
    *("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV", "PIP_REQUIRE_HASHES"),
)


def child_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables for processes inside the environment: nothing of another Python gets in."""
    kept = {name: value for name, value in environ.items() if name not in _FOREIGN_VARIABLES}
    return {**kept, "PYTHONNOUSERSITE": "1", "PYTHONUTF8": "1"}
