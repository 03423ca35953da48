"""Writes formulas on one line: MathML (web pages, EPUB), OMML (Word) and TeX. Runs only in the child process
(``app.readers.child``).

The text of a formula's elements alone would lose the structure: the fraction 1/4 would become 14. One-line forms such
as 1/4, 10^6, √(b^2-4ac) and ∑_(i=1)^n x_i keep the structure. TeX is plain text already, so only its delimiters are
removed and its lines joined.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from xml.etree import ElementTree

from app.readers.archive import local

_DEEPEST = 60
"""Maximum nesting of a formula. Deeper parts lose their structure and keep their text."""

_ATOM = re.compile(
    r"[+\-−±]?\d+(?:[.,]\d+)*%?$|(?:[^\W\d_]|[\ud800-\udbff][\udc00-\udfff])['′″]*$|[^\W\d_]{2,}$|[^\w\s]$"
)  # matches a number, a letter, also one that is two UTF-16 code units, a word, or a sign
# matches mathematical letters in italic, bold and other styles
_ALPHABETS = re.compile("[\U0001d400-\U0001d537\U0001d56c-\U0001d7ff]")
_APPLIED = re.compile(r"(?<=\w)\u2061(?=\w)")  # matches the invisible sign between a function and its argument
_UNSEEN = {0x2061: "", 0x2063: ",", 0x2064: "+", 0x200B: "", 0xFEFF: ""}
_TIMES = "\u2062"
_ACCENTS = {
    "^": "\u0302", "ˆ": "\u0302", "̂": "\u0302", "~": "\u0303", "˜": "\u0303", "∼": "\u0303", "̃": "\u0303",
    "¯": "\u0304", "‾": "\u0304", "_": "\u0304", "―": "\u0304", "̅": "\u0304", "̄": "\u0304", "˙": "\u0307",
    ".": "\u0307", "̇": "\u0307", "¨": "\u0308", "̈": "\u0308", "→": "\u20d7", "⃗": "\u20d7", "ˇ": "\u030c",
    "´": "\u0301", "`": "\u0300", "˘": "\u0306",
}  # fmt: skip
_ROOTS = {"": "√", "2": "√", "3": "∛", "4": "∜"}
_OPENING, _CLOSING = "([{⟨|‖⌈⌊", ")]}⟩|‖⌉⌋"
_STYLE = re.compile(r"\\(?:display|text|script|scriptscript)style\b\s*")
_TEX_NAMES = ("tex", "latex")


_LOOKS = re.compile(r"[=^\\+/<>±×÷√∑∫]|^.{1,3}$|^[\d\W]+$")


def looks_like(text: str) -> bool:
    """Whether the alternative text of a picture within a line is a formula or a letter, not a description."""
    return bool(_LOOKS.search(text))


def is_tex(encoding: str) -> bool:
    """Whether the encoding of a formula's annotation is TeX."""
    return any(name in encoding.casefold() for name in _TEX_NAMES)


def tex(text: str) -> str:
    """Return TeX on one line, without the delimiters and braces around it."""
    text = " ".join(text.split())
    for opening, closing in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
        if text.startswith(opening) and text.endswith(closing) and len(text) > 2 * len(opening):
            text = text[len(opening) : -len(closing)].strip()
    plain = _STYLE.sub("", text).strip()
    while plain.startswith("{") and _closes(plain) == len(plain) - 1:
        plain = plain[1:-1].strip()
    return plain


def _closes(text: str) -> int:
    """Return the index of the brace that closes the brace at the start of a text; -1 if no brace does."""
    depth = 0
    for at, sign in enumerate(text):
        if text[at - 1 : at] != "\\":
            depth += (sign == "{") - (sign == "}")
        if not depth:
            return at
    return -1


def linear(formula: ElementTree.Element) -> str:
    """Return a formula of MathML or OMML as text on one line."""
    text = _ALPHABETS.sub(lambda found: unicodedata.normalize("NFKC", found[0]), _said(formula, 0)[0])
    text = _APPLIED.sub(" ", text).translate(_UNSEEN)
    text = re.sub(rf"(?<=\d){_TIMES}(?=\d)", "·", text).replace(_TIMES, "")
    return " ".join(text.split())


_Piece = tuple[str, str]
"""(text, kind). The kind decides where spaces are needed: "fraction", "name", "script", "matrix", "text" or ""."""

_APART = ("name", "script")


