"""Generates text after long contexts by hierarchical speculation. Usable without the app.

    from engine import Document, Engine, EngineConfig

    with Engine(EngineConfig(model="path/to/model", draft="path/to/draft")) as engine:
        engine.read(Document.from_text("A title", text)).result()
        print(engine.ask("Who kept the light?").result().text)

The names in ``__all__`` are stable, including their fields and arguments; everything else in this package may change.
The app of this repository also uses the modules that ``DOORS`` in ``tests/test_architecture.py`` lists, and of these
what their own ``__all__`` names. A name is imported when it is first used. Importing a name does not load torch: the
engine's thread loads torch later. Read ``engine.session`` first.

If Trifold is installed by pip, write ``from trifold.engine import ...``.
"""

import importlib.util
import logging
import sys
from typing import TYPE_CHECKING

if __name__ != "engine":
    # If Trifold is installed by pip, this file is imported as ``trifold.engine``, whereas the modules of this package
    # import each other as ``engine``. Two names would mean two copies of every class. So the package is loaded as
    # ``engine``, and ``trifold.engine`` becomes a second name of that module.
    if "engine" not in sys.modules:
        spec = importlib.util.spec_from_file_location("engine", __file__, submodule_search_locations=list(__path__))
        assert spec is not None
        assert spec.loader is not None
        sys.modules["engine"] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules["engine"])
        except BaseException:
            del sys.modules["engine"]
            raise
    elif sys.modules["engine"].__file__ != __file__:
        theirs = sys.modules["engine"].__file__
        raise ImportError(f"Trifold's engine needs the module name engine, and another one has it: {theirs}")
    sys.modules[__name__] = sys.modules["engine"]

    class OneDoor:
        """Refuses imports such as trifold.engine.events, which would load a second copy of that module's classes."""

        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name.startswith("trifold.engine."):
                raise ImportError(f"What is public stands in trifold.engine itself, not in {name}.")

    sys.meta_path.insert(0, OneDoor)

from engine.version import VERSION as __version__

# Without this handler, a program that sets up no logging would print the tracebacks of errors that it handles.
logging.getLogger("engine").addHandler(logging.NullHandler())

if TYPE_CHECKING:
    from engine.config import EngineConfig, Mode, SamplingParams
    from engine.document import Document, Member, OutlineItem, Page, Reading
    from engine.errors import (
        Busy,
        Closed,
        ContextTooSmall,
        DocumentError,
        EngineError,
        InputError,
        ModelError,
        ModelNotFound,
        NoTextLayer,
        OptionError,
        PasswordNeeded,
        ResourceError,
        SnapshotRefused,
        SnapshotUnreadable,
        TrifoldError,
        UnsupportedModel,
        VocabularyMismatch,
    )
    from engine.events import (
        Acceptance,
        AnswerDone,
        AnswerStarted,
        BookInfo,
        BookRead,
        Event,
        Figures,
        KvBytes,
        Loading,
        ModelInfo,
        PagesScored,
        PlainLane,
        ReadingProgress,
        Status,
        StopReason,
        TextDelta,
        Thought,
        ThoughtDelta,
        TimeSplit,
        TokenSource,
    )
    from engine.plan.memory_budget import BookFit
    from engine.prompt import Question, Turn
    from engine.worker import HANDOVER_S, Engine, EngineLike, Request

__all__ = [
    "HANDOVER_S",
    "Acceptance",
    "AnswerDone",
    "AnswerStarted",
    "BookFit",
    "BookInfo",
    "BookRead",
    "Busy",
    "Closed",
    "ContextTooSmall",
    "Document",
    "DocumentError",
    "Engine",
    "EngineConfig",
    "EngineError",
    "EngineLike",
    "Event",
    "Figures",
    "InputError",
    "KvBytes",
    "Loading",
    "Member",
    "Mode",
    "ModelError",
    "ModelInfo",
    "ModelNotFound",
    "NoTextLayer",
    "OptionError",
    "OutlineItem",
    "Page",
    "PagesScored",
    "PasswordNeeded",
    "PlainLane",
    "Question",
    "Reading",
    "ReadingProgress",
    "Request",
    "ResourceError",
    "SamplingParams",
    "SnapshotRefused",
    "SnapshotUnreadable",
    "Status",
    "StopReason",
    "TextDelta",
    "Thought",
    "ThoughtDelta",
    "TimeSplit",
    "TokenSource",
    "TrifoldError",
    "Turn",
    "UnsupportedModel",
    "VocabularyMismatch",
    "__version__",
]

_HOMES = ("errors", "document", "config", "events", "prompt", "plan.memory_budget", "worker")


def __getattr__(name: str) -> object:
    """Import a public name when it is first used. So a child process that parses documents imports only the few modules
    that it needs.
    """
    if name in __all__:
        for home in _HOMES:
            found = vars(importlib.import_module(f"engine.{home}")).get(name)
            if found is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
