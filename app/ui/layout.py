"""Gradio's part of the page: the chat, the question box, and how answers are made.

Owns which components there are and what they are called in the style sheet; ``handlers`` says what they do. Text of
a model is shown by the chatbot with sanitizing on, without images and without formulas.
"""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.ui.handlers import Handlers
from engine.config import SamplingParams
from engine.errors import EngineError

SERIF = ("Iowan Old Style", "Palatino Linotype", "Palatino", "P052", "EB Garamond", "Georgia", "serif")
SANS = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Ubuntu", "Cantarell", "DejaVu Sans", "sans-serif")
MONO = ("ui-monospace", "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", "monospace")

_DEFAULTS = SamplingParams()
_LENGTHS = (32, 2048)
_MODES = [("Hierarchical: guess ahead, check, stay exact", "hierarchical"), ("Plain: one token at a time", "plain")]
_MAX_QUESTION_LINES = 8
_LOOK_SECONDS = 0.04  # a question may wait so long before it is begun: nobody notices
_PROGRESS_SECONDS = 1.0


def theme() -> gr.themes.Base:
    """Gradio's plainest theme with the fonts of this machine; the colours come from our style sheet."""
    return gr.themes.Base(font=SANS, font_mono=MONO, spacing_size="md", radius_size="md", text_size="md")


def build(handlers: Handlers) -> gr.Blocks:
    """The components and what they call."""
    with gr.Blocks(title="Trifold", analytics_enabled=False) as page:
        chat = _chat()
        with gr.Row(elem_id="ask-row"):
            box = gr.Textbox(
                elem_id="ask-box",
                placeholder="Ask the book…",
                label="Question",
                show_label=False,
                container=False,
                lines=1,
                max_lines=_MAX_QUESTION_LINES,
                autofocus=True,
                scale=1,
            )
            send = gr.Button("Ask", elem_id="send", variant="primary", scale=0, min_width=84)
            stop = gr.Button("Stop", elem_id="stop", variant="stop", scale=0, min_width=84, visible=False)
        how = _how()
        act = gr.Textbox(elem_id="act", show_label=False, container=False, elem_classes="unseen")
        do = gr.Button("Do it", elem_id="do", elem_classes="unseen")
        fresh = gr.Button("New chat", elem_id="fresh", elem_classes="unseen")
        refresh = gr.Button("Show again", elem_id="refresh", elem_classes="unseen")

    with page:
        shown = [chat, box, act, send, stop]
        answering: dict[str, Any] = {
            "outputs": shown,
            "show_progress": "hidden",
            "api_visibility": "private",
            "concurrency_limit": None,
        }
        gr.on([send.click, box.submit], handlers.ask, [box, act, *how], **answering)
        do.click(handlers.act, [act, *how], **answering)
        chat.option_select(handlers.choose, [box, act, *how], **answering)
        quick: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
        stop.click(handlers.stop, None, None, **quick)
        fresh.click(handlers.begin_chat, None, chat, **quick)
        refresh.click(handlers.show, None, chat, trigger_mode="always_last", **quick)
        page.load(handlers.show, None, chat, **quick)
    page.queue(api_open=False, default_concurrency_limit=None)
    _let_sleep(page)
    return page


def _let_sleep(page: gr.Blocks) -> None:
    """Gradio's queue looks for questions a thousand times a second and for progress bars, which are not used here, a
    hundred times, also when nobody asks; each look takes the interpreter away from the engine.

    Raises:
        EngineError: the queue is not the one of the Gradio that is pinned.
    """
    queue = page._queue
    if not (hasattr(queue, "sleep_when_free") and hasattr(queue, "progress_update_sleep_when_free")):
        raise EngineError("This version of Gradio has another queue.", "Install the one in requirements.txt.")
    queue.sleep_when_free = _LOOK_SECONDS
    queue.progress_update_sleep_when_free = _PROGRESS_SECONDS


def _chat() -> gr.Chatbot:
    return gr.Chatbot(
        elem_id="chat",
        show_label=False,
        container=False,
        layout="panel",
        height="100%",
        buttons=[],
        feedback_options=None,
        latex_delimiters=[],
        sanitize_html=True,
        allow_tags=False,
        group_consecutive_messages=False,
        allow_file_downloads=False,
        placeholder="",
    )


def _how() -> list[gr.components.Component]:
    with gr.Accordion("How answers are made", open=False, elem_id="how"):
        mode = gr.Radio(_MODES, value="hierarchical", label="Decoding", elem_id="mode")
        with gr.Row(elem_id="sampling"):
            temperature = gr.Slider(
                0.0,
                2.0,
                _DEFAULTS.temperature,
                step=0.05,
                label="Temperature",
                buttons=[],
                info="0: the likeliest word",
            )
            top_p = gr.Slider(
                0.05, 1.0, _DEFAULTS.top_p, step=0.05, label="Top-p", buttons=[], info="1: any word may come"
            )
            length = gr.Slider(
                *_LENGTHS, value=_DEFAULTS.max_tokens, step=32, label="Length", buttons=[], info="tokens at most"
            )
    return [mode, temperature, top_p, length]
