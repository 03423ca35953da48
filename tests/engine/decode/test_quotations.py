"""What may come within a quotation, against its definition; and answers that quote nothing but the book."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.bench.workloads import DRAFT, SAMPLE, TARGET, open_text
from engine.config import SamplingParams, options_of, own_sampling
from engine.decode.quotations import Quotable
from engine.decode.verify import Sampler
from engine.document import Document
from engine.errors import OptionError
from engine.events import AnswerDone
from engine.prompt import BookTokenizer, Question
from engine.worker import describe
from tests.engine.dense import dense
from tests.engine.test_equality import answer, load, read, without_end

TEXT = "He said “no, I am,” and went\naway. Then\n\nshe was thirty-four; it cost 1,912 coins. Café life—'so'. It was."
ELLIPSES = [sign[:size] for sign in (b"...", "…".encode()) for size in (1, 2, 3)]
FOLDED = re.sub(r"\s*\n\s*", "\n", TEXT)


@pytest.fixture(scope="module")
def tokenizer() -> BookTokenizer:
    return BookTokenizer(TARGET)


@pytest.fixture(scope="module")
def quotable(tokenizer: BookTokenizer) -> Quotable:
    assert tokenizer.pieces is not None
    return Quotable(TEXT, tokenizer.pieces)


@pytest.mark.parametrize("mark", ["“", '"'])
def test_a_quotation_goes_on_as_the_book_does(mark: str, tokenizer: BookTokenizer, quotable: Quotable) -> None:
    """Against all tokens and all places, on random ways through the book."""
    pieces, rng = tokenizer.pieces or [], random.Random(3)
    folded_pieces = [re.sub(rb"\s+", lambda run: b"\n" if b"\n" in run[0] else b" ", piece) for piece in pieces]
    whole, close = FOLDED.encode(), (b'"' if mark == '"' else "”".encode())
    words = rb"(?:(?<=[ \n\"'(\[-])|(?<=\xe2\x80[\x98\x9c\x94])|^)[^\s.,;:!?)\]-]"
    starts = [match.start() for match in re.finditer(words, whole)]
    for _ in range(12):
        here, said = quotable.begin(tokenizer.words(f"He says {mark}")), b""
        for _ in range(8):
            allowed = here.allowed()
            assert allowed is not None
            goes_on = {place + len(said) for place in starts if stands(said, whole, place)}
            first = {whole[place : place + 1] for place in goes_on}
            first = (first | {b" "} if b"\n" in first else first) - {b""}
            expected = set()
            for token, folded in enumerate(folded_pieces):
                if folded[:1] in first and any(stands(folded, whole, place) for place in goes_on):
                    expected.add(token)
                elif said and close in folded:
                    head = folded.split(close)[0]
                    ends = {place + len(head) for place in goes_on if stands(head, whole, place)}
                    ends = set() if (said + head).endswith((b" ", b"\n")) else ends
                    if any(not cut(whole, end) for end in ends):
                        expected.add(token)
            found = set(allowed.tolist())
            if any(sign.startswith(said) for sign in ELLIPSES):
                found -= {token for token in found - expected if said + pieces[token] in ELLIPSES}
            assert found == expected, said
            onward = [token for token in sorted(expected) if close not in pieces[token]]
            if not onward:
                break
            token = rng.choice(onward)
            said += folded_pieces[token]
            here = here.after([token])


def stands(said: bytes, text: bytes, place: int) -> bool:
    """Whether the text says this here; a line break of the text may be a space of what is said."""
    if b" " not in said or text.startswith(said, place):
        return text.startswith(said, place)
    here = text[place : place + len(said)]
    told = zip(said, here, strict=False)
    return len(here) == len(said) and all(one == other or (one, other) == (32, 10) for one, other in told)


def cut(text: bytes, place: int) -> bool:
    """Whether a word, a number or a character goes on over this place."""
    try:
        before, behind = text[:place].decode()[-1:], text[place:].decode()[:2]
    except UnicodeDecodeError:
        return True
    return bool(re.match(r"\w\w|\d[.,:/]\d", before + behind))


@pytest.mark.parametrize(
    ("said", "follows", "never"),
    [
        ("It says “", "she", "he said that she"),
        ("It says “...", " she", "x"),
        ("It says “He said", "”", " he"),
        ("It says “", "…she was", "…x"),
        ("It says “…", " she was", " x"),
        ("It says “He said", " “no", " …"),
        ("It says (“went", " away", "\n\nx"),
        ("It says “it cost 1", ",", "”"),
        ("It says “it cost 1,912", "”", "3"),
        ("It says “went\n", "away", "”"),
        ("It says “and", " went away", "\nwent"),  # a quotation had line breaks that the book had not
        ('"It', " was", " is"),
    ],
)
def test_what_follows(said: str, follows: str, never: str, tokenizer: BookTokenizer, quotable: Quotable) -> None:
    here = quotable.begin(tokenizer.words(said))
    for word in tokenizer.words(follows):
        allowed = here.allowed()
        assert allowed is not None
        assert word in allowed.tolist()
        here = here.after([word])
    here = quotable.begin(tokenizer.words(said))
    wanted = []
    for word in tokenizer.words(never):
        allowed = here.allowed()
        wanted.append(allowed is None or word in allowed.tolist())
        here = here.after([word])
    assert not all(wanted)


@pytest.mark.parametrize(
    "said", ["", "It says", "It says “no, I am,” and", 'a 5" pipe', "it’s", 'x "it" or', "“so it goes"]
)
def test_outside_anything_may_come(said: str, tokenizer: BookTokenizer, quotable: Quotable) -> None:
    """And in a quotation that is not the book's: one that was begun under another law."""
    assert quotable.begin(tokenizer.words(said)).allowed() is None


