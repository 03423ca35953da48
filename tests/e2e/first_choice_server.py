"""The page with a scripted engine, until the starter takes its place, which is a tiny one.

python -m tests.e2e.first_choice_server PORT DATA
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from app.core.state import AppState
from app.models import hub
from app.models.engine_proxy import EngineProxy
from tests.app.models.fake_starter import PROGRAM
from tests.e2e import scripted_server


def _around(engine: Any, *rest: Any) -> AppState:
    return AppState(EngineProxy.around(engine), *rest)


if __name__ == "__main__":
    hub.PROGRAMS.update(dict.fromkeys(hub.PROGRAMS, PROGRAM))
    scripted_server.AppState = _around  # type: ignore[assignment, misc]
    scripted_server.main(int(sys.argv[1]), Path(sys.argv[2]), slow=False)
