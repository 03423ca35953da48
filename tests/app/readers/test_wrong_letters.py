"""Texts with wrong letters, and texts that only look strange."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from app.readers.wrong_letters import has_wrong_part, is_mismapped

SAMPLE = Path(__file__).resolve().parents[3] / "assets" / "sample" / "the-lamplighters-of-orre.txt"
PROSE = SAMPLE.read_text(encoding="utf-8")[:3_000]
SHIFTED = "".join(chr(ord(sign) - 29) if sign > "=" else sign for sign in PROSE)  # numbers of glyphs, a common fault
ABBREVIATED = "Bzgl. der Lampen von Orre steht im Buch, dass jede Nacht jemand alle Lichter zählt. " * 8
CODE = "ldrb sp, [lr, r1]\nstrb lr, [sp, r2]\nldrh fp, [lr]\nstrh lr, [fp]\ncmps sp, lr\nbxlr lr\nsubs sp, lr\n" * 9
AMINO_ACIDS = list("LLLLAAAAGGGVVVEEESSSKKRRDDTTPPNNQQFFIIYMHCW")


def peptides(length: int, count: int) -> str:
    choices = random.Random(0)
    return "\n".join("".join(choices.choices(AMINO_ACIDS, k=length)) for _ in range(count))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (PROSE, False),
        (ABBREVIATED, False),
        (SHIFTED, True),
        (CODE, False),
        (peptides(6, 50), False),
        (peptides(4, 200), False),
        ("حَبيبي˴ ϲΒϴΒhabibi حَبيبي", True),
        ("ΔϴΑήόϟ΍ ΔϐϠϟ΍ ϲϫ ϩάϫ", True),
        ("Ἄνδρα μοι ἔννεπε, Μοῦσα, πολύτροπον, ὃς μάλα πολλὰ", False),
        ("ϲτηϲαϲ δε ϲτοιχουϲ ϲυν ϲοφοιϲ", False),
        ("ϕ(x) = ϵ² + ϑ, ϱ ≤ ϖ and ϰ > 0", False),
        ("ϩⲛ ⲧⲉϩⲟⲩⲉⲓⲧⲉ ⲛⲉϥϣⲟⲟⲡ ⲛϭⲓ ⲡϣⲁϫⲉ", False),
        ("", False),
    ],
)
def test_numbers_of_glyphs_are_not_taken_for_letters_in_silence(text: str, wrong: bool) -> None:
    assert is_mismapped(text) is wrong


_RUSSIAN = "На рассвете рыбаки вытащили лодку на берег, развесили сети и пошли пить чай к старому смотрителю маяка."
_KOREAN = (
    "새벽에 어부들은 배를 해변으로 끌어올리고 그물을 널어 놓은 다음 등대지기의 집으로 차를 마시러 갔다. "
    "그는 아직 잠을 자지 않고 밤새 지나간 배들의 이름을 적고 있었다."
)
_HINDI = "भोर में मछुआरों ने नाव को किनारे पर खींचा, जाल सुखाने के लिए फैलाए और चाय पीने के लिए प्रकाशस्तंभ के रखवाले के घर गए।"


def _as_hangul(text: str) -> str:
    return "".join(chr(0xAC00 + 28 * (ord(sign) % 399)) if sign.isalpha() else sign for sign in text)


@pytest.mark.parametrize("text", [SHIFTED[:400], _as_hangul(_RUSSIAN), _HINDI.replace("कि", "िक").replace("े", " े")])
def test_a_part_of_a_page_with_wrong_letters_is_told(text: str) -> None:
    """Between parts that are right, and too short to be a large share of the page."""
    page = PROSE.splitlines()
    assert has_wrong_part([*page, text, *page])


@pytest.mark.parametrize(
    "text",
    [
        *(PROSE, ABBREVIATED, CODE, _RUSSIAN, _KOREAN, _HINDI, peptides(6, 50), peptides(9, 120)),
        "GATTACA CCGTTAGG TTCCGGAA " * 20,
        "HTTP TCP SMTP DNS FTP SSH TLS SSL XML HTML CSS JPG PNG PDF RTF TXT CSV SQL PHP RSS VPN " * 4,
        "Ἄνδρα μοι ἔννεπε, Μοῦσα, πολύτροπον, ὃς μάλα πολλὰ πλάγχθη, ἐπεὶ Τροίης ἱερὸν πτολίεθρον ἔπερσε",
        "عاد الصيادون عند الفجر وجروا القارب إلى الشاطئ ونشروا الشباك وذهبوا ليشربوا الشاي عند حارس المنارة",
        "עם שחר משכו הדייגים את הסירה אל החוף, פרשו את הרשתות והלכו לשתות תה אצל שומר המגדלור הזקן",
    ],
)
def test_a_part_of_a_page_that_is_right_is_not_called_wrong(text: str) -> None:
    assert not has_wrong_part(text.splitlines())