def _said(node: ElementTree.Element, depth: int) -> _Piece:
    if depth > _DEEPEST:
        return "".join(node.itertext()), ""
    name = local(node.tag).rpartition(":")[2]
    if name in _DROPPED:
        return "", ""
    form = _FORMS.get(name)
    if form is not None:
        return form(node, depth + 1)
    if name in _LEAVES:
        return _leaf(node, name)
    return _row(list(node), depth + 1)


def _leaf(node: ElementTree.Element, name: str) -> _Piece:
    text = "".join(node.itertext())
    if name == "t":
        return text, ""
    if name == "mtext":
        return text.replace("\xa0", " "), "text"
    text = " ".join(text.split())
    if name == "ms":
        return f'"{text}"', ""
    many = name == "mi" and len(text) > 1
    return text, "name" if many else ""


def _row(nodes: Iterable[ElementTree.Element], depth: int) -> _Piece:
    """Join the texts of nodes, with a space where two nodes would otherwise fuse into one number or name."""
    pieces = [piece for node in nodes if (piece := _said(node, depth))[0]]
    if len(pieces) == 1:
        return pieces[0]
    parts: list[str] = []
    before, kind_before = "", ""
    for text, kind in pieces:
        if kind == "matrix" and not (before and before[-1] in _OPENING):
            text = f"[{text}]"
        meet = bool(before) and _joins(before[-1]) and (_joins(text[0]) or text[0] in "√∛∜(")
        apart = "fraction" in (kind, kind_before) or (kind_before in _APART and text[0] != "(") or kind == "name"
        if meet and apart and "text" not in (kind, kind_before):
            parts.append(" ")
        parts.append(text)
        before, kind_before = text, kind
    return "".join(parts), ""


def _joins(sign: str) -> bool:
    return sign.isalnum() or sign in ")]}"


def _group(text: str) -> str:
    """Put brackets around a part of a formula, such as the numerator of a fraction. A single number, name or sign needs
    no brackets, nor does a part that already has brackets.
    """
    text = text.strip()
    if not text or _ATOM.match(text) or _is_bracketed(text):
        return text
    return f"({text})"


def _is_bracketed(text: str) -> bool:
    if text[0] not in "([{" or text[-1] not in ")]}":
        return False
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if not depth:
            return at == len(text) - 1
    return False


def fraction(numerator: str, denominator: str) -> str:
    """Return ``numerator`` divided by ``denominator`` as text on one line, such as "1/4"."""
    return _fraction(numerator, denominator)[0]


def with_limits(sign: str, under: str, over: str) -> str:
    """Return a sign such as that of a sum with its limits as text on one line, such as "∑_(i=1)^n"."""
    return _script((sign, "name"), under, over)[0]


def root(content: str, degree: str) -> str:
    """Return a root as text on one line, such as "√(x + 1)". ``degree`` is "" for a square root."""
    return _root(content, degree)[0]


def _fraction(numerator: str, denominator: str, *, bar: bool = True) -> _Piece:
    if not bar:
        return f"{numerator} choose {denominator}", ""
    return f"{_group(numerator)}/{_group(denominator)}", "fraction"


def _script(base: _Piece, subscript: str, superscript: str) -> _Piece:
    text = base[0] if base[1] == "name" else _group(base[0])
    text += (f"_{_group(subscript)}" if subscript else "") + (f"^{_group(superscript)}" if superscript else "")
    return text, base[1] if base[1] == "name" else "script"


def _root(content: str, degree: str) -> _Piece:
    return _ROOTS.get(degree, f"√[{degree}]") + _group(content), ""


def _accent(base: str, sign: str, *, below: bool = False) -> _Piece:
    mark = _ACCENTS.get(sign)
    if mark and not below:
        if len(base) == 1:
            return base + mark, ""
        return (f"overline({base})", "name") if mark == "\u0304" else (base + sign, "")
    return f"{_group(base)}{'_' if below else '^'}{sign}" if sign not in "⏞⏟︷︸" else base, ""


def _rows(rows: Sequence[Sequence[str]], separator: str = ", ") -> _Piece:
    return "; ".join(separator.join(row) for row in rows), "matrix"


# The functions below read MathML, in which the position of an element's child says what the child means.


def _children(node: ElementTree.Element, depth: int, count: int) -> list[_Piece]:
    pieces = [_said(child, depth) for child in node][:count]
    return pieces + [("", "")] * (count - len(pieces))


def _math(node: ElementTree.Element, depth: int) -> _Piece:
    for child in node.iter():
        if local(child.tag).endswith("annotation") and is_tex(child.get("encoding", "")) and (child.text or "").strip():
            return tex(child.text or ""), ""
    text, kind = _row(list(node), depth)
    if kind == "matrix":
        return f"[{text}]", ""
    return (text if text.strip() else tex(node.get("alttext", ""))), kind


