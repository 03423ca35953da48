"""What Gradio calls when somebody asks, stops, edits or asks again.

Owns the translation between Gradio's events and one question's life (``asking``); every answer of a handler is the
whole chat as messages plus the state of the input. Knows no layout and no engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from app.chats import Trouble
from app.ui import asking, messages
from app.ui.desk import Keeper
from app.ui.messages import Message
from engine.config import SamplingParams
from engine.errors import Busy, TrifoldError

Update = tuple[Any, Any, Any, Any]
"""New values of the chat, the question box, the Send button and the Stop button."""


class Handlers:
    """Args:
    keeper: keeps the desk.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def show(self) -> list[Message]:
        """The chat on the desk, as it stands: after a reload, in a second tab, after another chat was chosen."""
        chat = self._keeper.chat
        return messages.messages(chat.exchanges) if chat else []

    def begin_chat(self) -> tuple[list[Message], Any]:
        self._keeper.begin_chat()
        return self.show(), ""

    def stop(self) -> None:
        self._keeper.stop_asking()

    def ask(self, question: str, mode: str, temperature: float, top_p: float, length: int) -> Iterator[Update]:
        if question.strip():
            yield from self._ask(question.strip(), (mode, temperature, top_p, length), None)
        else:
            yield self._idle()

    def ask_again(self, mode: str, temperature: float, top_p: float, length: int) -> Iterator[Update]:
        """The last question once more, in the place of its answer."""
        chat = self._keeper.chat
        if chat is None or not chat.exchanges:
            yield self._idle()
            return
        last = len(chat.exchanges) - 1
        yield from self._ask(chat.exchanges[last].question, (mode, temperature, top_p, length), last)

    def ask_edited(
        self, edit: gr.EditData, mode: str, temperature: float, top_p: float, length: int
    ) -> Iterator[Update]:
        """A question in new words: it takes the old one's place, and what followed is dropped."""
        position = int(edit.index if isinstance(edit.index, int) else edit.index[0]) // 2
        yield from self._ask(str(edit.value).strip(), (mode, temperature, top_p, length), position)

    def choose(
        self, chosen: gr.SelectData, question: str, mode: str, temperature: float, top_p: float, length: int
    ) -> Iterator[Update]:
        """A button inside a message: ask again, or stop another tab's answer and ask."""
        if chosen.value == messages.STOP_OTHER:
            self._keeper.stop_asking()
            yield from self._patiently(question.strip(), (mode, temperature, top_p, length))
        else:
            yield from self.ask_again(mode, temperature, top_p, length)

    def _patiently(self, question: str, how: tuple[str, float, float, int]) -> Iterator[Update]:
        """Ask once the other tab's answer has let go."""
        for _ in asking.until_free(self._keeper):
            yield gr.skip(), gr.skip(), gr.skip(), gr.skip()
        yield from self._ask(question, how, None)

    def _ask(self, question: str, how: tuple[str, float, float, int], position: int | None) -> Iterator[Update]:
        mode, temperature, top_p, length = how
        taken = False
        try:
            sampling = SamplingParams(temperature=float(temperature), top_p=float(top_p), max_tokens=int(length))
            for waiting in asking.ask(self._keeper, question, sampling, mode, position):  # type: ignore[arg-type]
                yield (self._shown(waiting), *self._busy(taken))
                taken = True
        except Busy as error:
            yield self._refused(error, messages.STOP_OTHER)
        except TrifoldError as error:
            yield self._refused(error, messages.AGAIN)
        else:
            yield self._idle()

    def _shown(self, waiting: str) -> list[Message]:
        chat = self._keeper.chat
        return messages.messages(chat.exchanges, waiting) if chat else []

    @staticmethod
    def _busy(already: bool) -> tuple[Any, Any, Any]:
        if already:
            return gr.skip(), gr.skip(), gr.skip()
        return "", gr.update(visible=False), gr.update(visible=True)

    def _idle(self) -> Update:
        return self.show(), gr.skip(), gr.update(visible=True), gr.update(visible=False)

    def _refused(self, error: TrifoldError, option: str) -> Update:
        told = messages.refusal(Trouble(error.cause, error.remedy), option)
        return [*self.show(), told], gr.skip(), gr.update(visible=True), gr.update(visible=False)
