"""Serves the requests of the page's own scripts: receive a book, open a book, ask about it, stop.

Turns requests into calls of ``AppState``. Every reply is a small JSON object. An error is answered with its cause and
its remedy (``said``). Results reach every tab through the live stream.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.core import chat_run
from app.core.archives import taken_apart
from app.core.atomic_upload import MAX_BYTES
from app.core.books import Book, name_of
from app.core.open_book import Awaited, Stage
from app.core.question import ALL_PARTS, Ask
from app.core.state import AppState
from app.core.suggestions import Sample
from app.web.auth import MEGABYTE, AllowedRoute
from engine import HANDOVER_S
from engine.config import SamplingParams, options_of
from engine.errors import Busy, DocumentError, InputError, ModelError, OptionError, TrifoldError

SMALL_BODY = 16 << 10
_MOST_NUMBER = 2**53  # the largest integer that JavaScript represents exactly
# maximum bytes of a request with a question; any question that the engine accepts is shorter
QUESTION_LIMIT = 16 * MEGABYTE

Handler = Callable[[Request], Awaitable[Any]]


def said(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Run a handler. A ``TrifoldError`` becomes an answer with its cause and remedy."""

    async def answer(request: Request) -> Response:
        try:
            answered = await handler(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except TrifoldError as error:
            status = 400 if isinstance(error, InputError | ModelError) else 409 if isinstance(error, Busy) else 500
            return JSONResponse({"cause": error.cause, "remedy": error.remedy}, status_code=status)
        return answered if isinstance(answered, Response) else JSONResponse({})

    return answer


class PageRoute(Route):
    """A request that the server answers, with what the guard must know about it.

    Args:
        path: as in Starlette. The guard does not look at its parameters.
        limit: maximum bytes of the body.
        open: whether the request needs no cookie.
    """

    def __init__(
        self, method: str, path: str, endpoint: Callable[[Request], Any], limit: int = 0, *, open: bool = False
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        fixed, parameter, _ = path.partition("{")
        self.allowed = AllowedRoute(method, f"{fixed}*" if parameter else path, limit, open)


def posts(handlers: Mapping[str, Handler], limit: int = SMALL_BODY) -> tuple[PageRoute, ...]:
    """Make a POST route for each handler. ``handlers`` is keyed by path."""
    return tuple(PageRoute("POST", path, said(handler), limit) for path, handler in handlers.items())


def gets(handlers: Mapping[str, Handler]) -> tuple[PageRoute, ...]:
    """Make a GET route for each handler. ``handlers`` is keyed by path."""
    return tuple(PageRoute("GET", path, said(handler)) for path, handler in handlers.items())


def json_object(sent: bytes) -> dict[str, Any]:
    """Read the JSON object of a request. Raises OptionError."""
    try:
        asked = json.loads(sent)
    except (ValueError, RecursionError) as error:  # RecursionError means that brackets are nested too deeply
        raise OptionError("The request is not JSON.") from error
    if not isinstance(asked, dict):
        raise OptionError("The request is not a JSON object.")
    return asked


def _text(value: Any, info: ValidationInfo) -> str:
    """Replace lone surrogates, which JSON can carry but UTF-8 cannot, by "?"."""
    if not isinstance(value, str):
        raise OptionError(f"{info.field_name} must be text.")
    return value.encode("utf-8", "replace").decode("utf-8")


def _number(value: Any, info: ValidationInfo) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > _MOST_NUMBER:
        raise OptionError(f"The {info.field_name} must be a whole number.", "Load the page again.")
    return value


def _flag(value: Any, info: ValidationInfo) -> bool:
    if not isinstance(value, bool):
        raise OptionError(f"The field {info.field_name} must be true or false.", "Load the page again.")
    return value


def _ranges(value: Any, info: ValidationInfo) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list) or not all(isinstance(one, list) and len(one) == 2 for one in value):
        raise OptionError(f"The {info.field_name} must be a list of ranges.", "Load the page again.")
    return tuple((_number(first, info), _number(last, info)) for first, last in value)


def _number_if_said(value: Any, info: ValidationInfo) -> int | None:
    return _number(value, info) if value else None


Text = Annotated[str, BeforeValidator(_text)]
Number = Annotated[int, BeforeValidator(_number)]
NumberIfSaid = Annotated[int | None, BeforeValidator(_number_if_said)]
Flag = Annotated[bool, BeforeValidator(_flag)]
REQUIRED: Any = Field(default=None, validate_default=True)
"""Default of a number or flag that must be sent. A missing value is reported like a wrong one."""


class RequestBody(BaseModel):
    """A request of the page's scripts. Types are strict. If several fields are wrong, the first one is reported."""


_Body = TypeVar("_Body", bound=RequestBody)


async def parsed(request: Request, kind: type[_Body]) -> _Body:
    """Parse the JSON object of a request as a record. Raises OptionError for the first wrong field."""
    return kind.model_validate(json_object(await request.body()))


class BookAsked(RequestBody):
    """A request to open a book. ``recognise``: whether to recognise pages that are pictures, however long it takes.
    ``convert``: whether LibreOffice may convert it.
    """

    id: Text = ""
    password: Text = ""
    recognise: Any = False
    convert: Any = False


class PagesAsked(RequestBody):
    """A request to read the pages ``first`` to ``last``, both included. Pages are counted from 1."""

    first: Number = REQUIRED
    last: Number = REQUIRED


class ChaptersAsked(RequestBody):
    """A request to read chapters. ``pages`` holds a range of pages for each chapter, with both ends included. Pages are
    counted from 1.
    """

    pages: Annotated[tuple[tuple[int, int], ...], BeforeValidator(_ranges)] = REQUIRED


class AnswerAsked(RequestBody):
    """A request for an answer. ``tab``: the browser tab that waits for the answer. The options of the answer stand
    beside it under their own names; an option that is null or missing has its default.
    """

    model_config = ConfigDict(extra="allow")
    tab: Text = ""

    def ask(self, question: str, **more: Any) -> Ask:
        """Make the record of a question. ``more``: its fields that are no options of an answer. Raises OptionError for
        an option with a value that is not allowed.
        """
        sent = self.model_extra or {}
        sampling, own = (
            {one.name: sent[one.name] for one in options_of(record) if sent.get(one.name) is not None}
            for record in (SamplingParams, Ask)
        )
        return Ask(question, sampling=SamplingParams(**sampling), tab=self.tab, **own, **more)


def _some_question(value: str) -> str:
    if not value.strip():
        raise OptionError("There is no question.", "Type one first.")
    return value.strip()


class MessageAsked(RequestBody):
    message: Number = REQUIRED


class ContinueAsked(MessageAsked):
    """A request to continue the answer ``message``. ``every``: whether to put its question to all remaining parts of
    the book instead.
    """

    every: Any = False


class _Question(RequestBody):
    """The fields of a question. ``message``: the id of an earlier question that this question replaces; the earlier
    question is kept as another version. ``instead``: whether to stop first the answer that is being written. ``every``:
    whether to ask every part of a book that is read in parts.
    """

    question: Annotated[str, AfterValidator(_some_question), BeforeValidator(_text)] = Field(
        default="", validate_default=True
    )
    message: NumberIfSaid = None
    instead: Any = False
    every: Any = False


class QuestionAsked(AnswerAsked, _Question):
    """A request with a question. If several fields are wrong, an error in a field of ``_Question`` is reported
    first.
    """


NAME_HEADER, OPEN_HEADER = "x-file-name", "x-open"


class BookRoutes:
    """Routes for opening and reading books.

    Args:
        state: the state of the program.
        sample: the bundled book.
    """

    def __init__(self, state: AppState, sample: Sample) -> None:
        self._state = state
        self._sample = sample

    def routes(self) -> Sequence[PageRoute]:
        handlers: dict[str, Handler] = {
            "/books/open": self.open,
            "/books/sample": self.open_sample,
            "/reading/choose": self.choose,
            "/reading/chapters": self.choose_chapters,
            "/reading/again": self.again,
            "/reading/pictures": self.read_pictures,
            "/reading/stop": self.stop_reading,
        }
        return *posts({"/books": self.receive}, MAX_BYTES), *posts(handlers)

    async def receive(self, request: Request) -> Response:
        """Receive a file as the body, with its percent-encoded name in a header. The file is opened, unless the header
        ``OPEN_HEADER`` is "no".
        """
        from urllib.parse import unquote

        name = unquote(request.headers.get(NAME_HEADER, "")) or "book"
        with self._state.books.receive(name) as incoming:
            async for block in request.stream():
                await run_in_threadpool(incoming.write, block)
            book = await run_in_threadpool(incoming.keep)
        note = _same_file(name_of(name), book)
        book = await run_in_threadpool(taken_apart, self._state, book)
        if request.headers.get(OPEN_HEADER) != "no" and not self._state.is_open(book):
            self._state.open(book)
        return JSONResponse({"note": note, "id": book.sha256})

    async def open(self, request: Request) -> None:
        asked = await parsed(request, BookAsked)
        book = self._state.books.get(asked.id)
        if asked.convert is True:
            self._state.parser.convert(book)
        self._state.open(book, asked.password or None, recognise=asked.recognise is True)

    async def open_sample(self, request: Request) -> None:
        if self._sample.file is None:
            raise DocumentError("The sample book is missing from this copy of Trifold.", "Open a book of your own.")
        self._state.open(await run_in_threadpool(self._state.books.copy_in, self._sample.file))

    async def choose(self, request: Request) -> None:
        asked = await parsed(request, PagesAsked)
        self._state.choose(asked.first, asked.last)

    async def choose_chapters(self, request: Request) -> None:
        ranges = (await parsed(request, ChaptersAsked)).pages
        pages = self._state.current.whole.pages if self._state.current.whole else ()
        self._state.choose_pages(
            frozenset(page.number for page in pages if any(first <= page.number <= last for first, last in ranges))
        )

    async def again(self, request: Request) -> None:
        self._state.read_again()

    async def read_pictures(self, request: Request) -> None:
        self._state.read_pictured()

    async def stop_reading(self, request: Request) -> None:
        self._state.stop_reading()


def _same_file(name: str, book: Book) -> str:
    """A sentence for a person whose file is already in the library under another name; "" if the name is the same."""
    return "" if name == book.name else f"“{name}” is the same file as “{book.name}”, which was in your library."


class ChatRoutes:
    """Routes for asking and stopping, and for beginning a chat. All other actions on chats are in
    ``app.web.library``.
    """

    def __init__(self, state: AppState) -> None:
        self._state = state

    def routes(self) -> Sequence[PageRoute]:
        handlers: dict[str, Handler] = {
            "/asking/again": self.ask_again,
            "/asking/continue": self.go_on,
            "/asking/whole": self.ask_whole,
            "/asking/enough": self.enough,
            "/asking/stop": self.stop,
            "/chats/new": self.begin_chat,
        }
        return *posts({"/asking": self.ask}, QUESTION_LIMIT), *posts(handlers)

    async def ask(self, request: Request) -> Response:
        asked = await parsed(request, QuestionAsked)
        position = self._position(asked.message) if asked.message else None
        question = asked.ask(asked.question, position=position, parts=ALL_PARTS if asked.every is True else 0)
        if asked.instead:
            await run_in_threadpool(self._state.stop_asking, wait=HANDOVER_S)
        return await self._begin(chat_run.ask(self._state, question))

    async def ask_again(self, request: Request) -> Response:
        """Ask the question of the answer ``message`` again."""
        asked = await parsed(request, MessageAsked)
        chat, position = self._state.chat, self._position(asked.message)
        if chat is None or position is None:
            raise OptionError("There is no such answer in this chat.", "Look at the newest one.")
        options = await parsed(request, AnswerAsked)
        question = options.ask(chat.exchanges[position].question, position=position)
        return await self._begin(chat_run.ask(self._state, question))

    async def ask_whole(self, request: Request) -> Response:
        """Ask the whole book, or the parts of it that the question needs, what the answer ``message`` has from
        passages. If the book is still being read, this is done when it has been read.
        """
        message = (await parsed(request, MessageAsked)).message
        state, chat, position = self._state, self._state.chat, self._position(message)
        exchange = chat.exchanges[position] if chat and position is not None else None
        if chat is None or exchange is None or not (exchange.is_first or exchange.from_parts):
            raise OptionError("There is no answer from passages here.", "Ask again instead.")
        asked = (await parsed(request, AnswerAsked)).ask(exchange.question, position=position)
        if state.current.stage is Stage.CHOOSING and state.current.parts:
            await run_in_threadpool(state.read_in_parts)
        if state.current.stage.is_on_the_way:
            chat_run.follow(state, Awaited(chat.id, message, asked))
            return JSONResponse({})
        if state.current.stage not in (Stage.READY, Stage.PARTS):
            raise OptionError(
                "The book has not been read.", "Read it, or change what answers come from in the settings."
            )
        return await self._begin(chat_run.ask_whole(state, asked))

    async def enough(self, request: Request) -> None:
        """Let the answer ``message`` from passages be enough: the whole book is not asked."""
        self._state.wait_no_longer((await parsed(request, MessageAsked)).message)

    async def go_on(self, request: Request) -> Response:
        """Continue the answer ``message``, which was cut off. With ``every``, put its question instead to the parts of
        the book that have not been asked.
        """
        asked = await parsed(request, ContinueAsked)
        chat, position = self._state.chat, self._position(asked.message)
        every = asked.every is True
        if every and self._state.current.stage is not Stage.PARTS:
            raise OptionError("This book is not read in parts now.", "Read it in parts again, or ask again.")
        if chat is None or position is None or not (every or chat.exchanges[position].can_be_continued):
            raise OptionError("There is no answer here that was cut.", "Ask again instead.")
        options = await parsed(request, AnswerAsked)
        parts = ALL_PARTS if every else 0
        question = options.ask(chat.exchanges[position].question, position=position, parts=parts)
        return await self._begin(chat_run.go_on(self._state, question))

    async def stop(self, request: Request) -> None:
        self._state.stop_asking()

    async def begin_chat(self, request: Request) -> Response:
        """Begin a chat. The page keeps the text in its question box, because the person may already be typing."""

        def begin() -> dict[str, Any]:
            self._state.begin_chat()
            return {}

        return await run_in_threadpool(answer_or_refusal, begin)

    async def _begin(self, steps: Iterator[str]) -> Response:
        return await run_in_threadpool(answer_or_refusal, lambda: {"answer": chat_run.start(self._state, steps)})

    def _position(self, message: int) -> int | None:
        """The position of a message in the shown chat; None if this chat does not show the message."""
        chat = self._state.chat
        return chat.position_of(message) if chat else None


def answer_or_refusal(work: Callable[[], dict[str, Any]]) -> Response:
    """Answer with the result of ``work``. If ``work`` raises a ``TrifoldError``, answer with its cause, its remedy, and
    ``busy``: whether the work could be done if the current answer were stopped. The HTTP status says success even then,
    because the browser's console would list an error status. An ``InputError`` is raised again.
    """
    try:
        return JSONResponse(work())
    except TrifoldError as error:
        if isinstance(error, InputError):
            raise
        return JSONResponse({"cause": error.cause, "remedy": error.remedy, "busy": isinstance(error, Busy)})
