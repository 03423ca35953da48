"""Mails: what people read of them is decoded, what is no text in them is named."""

from __future__ import annotations

import base64
import contextlib
import quopri
import random
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.readers import detect, read_document
from app.readers import mail as mail_reader
from app.readers.parsed import Limits, Parsed, Refused


def _silent(done: int, total: int, page: int | None) -> None:
    """Nobody listens."""


def _parse(files: Any, data: bytes, name: str = "a.eml") -> Parsed:
    return detect.parse(files.raw(name, data), {}, Limits(), _silent)


def _mail(**heads: str) -> EmailMessage:
    mail = EmailMessage()
    for name, value in {"From": "Ada Quill <ada@orre.example>", "Subject": "Lamp", **heads}.items():
        mail[name] = value
    return mail


_HEAD = b"From: a@b\nSubject: Lamp\nMIME-Version: 1.0\nContent-Type: text/plain; charset=%s\n"


@pytest.mark.parametrize(
    ("charset", "encoded", "how"),
    [
        ("utf-8", base64.encodebytes("The lamp was lit at nine. 東京".encode()), b"base64"),
        (
            "iso-8859-1",
            quopri.encodestring("The lamp was lit at nine in Küsnacht. ".encode("cp1252") * 4),
            b"quoted-printable",
        ),
        ("koi8-r", "The lamp was lit at nine. Маяк".encode("koi8-r"), b"8bit"),
        ("nonsense", "The lamp was lit at nine. Küche".encode(), b"8bit"),
    ],
)
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_words_of_a_mail_are_decoded(files: Any, charset: str, encoded: bytes, how: bytes, line_end: bytes) -> None:
    data = _HEAD % charset.encode() + b"Content-Transfer-Encoding: " + how + b"\n\n" + encoded
    parsed = _parse(files, data.replace(b"\n", line_end), "a.txt")
    assert parsed.sections[0].text.startswith("From: a@b\nSubject: Lamp\n\nThe lamp was lit at nine")
    words = {"utf-8": "東京", "iso-8859-1": "Küsnacht", "koi8-r": "Маяк", "nonsense": "Küche"}[charset]
    assert words in parsed.sections[0].text
    assert (parsed.kind, parsed.title, parsed.warnings) == ("mail", "Lamp", [])


def test_heads_that_people_read_stay_and_technical_ones_go(files: Any) -> None:
    mail = _mail(To="Tom", Date="Mon, 02 Mar 2026 09:00:00 +0100", Priority="urgent")
    mail["Received"] = "from x by y"
    mail["Message-ID"] = "<4711@orre.example>"
    mail["X-Spam"] = "no"
    mail.replace_header("Subject", "Öl für die Lampe")
    mail.set_content("Words.\n")
    text = _parse(files, mail.as_bytes()).sections[0].text
    assert text == (
        "From: Ada Quill <ada@orre.example>\nSubject: Öl für die Lampe\nTo: Tom\n"
        "Date: Mon, 02 Mar 2026 09:00:00 +0100\nPriority: urgent\n\nWords."
    )


def test_one_form_of_the_words_is_read_and_attachments_are_named(files: Any) -> None:
    mail = _mail()
    mail.set_content("The lamp was lit at nine.\n")
    mail.add_alternative("<p>The lamp was <b>lit</b> at nine.</p>", subtype="html")
    mail.add_attachment(b"%PDF-1.4", maintype="application", subtype="pdf", filename="Rechnung März.pdf")
    mail.add_attachment("Port,Oil\nOrre,12\n", subtype="csv", filename="oil.csv")
    parsed = _parse(files, mail.as_bytes())
    assert parsed.sections[0].text.endswith("\n\nThe lamp was lit at nine.\n\noil.csv:\n\nPort,Oil\nOrre,12")
    assert parsed.sections[0].text.count("at nine") == 1
    assert parsed.warnings == [
        "1 attachment or picture is not read: Rechnung März.pdf. Save and open what is a document by itself."
    ]


