"""Where a passage stands on the picture of a page."""

from __future__ import annotations

from app.readers.locating import locate


def test_the_same_words_are_told_apart_by_what_stands_around_them() -> None:
    text = "thelampwaslitthelampwasoutthelampfell"
    assert locate(text, "lamp") == (3, 7)
    assert locate(text, "lamp", text_before="litthe", text_after="wasout") == (16, 20)
    assert locate(text, "lamp", text_before="outthe") == (29, 33)
    assert locate(text, "lamp", text_after="fell") == (29, 33)
    assert locate(text, "candle") is None
