"""The pages behind the words: what an answer quotes, what the model attended to, and who produced its tokens.

    taker = NoteTaker()                    one per program
    notes = taker.begin(document)          one per answer
    notes.take(event)                      every event of the engine; True when the notes have changed
    notes.record()                         plain JSON, kept with the exchange

A quotation is checked against the text of the pages: that is a fact. Attention is a hint, and is never called more.
"""

from app.citations.notes import Notes, NoteTaker

__all__ = ["NoteTaker", "Notes"]