def test_a_stub_gives_way_to_the_form_that_has_the_words(files: Any) -> None:
    mail = _mail()
    mail.set_content("Please use HTML.\n")
    mail.add_alternative(
        "<p>The lamp was lit at nine, and the ships came home.</p><p>Ada &amp; Tom</p>", subtype="html"
    )
    assert (
        _parse(files, mail.as_bytes())
        .sections[0]
        .text.endswith("\n\nThe lamp was lit at nine, and the ships came home.\n\nAda & Tom")
    )


@pytest.mark.parametrize(
    ("plain", "rich", "read"),
    [
        ("Your bill is in the form with pictures, as always.", "<p>Bill 4711: 230.40 euros", "Bill 4711: 230.40 euros"),
        ("Your berth is ready.", "<p>Your berth is ready: pier 17.", "Your berth is ready: pier 17."),
        ("Your berth\n> is ready", "<p>Your berth<blockquote>is ready", "Your berth\n> is ready"),
    ],
)
def test_the_form_that_says_more_is_read(files: Any, plain: str, rich: str, read: str) -> None:
    mail = _mail()
    mail.set_content(plain + "\n")
    mail.add_alternative(rich, subtype="html")
    assert _parse(files, mail.as_bytes()).sections[0].text.endswith(f"\n\n{read}")


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        (
            "a.eml",
            "Delivered-To: a@b.example\nARC-Seal: " + "x" * 3000 + "\nFrom: a@b.example\nDate: 4 May\n\nHi",
            "mail",
        ),
        ("a.txt", "<!-- " + "saved " * 900 + "--><html><body><p>Hi", "html"),
        ("a", "<script>" + "var a;" * 900 + "</script><html><body><p>Hi", "html"),
        ("a.html", "<b>Hi</b> &amp; more", "html"),
        ("a.html", "Hi<br>there", "html"),
        ("a.txt", "Hi<br>there", "text"),
        ("a.txt", "<b>Hi</b> there", "text"),
    ],
)
def test_a_long_head_hides_no_kind(files: Any, name: str, text: str, kind: str) -> None:
    assert detect.format_of(files.text(name, text), Limits()).kind == kind


def test_mails_of_a_box_and_in_a_mail_are_all_read(files: Any) -> None:
    inner, outer = _mail(Subject="Oil"), _mail()
    inner.set_content("The oil is low.\n")
    outer.set_content("See below.\n")
    outer.add_attachment(inner)
    box = b"".join(b"From ada@orre Mon Mar  2 09:00:00 2026\n" + mail.as_bytes() + b"\n" for mail in (outer, inner))
    parsed = _parse(files, box, "box.mbox")
    assert [section.label for section in parsed.sections] == ["Lamp", "Oil"]
    assert [entry.title for entry in parsed.outline] == ["Lamp", "Oil"]
    assert parsed.sections[0].text.endswith(
        "See below.\n\nFrom: Ada Quill <ada@orre.example>\nSubject: Oil\n\nThe oil is low."
    )
    assert parsed.sections[1].text.endswith("The oil is low.")


