"""The process in which foreign bytes are parsed: ``python -m app.readers.child``.

Takes one request on standard input, answers on standard output, and is gone. Sets its own memory limit before any
parser is imported, and ends when its parent does. Imports neither the engine nor the app.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

from app.readers import sandbox
from app.readers.parsed import Limits, Parsed, Refused

_UNREADABLE = "It is probably damaged. Try to open it in another program, or get the file again."


class Voice:
    """How a parser speaks to the parent.

    ``step`` is called before each page, which tells the parent where the child is and that it is alive.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def say(self, message: dict[str, Any]) -> None:
        sandbox.send_message(self._stream, message)

    def step(self, done: int, total: int, page: int | None = None) -> None:
        self.say({"type": "step", "done": done, "total": total, "page": page})


def main() -> None:
    voice = Voice(_claim_output())
    request = sandbox.receive_message(sys.stdin.buffer)
    if request is None:
        return
    bounded = _limit_memory(int(request["memory_bytes"]))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    voice.say({"type": "ready", "bounded": bounded})
    try:
        _work(request, voice)
    except Refused as refused:
        voice.say(_refusal(refused))
    except MemoryError:
        voice.say({"type": "failed"})
    except (Exception, RecursionError):  # noqa: BLE001 - a parser meets foreign bytes and may raise anything
        voice.say(_refusal(Refused("could not be read.", _UNREADABLE)))
    voice.say({"type": "done"})


def _work(request: dict[str, Any], voice: Voice) -> None:
    if request["work"] == "read":
        from app.readers.detect import parse

        _tell(parse(Path(request["path"]), request, Limits(**request["limits"]), voice.step), voice)
        return
    if request["work"] == "gguf":
        from app.readers import gguf

        voice.say({"type": "answer", "value": gguf.header(Path(request["path"]))})
        return
    from app.readers import pdf_render

    work = {"render": pdf_render.render, "find": pdf_render.find}[request["work"]]
    voice.say({"type": "answer", "value": work(request)})


def _tell(parsed: Parsed, voice: Voice) -> None:
    for section in parsed.sections:
        voice.say({"type": "section", "label": section.label, "text": section.text})
    voice.say(
        {
            "type": "book",
            "kind": parsed.kind,
            "unit": parsed.unit,
            "title": parsed.title,
            "author": parsed.author,
            "outline": [[entry.title, entry.page, entry.level] for entry in parsed.outline],
            "warnings": parsed.warnings,
        }
    )


def _refusal(refused: Refused) -> dict[str, Any]:
    return {"type": "refused", "kind": refused.kind, "cause": refused.cause, "remedy": refused.remedy}


def _claim_output() -> BinaryIO:
    """Keep the pipe for messages; whatever a library prints goes to standard error."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return stream


def _limit_memory(limit: int) -> bool:
    """Whether this system holds the limit by itself; elsewhere the parent watches."""
    if not sys.platform.startswith("linux"):
        return False  # macOS accepts the call and does not keep it; Windows has none
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return True


def _end_with_parent() -> None:
    try:
        while sys.stdin.buffer.read(1):
            pass
    finally:
        os._exit(1)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # the thread that waits for the parent would hold up an ordinary exit on some systems
