"""What Gradio calls when somebody asks, stops, edits or asks again.

Owns the translation between Gradio's events and one question's life (``asking``); every answer of a handler is the
whole chat as messages plus the state of the input. Knows no layout and no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import gradio as gr

from app.chats import Trouble
from app.ui import acts, asking, messages
from app.ui.desk import Keeper
from app.ui.messages import Message
from engine.config import Mode, SamplingParams
from engine.errors import Busy, TrifoldError

Update = tuple[Any, Any, Any, Any, Any]
"""New values of the chat, the question box, what it is about, the Send button and the Stop button."""

How = tuple[str, float, float, int]
"""Mode of decoding, temperature, top-p, length in tokens."""

Steps = Callable[[SamplingParams, Mode], Iterator[str]]


class Handlers:
    """Args:
    keeper: keeps the desk.
    """

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._made: messages.Made = {}
        self._writing = ""  # the tab whose question is being answered

    def show(self) -> list[Message]:
        """The chat on the desk, as it stands: after a reload, in a second tab, after another chat was chosen."""
        return self._shown("")

    def begin_chat(self) -> list[Message]:
        """A new chat; what stands in the question box stays: a quick person may be typing already.

        While an answer is being written there is none; the page has said so before it asks.
        """
        with suppress(Busy):
            self._keeper.begin_chat()
        return self.show()

    def stop(self) -> None:
        self._keeper.stop_asking()

    def leave(self, tab: str) -> None:
        """A tab has been closed or reloaded: nobody waits for its answer any more."""
        if tab and tab == self._writing:
            self._keeper.stop_asking()

    def ask(self, request: gr.Request, question: str, act: str, *how: Any) -> Iterator[Update]:
        """Ask; where ``act`` says so, in the place of an earlier question, which stays as another version."""
        if question.strip():
            yield from self._ask(request, question.strip(), self._position(act, acts.EDIT), how)
        else:
            yield self._idle()

    def act(self, request: gr.Request, act: str, *how: Any) -> Iterator[Update]:
        """A button under an answer: ask its question once more, or go on with it."""
        again, go_on = self._position(act, acts.AGAIN), self._position(act, acts.GO_ON)
        keeper, chat = self._keeper, self._keeper.chat
        if chat is not None and again is not None:
            yield from self._ask(request, chat.exchanges[again].question, again, how, clears=False)
        elif chat is not None and go_on is not None and chat.exchanges[go_on].can_be_continued:
            yield from self._steps(
                request, lambda sampling, mode: asking.go_on(keeper, sampling, mode, go_on), how, clears=False
            )
        else:
            yield self._idle()

    def choose(
        self, chosen: gr.SelectData, request: gr.Request, question: str, act: str, *how: Any
    ) -> Iterator[Update]:
        """A button inside a message: stop another tab's answer, and ask."""
        if chosen.value == messages.STOP_OTHER:
            self._keeper.stop_asking()
            for _ in asking.until_free(self._keeper):
                yield gr.skip(), gr.skip(), gr.skip(), gr.skip(), gr.skip()
            yield from self.ask(request, question, act, *how)

    def _position(self, act: str, wanted: str) -> int | None:
        """Where the message stands that an act is about, if it is an act of this kind and still in sight."""
        parsed, chat = acts.parse(act), self._keeper.chat
        return chat.position_of(parsed[1]) if chat and parsed and parsed[0] == wanted else None

    def _ask(
        self, request: gr.Request, question: str, position: int | None, how: How, clears: bool = True
    ) -> Iterator[Update]:
        keeper = self._keeper
        yield from self._steps(
            request, lambda sampling, mode: asking.ask(keeper, question, sampling, mode, position), how, clears
        )

    def _steps(self, request: gr.Request, steps: Steps, how: How, clears: bool) -> Iterator[Update]:
        """Draw every step of an answer. ``clears``: the question was taken from the box, which is empty then."""
        mode, temperature, top_p, length = how
        taken = here = False
        try:
            sampling = SamplingParams(temperature=float(temperature), top_p=float(top_p), max_tokens=int(length))
            for waiting in steps(sampling, mode):  # type: ignore[arg-type]
                self._writing, here = str(request.session_hash), True
                yield (self._shown(waiting), *self._busy(taken, clears))
                taken = True
        except Busy as error:
            yield self._refused(error, messages.STOP_OTHER)
        except TrifoldError as error:
            yield self._refused(error)
        else:
            yield self._idle()
        finally:
            if here:
                self._writing = ""

    def _shown(self, waiting: str) -> list[Message]:
        chat = self._keeper.chat
        return messages.messages(chat.exchanges, waiting, self._made) if chat else []

    @staticmethod
    def _busy(already: bool, clears: bool) -> tuple[Any, Any, Any, Any]:
        if already:
            return gr.skip(), gr.skip(), gr.skip(), gr.skip()
        empty = "" if clears else gr.skip()
        return empty, empty, gr.update(visible=False), gr.update(visible=True)

    def _idle(self) -> Update:
        return self.show(), gr.skip(), gr.skip(), gr.update(visible=True), gr.update(visible=False)

    def _refused(self, error: TrifoldError, option: str = "") -> Update:
        told = messages.refusal(Trouble(error.cause, error.remedy), option)
        return [*self.show(), told], gr.skip(), gr.skip(), gr.update(visible=True), gr.update(visible=False)
