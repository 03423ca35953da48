"""Decides whether a question can only be understood with the questions and answers before it.

    refers_back("And how old is he?")                True
    refers_back("Where does Tom keep his hens?")     False

A question refers back with a pronoun before which it names nobody, with a word such as "again" or "shorter", with a
word for the conversation ("you said"), or by being very short. In unclear cases it refers back. Knows words of English,
German and French; in other languages every question refers back.
"""

from __future__ import annotations

import re

from app.language.quoting import quoted_words
from app.language.tokens import RUN
from engine.languages import language_of_question

_SHORT = 2
"""Maximum number of words of a question that is too short to stand alone ("Why not?")."""
_BEGINS = re.compile(
    r"\W*(?:and|but|so|or|then|also|okay|ok|what about|how about|why(?= not\b)|und|aber|oder|dann|et|mais|ou|alors)\b",
    re.IGNORECASE,
)
_POLITE = re.compile(
    r"\b(?:(?:can|could|will|would) you(?: please)?|help me"
    r"|(?:tell|give|show|write|explain|find|list)(?: to)? (?:me|us)"
    r"|(?:kannst|könntest) du(?: bitte)?|(?:können|könnten) Sie(?: bitte)?|(?:sag|gib|zeig|nenn|erklär)e? (?:mir|uns)"
    r"|(?:peux|pourrais)-tu|(?:pouvez|pourriez)-vous|(?:dis|donne|montre|explique)-(?:moi|nous))\b",
    re.IGNORECASE,
)
_TALK = re.compile(
    r"\b(?:you|your|yours|i|me|my|mine|we|our|ich|mir|mich|mein\w*|du|dir|dich|dein\w*|wir|je|moi|mon|ma|tu|toi|ton|ta|vous"
    r"|votre|nous)\b",
    re.IGNORECASE,
)
_REPEATS = re.compile(
    r"\b(?:again|also|else|instead|another|others?|(?:any|some|tell me|what) more|previous(?:ly)?|earlier|above|former"
    r"|latter|same|continue|go on|answers?|shorter|longer|simpler|rephrase|reword|translate|elaborate|too"
    r"|nochmals?|noch|auch|außerdem|sonst|andere[nrms]?|kürzer|länger|einfacher|weiter|vorher|eben|übersetz\w*|antwort\w*"
    r"|encore|aussi|autres?|même|plus (?:court|long|simple)|continue[rz]?|tradui\w*|réponses?)\b",
    re.IGNORECASE,
)
_PRONOUN = re.compile(
    r"\b(?:he|she|it|him|her|his|hers|its|they|them|their|theirs|(?<!is )(?<!are )(?<!was )(?<!were )there"
    r"|er|sie|(?<!geht )(?<!gibt )es|ihn|ihm|ihr\w*|ihnen|sein\w*|dies\w*|jene\w*|davon|dazu|damit|darüber"
    r"|il|elle|ils|elles|lui|leurs?|cela|ça|celui|celle|ceux|y|en)\b",
    re.IGNORECASE,
)
# "What is the reason for that?": it refers back whatever the question names
_THAT = re.compile(
    r"\bth(?:is|at|ese|ose)(?=\W*$|\W+(?:is|was|were|are|ones?|means?|to|in|about|so|happen\w*|work\w*)\b)"
    r"|\b(?:is|was|does|did|are|were|do) th(?:at|ose)\b(?! (?:the|an?|\w+ of)\b)",
    re.IGNORECASE,
)
_LONGEST = 20_000  # maximum characters of a question that are looked at; 5 MB took 4.6 s
# What a pronoun may stand for within the question: a name, or a thing after an article.
_NAMED = re.compile(
    r"\b(?:the|a|an|each|every|which|what|der|die|das|ein|eine|welche[rsmn]?|le|la|les|un|une) [^\W\d_]{3,}"
    r"|(?<=\s)[A-ZÄÖÜÉ][^\W\d_]{2,}"
)


def refers_back(question: str) -> bool:
    """Whether a question can only be understood with the conversation before it. What it quotes does not count."""
    question = question[:_LONGEST]
    for quoted in quoted_words(question):
        question = question.replace(quoted, "")
    if language_of_question(question) not in ("en", "de", "fr", None) or len(RUN.findall(question)) <= _SHORT:
        return True
    asked = _POLITE.sub("", question)
    if _BEGINS.match(question) or _TALK.search(asked) or _REPEATS.search(question) or _THAT.search(question):
        return True
    pronoun = _PRONOUN.search(asked)
    return pronoun is not None and _NAMED.search(asked, 0, pronoun.start()) is None