def _mfrac(node: ElementTree.Element, depth: int) -> _Piece:
    over, under = _children(node, depth, 2)
    return _fraction(over[0], under[0], bar=not re.match(r"0(?![.\d]*[1-9])", node.get("linethickness", "1")))


def _mroot(node: ElementTree.Element, depth: int) -> _Piece:
    content, degree = _children(node, depth, 2)
    return _root(content[0], degree[0])


def _munder(node: ElementTree.Element, depth: int) -> _Piece:
    base, under = _children(node, depth, 2)
    return (
        _accent(base[0], under[0], below=True)
        if under[0] in _ACCENTS or under[0] in "⏟︸"
        else _script(base, under[0], "")
    )


def _mover(node: ElementTree.Element, depth: int) -> _Piece:
    base, over = _children(node, depth, 2)
    return _accent(base[0], over[0]) if over[0] in _ACCENTS or over[0] in "⏞︷" else _script(base, "", over[0])


def _msub(node: ElementTree.Element, depth: int) -> _Piece:
    base, under = _children(node, depth, 2)
    return _script(base, under[0], "")


def _msup(node: ElementTree.Element, depth: int) -> _Piece:
    base, over = _children(node, depth, 2)
    return _script(base, "", over[0])


def _msubsup(node: ElementTree.Element, depth: int) -> _Piece:
    base, under, over = _children(node, depth, 3)
    return _script(base, under[0], over[0])


def _multiscripts(node: ElementTree.Element, depth: int) -> _Piece:
    before, after, children = "", "", list(node)
    base = _said(children[0], depth)[0] if children else ""
    in_front = False
    scripts: list[str] = []
    for child in children[1:]:
        if local(child.tag) == "mprescripts":
            in_front = True
            continue
        scripts.append(_said(child, depth)[0])
        if len(scripts) == 2:
            pair = _script(("", "name"), *scripts)[0]
            before, after = (before + pair, after) if in_front else (before, after + pair)
            scripts = []
    return f"{before}{' ' if before else ''}{_group(base)}{after}", ""


def _mfenced(node: ElementTree.Element, depth: int) -> _Piece:
    marks = node.get("separators", ",").replace(" ", "")
    text = ""
    for at, child in enumerate(node):
        said = _said(child, depth)[0]
        text += (marks[min(at, len(marks)) - 1] if at and marks else "") + said
    return node.get("open", "(") + text + node.get("close", ")"), ""


def _mtable(node: ElementTree.Element, depth: int) -> _Piece:
    rows = [row for row in node if local(row.tag).endswith(("mtr", "mlabeledtr"))]
    if not rows and len(node):  # the table has no MathML rows, so its children are read in order
        return _row(list(node), depth)
    aligned = node.get("columnalign", "").startswith("right left") or node.get("displaystyle") == "true"
    said = [[_said(cell, depth)[0] for cell in row] for row in rows]
    return _rows(said, " " if aligned else ", ")


def _semantics(node: ElementTree.Element, depth: int) -> _Piece:
    return _said(node[0], depth) if len(node) else ("", "")


def _mspace(node: ElementTree.Element, depth: int) -> _Piece:
    width = re.match(r"([\d.]+)em$", node.get("width", ""))
    return (" ", "text") if width and float(width[1].strip(".") or 0) >= 0.25 else ("", "")


# The functions below read OMML, in which the name of an element's child says what the child means.


def _part(node: ElementTree.Element, name: str, depth: int) -> _Piece:
    found = next((child for child in node if local(child.tag) == name), None)
    return _row(list(found), depth) if found is not None else ("", "")


def _setting(node: ElementTree.Element, name: str) -> str | None:
    """Return a setting from an element's properties; "" if the setting has no value, None if it is missing."""
    for child in node:
        if local(child.tag).endswith("Pr"):
            for setting in child:
                if local(setting.tag) == name:
                    return next((value for key, value in setting.attrib.items() if local(key) == "val"), "")
    return None


def _f(node: ElementTree.Element, depth: int) -> _Piece:
    return _fraction(_part(node, "num", depth)[0], _part(node, "den", depth)[0], bar=_setting(node, "type") != "noBar")


def _s(node: ElementTree.Element, depth: int) -> _Piece:
    return _script(_part(node, "e", depth), _part(node, "sub", depth)[0], _part(node, "sup", depth)[0])


