"""Gradio's status trackers without their clock, which would have the browser draw in every frame.

A tracker counts the seconds that something takes and asks for the next frame to count on. The one of Gradio's start
page is taken away without being told to stop, so every page would be drawn sixty times a second for good, also when
nothing happens; without a graphics card that is the engine's time. The page shows no such clock, so the trackers' file
is served without it. The place is checked: in a Gradio that has another one, starting fails with a sentence.
"""

from __future__ import annotations

import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from engine.errors import EngineError

_FILES = "statustracker-*.js"
_NAME = r"[\w$]+"
# function clock() { frame(() => { set(seconds, (performance.now() - get(begun)) / 1e3); running && clock() }) }
_CLOCK = re.compile(
    rf"function ({_NAME})\(\)\{{{_NAME}\(\(\)=>\{{{_NAME}\({_NAME},\(performance\.now\(\)-{_NAME}\({_NAME}\)\)/1e3\),"
    rf"{_NAME}&&\1\(\)\}}\)\}}"
)


def route() -> Route:
    """Stands before Gradio's own route for the same file.

    Raises:
        EngineError: the trackers are not those of the Gradio that is pinned.
    """
    import gradio

    folder = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
    files = list(folder.glob(_FILES))
    if len(files) != 1:
        raise _other()
    script = without_clock(files[0].read_text(encoding="utf-8"))

    async def serve(request: Request) -> Response:
        return Response(script, media_type="text/javascript", headers={"cache-control": "no-cache"})

    return Route(f"/assets/{files[0].name}", serve)


def without_clock(script: str) -> str:
    """The trackers' file with a clock that stands still.

    Raises:
        EngineError: there is no clock in it, or more than one.
    """
    still, clocks = _CLOCK.subn(r"function \1(){}", script)
    if clocks != 1:
        raise _other()
    return still


def _other() -> EngineError:
    return EngineError("This version of Gradio has other status trackers.", "Install the one in requirements.txt.")