def test_every_row_is_behind_the_tokens_before_it(tokenizer: BookTokenizer, quotable: Quotable) -> None:
    proposed = torch.tensor(tokenizer.words(" says “She was here”"))
    logits = torch.randn(len(proposed) + 1, len(tokenizer.pieces or []), generator=torch.Generator().manual_seed(1))
    sampler = Sampler(SamplingParams(temperature=0.8, top_p=0.9), None, quotable.begin(tokenizer.words("It")))
    words = logits.shape[1]
    rows = dense(sampler(logits, proposed), words)
    for row in range(len(logits)):
        alone = dense(sampler.after(proposed[:row])(logits[row : row + 1]), words)
        assert torch.equal(rows[row : row + 1], alone)
    few = torch.full_like(logits[:1], float("-inf")).index_fill_(
        1, tokenizer.words(" xyz")[0] + torch.zeros(1).long(), 1.0
    )
    inside = sampler.after(torch.tensor(tokenizer.words(" says “")))
    assert not dense(inside(few), words).isnan().any(), "a draft that has none of the book's tokens still proposes"


@pytest.mark.parametrize("begun", ['It says "', 'It says "The '])
def test_greedy_text_quotes_the_book_alone(begun: str, tiny: Callable[..., str], book: Document) -> None:
    given = {"num_draft_tokens": 2, "num_pending_tokens": 6}
    session = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32), **given)
    read(session, book)
    without_end(session)

    def said(mode: str, exact: bool) -> AnswerDone:
        params = SamplingParams(max_tokens=24, exact_quotes=exact)
        *_, done = session.ask(Question("Where?", (), params, mode, begun))  # type: ignore[arg-type]
        assert isinstance(done, AnswerDone)
        return done

    plain, fast, free = said("plain", True), said("hierarchical", True), said("plain", False)
    assert plain.token_ids == fast.token_ids
    assert fast.figures.rounds < 24
    quoted = [(begun + done.text).split('"')[1] for done in (plain, free)]
    whole = " ".join(" ".join(page.text for page in book.pages).split())
    assert " ".join(quoted[0].split()).strip(". ") in whole
    assert " ".join(quoted[1].split()) not in whole, "the law made the difference"


def test_the_demo_pair_quotes_the_book_alone() -> None:
    """As its own settings say."""
    document = open_text(SAMPLE)
    document = replace(document, pages=(replace(document.pages[0], text=document.text[:6_000]),))
    session = load(TARGET, DRAFT)
    assert session.target.sampling.exact_quotes
    read(session, document)
    whole = " ".join(document.text.split())
    words, found = document.text.split(), 0
    for key in (" ".join(words[place : place + 4]) for place in (300, 700)):
        fast, plain = (answer(session, mode, f"Where does it say “{key}”?") for mode in ("hierarchical", "plain"))
        assert fast.token_ids == plain.token_ids
        quoted = re.findall("“…?([^“”]+)", fast.text)
        assert all(" ".join(part.split()) in whole for part in quoted)
        found += len(quoted)
    assert found >= 2


def test_a_tokenizer_of_another_kind_is_refused(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = load(tiny("llama", spread=0.1), None)
    read(session, book)
    assert describe(session, session.config).can_quote
    monkeypatch.setattr(BookTokenizer, "bytes_of", None)
    assert not describe(session, session.config).can_quote
    with pytest.raises(OptionError, match="cannot restrict quotations"):
        answer(session, exact_quotes=True)
    assert answer(session).text


def test_a_model_says_it_itself(tmp_path: Path) -> None:
    assert "exact_quotes" in {one.name for one in options_of(SamplingParams) if one.if_greedy}
    assert own_sampling({"exact_quotes": True}).exact_quotes is True
    assert own_sampling({"exact_quotes": 1}).exact_quotes is None
    assert own_sampling({}).exact_quotes is None
    with pytest.raises(OptionError):
        SamplingParams(exact_quotes="yes")  # type: ignore[arg-type]