def _s_pre(node: ElementTree.Element, depth: int) -> _Piece:
    scripts = _script(("", "name"), _part(node, "sub", depth)[0], _part(node, "sup", depth)[0])[0]
    return f"{scripts} {_part(node, 'e', depth)[0]}", ""


def _rad(node: ElementTree.Element, depth: int) -> _Piece:
    degree = "" if _setting(node, "degHide") in ("1", "on", "true", "") else _part(node, "deg", depth)[0]
    return _root(_part(node, "e", depth)[0], degree)


def _nary(node: ElementTree.Element, depth: int) -> _Piece:
    sign = _setting(node, "chr")
    under, over = _part(node, "sub", depth)[0], _part(node, "sup", depth)[0]
    return f"{_script((sign or '∫', 'name'), under, over)[0]} {_part(node, 'e', depth)[0]}", "name"


def _d(node: ElementTree.Element, depth: int) -> _Piece:
    opening, closing, mark = (_setting(node, name) for name in ("begChr", "endChr", "sepChr"))
    parts = [_row(list(child), depth)[0] for child in node if local(child.tag) == "e"]
    between = "|" if mark is None else mark
    return ("(" if opening is None else opening) + between.join(parts) + (")" if closing is None else closing), ""


def _func(node: ElementTree.Element, depth: int) -> _Piece:
    name, argument = _part(node, "fName", depth)[0], _part(node, "e", depth)[0]
    return name + ("" if argument.startswith("(") else " ") + argument, "name"


def _lim_low(node: ElementTree.Element, depth: int) -> _Piece:
    return _script(_part(node, "e", depth), _part(node, "lim", depth)[0], "")


def _lim_upp(node: ElementTree.Element, depth: int) -> _Piece:
    return _script(_part(node, "e", depth), "", _part(node, "lim", depth)[0])


def _acc(node: ElementTree.Element, depth: int) -> _Piece:
    sign = _setting(node, "chr")
    return _accent(_part(node, "e", depth)[0], "^" if sign is None else sign)


def _bar(node: ElementTree.Element, depth: int) -> _Piece:
    below = _setting(node, "pos") != "top"
    text = _part(node, "e", depth)[0]
    return (f"underline({text})", "") if below else _accent(text, "¯")


def _group_chr(node: ElementTree.Element, depth: int) -> _Piece:
    return _part(node, "e", depth)


def _m(node: ElementTree.Element, depth: int) -> _Piece:
    rows = [row for row in node if local(row.tag) == "mr"]
    return _rows([[_row(list(cell), depth)[0] for cell in row if local(cell.tag) == "e"] for row in rows])


def _eq_arr(node: ElementTree.Element, depth: int) -> _Piece:
    rows = [_row(list(row), depth)[0].replace("&", "") for row in node if local(row.tag) == "e"]
    return "; ".join(rows), ""


def _phant(node: ElementTree.Element, depth: int) -> _Piece:
    return ("", "") if _setting(node, "show") in ("0", "off", "false") else _part(node, "e", depth)


def _o_math_para(node: ElementTree.Element, depth: int) -> _Piece:
    return " ; ".join(said for child in node if (said := _said(child, depth)[0].strip())), ""


_LEAVES = frozenset(("mi", "mn", "mo", "mtext", "ms", "t"))
_DROPPED = frozenset(
    re.findall(
        r"[\w-]+",
        "annotation annotation-xml mphantom none mprescripts maligngroup malignmark rPr ctrlPr del moveFrom delText"
        " instrText oMathParaPr argPr",
    )
)
_FORMS: dict[str, Callable[[ElementTree.Element, int], _Piece]] = {
    "math": _math, "mfrac": _mfrac, "mroot": _mroot, "munder": _munder, "mover": _mover, "munderover": _msubsup,
    "msub": _msub, "msup": _msup, "msubsup": _msubsup, "mmultiscripts": _multiscripts, "mfenced": _mfenced,
    "mtable": _mtable, "semantics": _semantics, "mspace": _mspace, "maction": _semantics,
    "msqrt": lambda node, depth: _root(_row(list(node), depth)[0], ""),
    "f": _f, "sSup": _s, "sSub": _s, "sSubSup": _s, "sPre": _s_pre, "rad": _rad, "nary": _nary, "d": _d,
    "func": _func, "limLow": _lim_low, "limUpp": _lim_upp, "acc": _acc, "bar": _bar, "groupChr": _group_chr, "m": _m,
    "eqArr": _eq_arr, "phant": _phant, "oMathPara": _o_math_para,
}  # fmt: skip
