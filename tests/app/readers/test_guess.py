"""Which encoding a text is of, told from a line as from many: Western signs are no Japanese, nor the other way."""

from __future__ import annotations

import pytest

from app.readers import encoding

_PROSE = (
    "The keeper climbed the stair at nine and lit the lamp, as he had done each evening since the tower was built.\n"
)
_SIGNS = [
    "At 54°12' N, 3°40' W stands the tower; its height is 31 m ± 0.1.",
    "See § 5 and § 12 of the act.",
    "Temp. 20 °C",
    "(§4)",
    "§§ 3-5",
    "(©)",
    "x°y",
    "6÷2",
    "¶ 3",
    "°",
    "rock ’n’ roll",
    "1½ cups",
    "’tis",
    "© 2026 Holm Ltd. All rights reserved.",
    "Rent £480, deposit £960.",
    "The keeper’s lamp — as always.",
    "25 µm wide",
    "He said “yes” and went.",
    "Costs €12 • each • month",
    "Brand™ and Mark® here",
    "Add ½ cup and ¼ spoon",
    "5 × 3 = 15",
    "the café was closed",
    "Zoë met René",
    "Ort;Betrag\nÖrre;1,50",
]
_LINES = {
    "cp1252": [
        *_SIGNS,
        "Où est-il allé ?",
        "¿Dónde está el niño? ¡Aquí!",
        "Você é irmão dele?",
        "Hyvää päivää",
        "È così",
    ],
    "cp850": ["the café was closed", "Der Wärter ging über die Brücke.", "Add ½ cup and ¼ spoon", "At 54°12' N"],
    "mac_roman": ["The keeper’s lamp — as always.", "He said “yes” and went.", "Où est-il allé ?", "Zoë met René"],
    "cp1250": ["Příliš žluťoučký kůň", "Łódź, święta, żółw"],
    "cp1254": ["Fener bekçisi her akşam ışığı yakardı."],
    "cp932": [
        "名前,年齢,町\n森田灯,30,函館",
        "東京",
        "ランプの光",
        "会議は10時から",
        "Name: 森田灯 (Tokyo)",
        "灯台の光はﾗﾝﾌﾟ",
    ],
    "euc_jp": ["名前,年齢,町\n森田灯,30,函館", "東京", "ランプの光", "会議は10時から", "データ, テスト"],
    "gb18030": ["姓名,年龄\n王伟,30\n李娜,25", "你好", "合同编号: 4711", "Mr. 王伟 said hello to Ms. 李娜."],
    "big5": ["姓名,年齡\n陳大文,30", "臺灣", "從前有一個老漁夫，和他的妻子住在海邊。"],
    "cp949": ["이름,나이\n김철수,30", "안녕하세요"],
    "cp1251": ["Привет", "Имя;Город\nИван;Москва", "Дякую за світло"],
    "koi8_u": ["Маяк стоял на скале", "Привет"],
    "cp866": ["Маяк стоял на скале", "Привет"],
    "cp1253": ["Καλημέρα σας", "Ο φαροφύλακας άναβε τη λάμπα"],
    "cp1255": ["שומר המגדלור הדליק את המנורה"],
    "cp1256": ["السلام عليكم"],
    "cp874": ["ผู้ดูแลประภาคารจุดตะเกียงทุกคืน"],
}
_CASES = [(name, line) for name, lines in _LINES.items() for line in lines]


@pytest.mark.parametrize(("name", "line"), _CASES)
def test_a_line_says_its_encoding(name: str, line: str) -> None:
    for text in (line, f"{line} " * 8, f"{_PROSE * 6}{line}\n{_PROSE * 3}"):
        assert encoding.decode(text.encode(name))[0] == text


def test_half_wide_kana_are_no_cyrillic() -> None:
    text = "船はﾗﾝﾌﾟの光を見て港へ帰った。"
    assert encoding.decode(text.encode("cp932")) == (text, "cp932")
