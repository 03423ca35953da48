"""Tells kinds of documents apart by the words that they use, so that suggested questions fit: a lease has no end of a
story. The kinds were chosen on the documents of the evaluation and on public books; a document that has few words of
every kind is a "text".
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Literal
from weakref import ref

from engine.document import Document

Kind = Literal["story", "contract", "minutes", "report", "letter", "text"]

_PAGES = 40  # number of pages, from the first, by which the kind is detected
_WORD = re.compile(r"[^\W\d_]+")
_STORY = "he|she|him|her|his|hers|said|asked|cried|er|ihm|ihn|sagte|rief|fragte|il|elle|lui|dit|él|ella|dijo"
_CONTRACT = (
    "tenant|tenants|landlord|lessor|lessee|lease|party|parties|hereby|herein|hereinafter|hereunder|thereof|clause|"
    "shall|agreement|termination|terminate|terminated|liability|licensor|licensee|indemnify|deposit|premises|"
    "contractor|mieter|mieterin|vermieter|vermieterin|mietvertrag|vertrag|vertrags|vertragspartei|vertragsparteien|"
    "mietsache|kündigung|kündigungsfrist|kaution|haftung|auftraggeber|auftragnehmer|arbeitgeber|arbeitnehmer|"
    "bailleur|locataire|preneur|contrat|résiliation|bail|arrendador|arrendatario|contrato|cláusula|rescisión|"
    "partes"
)
_MINUTES = (
    "meeting|meetings|agenda|apologies|resolved|seconded|moved|motion|chair|chairman|adjourned|attendees|quorum|"
    "attendance|protokoll|tagesordnung|tagesordnungspunkt|sitzung|beschluss|beschlossen|anwesend|anwesende|"
    "entschuldigt|vorsitzende|vorsitzender|séance|procès|présents|acta|asistentes|sesión|acuerdo"
)
_REPORT = (
    "report|reports|results|result|findings|revenue|percent|fiscal|table|figure|figures|data|study|method|methods|"
    "analysis|survey|recommendations|recommendation|abstract|references|bericht|ergebnis|ergebnisse|umsatz|prozent|"
    "geschäftsjahr|tabelle|abbildung|daten|studie|methode|empfehlung|empfehlungen|rapport|résultats|résultat|"
    "tableau|données|étude|méthode|informe|resultados|resultado|tabla|datos|estudio|método"
)
_LETTER = (
    "dear|sincerely|regards|faithfully|yours|subject|betreff|geehrte|geehrter|grüßen|gruß|madame|monsieur|"
    "cordialement|salutations|estimado|estimada|atentamente|saludos"
)
_WORDS_OF: dict[Kind, frozenset[str]] = {
    "story": frozenset(_STORY.split("|")),
    "contract": frozenset(_CONTRACT.split("|")),
    "minutes": frozenset(_MINUTES.split("|")),
    "report": frozenset(_REPORT.split("|")),
    "letter": frozenset(_LETTER.split("|")),
}
# minimum share of a document's words that are words of the kind
_SHARE: dict[Kind, float] = {"story": 0.03, "contract": 0.012, "minutes": 0.008, "report": 0.008, "letter": 0.012}
_ONE_PAGE = 6_000  # maximum characters of a single page; more without pages, as in a text file, may be a book
_LONG = 50_000  # minimum characters of a text that is called a book without being a story
_MAIL = "mail"  # kind of files that are letters, whatever their words


_last: tuple[ref[Document], str] | None = None  # the document that was last named, and its name


def called(document: Document) -> str:
    """What a document is called: "book" if it is a story, or long and of no other kind; otherwise "document", or
    "documents" if there are several.
    """
    global _last
    known = _last
    if known is None or known[0]() is not document:  # the page asks often, mostly about the same document
        kind = kind_of(document)
        is_book = kind == "story" or (kind == "text" and document.characters >= _LONG)
        known = _last = ref(document), "documents" if document.members else "book" if is_book else "document"
    return known[1]


def called_record(document: Document) -> dict[str, Any]:
    """What the notes of an answer keep of that (``app.core.format.of_text``); {} for a book."""
    name = called(document)
    return {} if name == "book" else {"called": name}


def kind_of(document: Document) -> Kind:
    """The kind of a document, by its first ``_PAGES`` pages. A single page of a story is a "text"."""
    if document.kind == _MAIL:
        return "letter"
    words = Counter(_WORD.findall(" ".join(page.text for page in document.pages[:_PAGES]).lower()))
    total = max(1, words.total())
    shares = {kind: sum(words[word] for word in listed) / total / _SHARE[kind] for kind, listed in _WORDS_OF.items()}
    if len(document.pages) == 1 and document.characters < _ONE_PAGE:
        del shares["story"]
    best = max(shares, key=lambda kind: shares[kind])
    return best if shares[best] >= 1.0 else "text"
