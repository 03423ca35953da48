"""Long-context generation by hierarchical speculation. Usable without the app.

    from engine import Engine, EngineConfig
    with Engine(EngineConfig(model="path/to/model", draft="path/to/draft")) as engine:
        for event in engine.read(document): ...
        for event in engine.ask("Who kept the light?"): ...

The public names below are imported without torch; it is loaded by the engine's thread. Read ``engine.session`` first.
"""

from engine.config import EngineConfig, Mode, SamplingParams
from engine.document import Document, OutlineItem, Page
from engine.events import BookInfo, ModelInfo, Status
from engine.prompt import Question, Turn
from engine.worker import HANDOVER_S, Engine, EngineLike, Request

__all__ = [
    "HANDOVER_S",
    "BookInfo",
    "Document",
    "Engine",
    "EngineConfig",
    "EngineLike",
    "Mode",
    "ModelInfo",
    "OutlineItem",
    "Page",
    "Question",
    "Request",
    "SamplingParams",
    "Status",
    "Turn",
]
