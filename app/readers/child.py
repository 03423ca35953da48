"""Parses untrusted bytes in a process of its own: ``python -m app.readers.child``, started by ``engine.sandbox``.

Imports little at the start. The parser of a request is imported after the limits for memory and time are set.
"""

from __future__ import annotations

import gc
from typing import Any

from app.readers.parsed import Limits, Parsed, Refused, unpacked
from engine.sandbox import Voice, serve

_UNREADABLE = "It is probably damaged. Try to open it in another program, or get the file again."


def _work(request: dict[str, Any], voice: Voice) -> None:
    if request["work"] == "read":
        gc.disable()  # all of a book's lines are kept, and this process ends with it
        from app.readers.detect import parse

        _tell(parse(unpacked(request["path"]), request, Limits(**request["limits"]), voice.step), voice)
        return
    if request["work"] == "unpack":
        from app.readers import bundle

        limits, folder = Limits(**request["limits"]), unpacked(request["folder"])
        answer = bundle.unpack(unpacked(request["path"]), folder, request["most"], limits, voice.step)
        voice.say({"type": "answer", "value": answer})
        return
    if request["work"] == "gguf":
        from app.readers import gguf_facts

        voice.say({"type": "answer", "value": gguf_facts.header([unpacked(path) for path in request["paths"]])})
        return
    from app.readers import pdf_render

    if request["work"] in ("recognise", "recognise pictures"):
        (pdf_render.recognise if request["work"] == "recognise" else pdf_render.recognise_pictures)(request, voice)
        return
    work = {"render": pdf_render.render, "find": pdf_render.find, "words": pdf_render.words}[request["work"]]
    voice.say({"type": "answer", "value": work(request)})


def _tell(parsed: Parsed, voice: Voice) -> None:
    for section in parsed.sections:
        said = {"label": section.label, "text": section.text, "picture": section.picture}
        voice.say({"type": "section", **said, "pictures": list(section.pictures)})
    voice.say(
        {
            "type": "book",
            "kind": parsed.kind,
            "unit": parsed.unit,
            "title": parsed.title,
            "author": parsed.author,
            "date": parsed.date,
            "outline": [[entry.title, entry.page, entry.level] for entry in parsed.outline],
            "warnings": parsed.warnings,
        }
    )


def _refusal(error: BaseException) -> dict[str, Any]:
    refused = error if isinstance(error, Refused) else Refused("could not be read.", _UNREADABLE)
    return {"type": "refused", "kind": refused.kind, "cause": refused.cause, "remedy": refused.remedy}


if __name__ == "__main__":
    serve(_work, _refusal)
