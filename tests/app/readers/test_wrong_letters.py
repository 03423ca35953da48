"""Texts with wrong letters, and texts that only look strange."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from app.readers.wrong_letters import is_mismapped

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
