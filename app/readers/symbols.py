"""Translates signs of the fonts Symbol, Wingdings and Webdings to similar characters of Unicode. Child only.

A word processor stores such a sign as its place in the font, which has no meaning without the font's name. Unicode 7
has a character for nearly all signs. For a common sign with a rare character, the table has the common character.
"""

from __future__ import annotations

_FIRST = 0x20  # the first place in a font that holds a sign
_PRIVATE = 0xF000  # added by Word to a place, so that the number is among those for private use
UNKNOWN = "\ufffd"
"""The character for signs without a similar one."""

# Signs from place 0x20 to 0xFF. Source: the tables of Adobe (Symbol) and of Unicode's proposal L2/12-368 (the others).
_SIGNS = {
    "symbol": (
        " !∀#∃%&∍()*+,−./0123456789:;<=>?≅ΑΒΧΔΕΦΓΗΙϑΚΛΜΝΟΠΘΡΣΤΥςΩΞΨΖ[∴]⊥_‾αβχδεφγηιϕκλμνο"
        "πθρστυϖωξψζ{|}~���������������������������������€ϒ′≤⁄∞ƒ♣♦♥♠↔←↑→↓°±″≥×∝∂•÷≠≡≈…|—↵"
        "ℵℑℜ℘⊗⊕∅∩∪⊃⊇⊄⊂⊆∈∉∠∇®©™∏√⋅¬∧∨⇔⇐⇑⇒⇓◊⟨®©™∑⎛⎜⎝⎡⎢⎣⎧⎨⎩⎪�⟩∫⌠⎮⌡⎞⎟⎠⎤⎥⎦⎫⎬⎭�"
    ),
    "wingdings": (
        " 🖉✂✁👓🕭🕮🕯🕿✆🖂🖃📪📫📬📭🗀🗁🗎🗏🗐🗄⌛🖮🖰🖲🖳🖴🖫🖬✇✍🖎✌🖏👍👎☜☞☝☟🖐☺😐☹💣🕱🏳🏱✈☼🌢❄🕆✞🕈"
        "✠✡☪☯🕉☸♈♉♊♋♌♍♎♏♐♑♒♓🙰🙵●🔾■☐🞐☐☐🞟⧫◆❖⬩⌧⮹⌘🏵🏶🙶🙷▯🄋➀➁➂➃➄➅➆➇➈➉🄌➊➋➌➍"
        "➎➏➐➑➒➓🙢🙠🙡🙣🙞🙜🙝🙟∙•⬝⭘🞆🞈🞊🞋🔿▪☐🟁🟅★🟋🟏🟓🟑⯐⌖⯎⯏⯑✪✰🕐🕑🕒🕓🕔🕕🕖🕗🕘🕙🕚🕛⮰⮱⮲⮳⮴"
        "⮵⮶⮷🙪🙫🙕🙔🙗🙖🙐🙑🙒🙓⌫⌦⮘➢⮙⮛⮈⮊⮉⮋←→↑↓🡬🡭🡯🡮←→↑↓🡼🡽🡿🡾⇦⇨⇧⇩⬄⇳⬁⬀⬃⬂🢬🢭✗✓☒☑�"
    ),
    "wingdings 2": (
        " 🖊🖋🖌🖍✄✀🕾🕽🗅☐🗇🗈🗉🗊🗋☐🗍📋🗑🗔🖵🖶🖷🖸🖭🖯🖱🖒🖓🖘🖙🖚🖛👈👉🖜🖝🖞🖟🖠🖡👆👇🖢🖣🖑✗✓☒☑☒☒☒⮿🛇"
        "⦸🙱🙴🙲🙳‽🙹🙺🙻🙦🙤🙥🙧🙚🙘🙙🙛⓪①②③④⑤⑥⑦⑧⑨⑩⓿❶❷❸❹❺❻❼❽❾❿�☉🌕☽☾⸿✝🕇🕜🕝🕞🕟🕠🕡🕢🕣🕤"
        "🕥🕦🕧🙨🙩⋅🞄⦁●○🞅🞇🞉⊙⦿🞌🞍◾■☐🞑🞒🞓🞔▣🞕🞖🞗🞘⬩⬥◇🞚◈🞛🞜🞝🞞⬪⬧◊🞠◖◗⯊⯋⯀⯁⬟⯂⬣⬢⯃⯄🞡🞢"
        "🞣🞤🞥🞦🞧🞨🞩🞪🞫🞬🞭🞮🞯🞰🞱🞲🞳🞴🞵🞶🞷🞸🞹🞺🞻🞼🞽🞾🞿🟀🟂🟄🟆🟉🟊✶🟌🟎🟐🟒✹🟃🟇✯🟍🟔⯌⯍※⁂������"
    ),
    "wingdings 3": (
        " ⭠⭢⭡⭣⭦⭧⭩⭨⭰⭲⭱⭳⭶⭸⭻⭽⭤⭥⭪⭬⭫⭭⭍⮠⮡⮢⮣⮤⮥⮦⮧⮐⮑⮒⮓⮀⮃⭾⭿⮄⮆⮅⮇⮏⮍⮎⮌⭮⭯⎋⌤⌃⌥␣⍽"
        "⇪⮸🢠🢡🢢🢣🢤🢥🢦🢧🢨🢩🢪🢫🡐🡒🡑🡓🡔🡕🡗🡖🡘🡙▲▼△▽◀▶◁▷◣◢◤◥🞀🞂🞁�🞃⯅⯆⯇⯈⮜⮞⮝⮟🠐🠒🠑🠓🠔🠖🠕"
        "🠗🠘🠚🠙🠛🠜🠞🠝🠟🠀🠂🠁🠃🠄🠆🠅🠇🠈🠊🠉🠋🠠🠢🠤🠦🠨🠪🠬🢜🢝🢞🢟🠮🠰🠲🠴🠶🠸🠺🠹🠻🢘🢚🢙🢛🠼🠾🠽🠿🡀🡂🡁🡃🡄🡆🡅"
        "🡇⮨⮩⮪⮫⮬⮭⮮⮯🡠🡢🡡🡣🡤🡥🡧🡦🡰🡲🡱🡳🡴🡵🡷🡶🢀🢂🢁🢃🢄🢅🢇🢆🢐🢒🢑🢓🢔🢖🢕🢗���������������"
    ),
    "webdings": (
        " 🕷🕸🕲🕶🏆🎖🖇🗨🗩🗰🗱🌶🎗🙾🙼🗕🗖🗗⏴⏵⏶⏷⏪⏩⏮⏭⏸⏹⏺🗚🗳🛠🏗🏘🏙🏚🏜🏭🏛🏠🏖🏝🛣🔍🏔👁👂🏞🏕🛤🏟🛳🕬🕫🕨"
        "🔈🎔🎕🗬🙽🗭🗪🗫⮔✓🚲☐🛡📦🛱⬛🚑🛈🛩🛰🟈🕴⬤🛥🚔🗘✗❓🛲🚇🚍⛳⦸⊖🚭🗮⏐🗯🗲�🚹🚺🛉🛊🚼👽🏋⛷🏂🏌🏊🏄🏍🏎🚘🗠"
        "🛢💰🏷💳👪🗡🗢🗣✯🖄🖅🖃🖆🖹🖺🖻🕵🕰🖽🖾📋🗒🗓🕮📚🗞🗟🗃🗂🖼🎭🎜🎘🎙🎧💿🎞📷🎟🎬📽📹📾📻🎚🎛📺💻🖥🖦🖧🕹🎮🕻🕼📟"
        "🖁🖀🖨🖩🖿🖪🗜🔒🔓🗝📥📤🕳🌣🌤🌥🌦☁🌨🌧🌩🌪🌬🌫🌜🌡🛋🛏🍽🍸🛎🛍Ⓟ♿🛆🖈🎓🗤🗥🗦🗧🛪🐿🐦🐟🐕🐈🙬🙮🙭🙯🗺🌍🌏🌎🕊"
    ),
}  # fmt: skip


def is_symbolic(font: str) -> bool:
    """Whether letters in this font are signs."""
    return font.casefold() in _SIGNS


def sign(font: str, code: int) -> str:
    """The character for a place in a font, also where Word moved the place among the numbers for private use."""
    signs = _SIGNS.get(font.casefold())
    place = code - _PRIVATE if _PRIVATE <= code <= _PRIVATE + 0xFF else code
    if signs is None:
        return UNKNOWN if place != code else chr(code)
    return signs[place - _FIRST] if _FIRST <= place <= 0xFF else chr(code)


def spelled(text: str, font: str) -> str:
    """Translate text of a run in such a font."""
    return "".join(sign(font, ord(character)) for character in text)