def test_a_box_of_too_many_mails_is_refused_before_they_are_read(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusing 400,000 mails took 133 s."""
    monkeypatch.setattr(mail_reader, "message_from_bytes", lambda *_, **__: pytest.fail("it was read"))
    box = b"From ada@orre Mon Mar  2 09:00:00 2026\nFrom: a@b\nSubject: Lamp\n\nLit.\n\n" * (Limits().pages + 1)
    with pytest.raises(Refused, match="more than 20,000 sections"):
        _parse(files, box, "box.mbox")


def test_flowed_lines_are_joined_and_hard_ones_are_not(files: Any) -> None:
    data = _HEAD % b"utf-8; format=flowed" + b"\nThe lamp was \nlit at nine.\nThe oil is low.\n> so \n-- \nAda\n"
    assert _parse(files, data).sections[0].text.endswith("The lamp was lit at nine.\nThe oil is low.\n> so\n--\nAda")


@settings(deadline=None)  # the first mail also imports the parsers of its parts, which takes longer on a busy machine
@given(st.integers(0, 2**32))
def test_a_damaged_mail_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    mail = _mail(Subject="Öl")
    mail.set_content("Words é\n")
    mail.add_alternative("<p>Wörter</p>", subtype="html")
    mail.add_attachment(b"x", maintype="application", subtype="pdf", filename="ä.pdf")
    data, chance = bytearray(mail.as_bytes()), random.Random(seed)
    for _ in range(chance.randrange(1, 12)):
        at = chance.randrange(len(data))
        data[at : at + chance.choice((0, 1, 20))] = chance.choice(
            (b"", chance.randbytes(5), data[: chance.randrange(80)])
        )
    path = tmp_path_factory.getbasetemp() / f"{seed}.eml"
    path.write_bytes(data)
    with contextlib.suppress(Refused):
        mail_reader.parse(path, {}, Limits(), _silent)
    path.unlink()


def test_an_encoding_that_cannot_be_is_passed_over(tmp_path: Path) -> None:
    data = (
        b"From: a@b\nSubject: x\nContent-Type: multipart/mixed; boundary=x\n\n"
        b"--x\nContent-Type: text/plain; charset*=utf\0''utf-8\n\nThe lamp.\n"
        b"--x\nContent-Type: application/pdf\nContent-Disposition: attachment; filename*=utf\0-8''a.pdf\n\nx\n--x--\n"
    )
    (tmp_path / "a.eml").write_bytes(data)
    found = mail_reader.parse(tmp_path / "a.eml", {}, Limits(), _silent)
    assert "The lamp." in found.sections[0].text


def test_an_encrypted_mail_is_refused_by_name(files: Any) -> None:
    data = b"From: a@b\nSubject: x\nContent-Type: multipart/encrypted; boundary=x\n\n--x\n\nno\n--x--\n"
    with pytest.raises(Refused, match="encrypted mail"):
        _parse(files, data)


def test_what_only_begins_with_a_word_and_a_colon_is_no_mail(files: Any) -> None:
    for text in (
        b"To: whom it may concern\n\nWords.",
        b"Subject: x\nWords.",
        b"From: here\nto there.",
        b"Title: T\nDate: x\n\nY",
    ):
        assert _parse(files, text, "a.txt").kind == "text"


def test_a_pdf_after_junk_is_a_pdf_and_a_text_about_one_is_a_text(files: Any) -> None:
    whole = files.pdf("whole.pdf", [[(72, 700, "Just words in a page.")]]).read_bytes()
    for junk in (b"<html>\n<head></head>\n", b"HTTP/1.1 200 OK\nServer: x\n\n", b"From: a@b\nTo: c\n\n"):
        parsed = _parse(files, junk + whole, "a.pdf")
        assert (parsed.kind, parsed.sections[0].text) == ("pdf", "Just words in a page.")
    assert _parse(files, b"A file begins with %PDF-1.4 and ends with %%EOF.", "a.txt").kind == "text"


def test_a_page_saved_in_one_file_is_read_with_its_frames(files: Any) -> None:
    part = "--x\nContent-Type: text/html; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n{}\n"
    page = '<title>Oil</title><h1>Oil</h1><p>nine=20barrels =E2=82=AC</p><iframe src=3D"cid:f"></iframe>'
    head = "From: <Saved by Blink>\nMIME-Version: 1.0\nContent-Type: multipart/related; boundary=x\n\n"
    path = files.text("a.mhtml", head + part.format(page) + part.format("<p>framed words</p>") + "--x--\n")
    document = read_document(path)
    assert (document.title, document.kind) == ("Oil", "html")
    assert document.text == "Oil\n\nnine barrels €\n\nframed words"
