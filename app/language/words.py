"""Converts words and numbers (``app.language.tokens``) to the form in which they are compared.

    fold_word("l’Été")                          "ete"
    without_ending("lamps")                     "lamp"
    list(numbers_in(tokens, "13 lamps"))        [("#13", "13", 0)]

Words are compared without case, accents and endings, numbers by their value. Stop words are listed for English, German,
French and Spanish.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from engine.passages import SILENT

FIRST_PERSON = "i|we|ich|wir|je|nous"
THIRD_PERSON = "he|she|it|they|er|sie|es|ils?|elles?"
"""Pronouns that are subjects, as alternatives of a pattern."""

_MIXED = re.compile(r"(\d{1,3}(?:\.\d{3})+),(\d+)|(\d{1,3}(?:,\d{3})+)\.(\d+)")
_GROUPED = re.compile(r"\d{1,3}(?:[.,]\d{3})+")
_ONLY_ZEROS = re.compile(r"(\d*)\.0+")
_ELISION = re.compile(r"^(?:[cdjlmnst]|qu|jusqu|lorsqu|puisqu)['](?=\w)|(?:['](?:s|ll|re|ve|d|m))$")
_ENDINGS = re.compile(r"(?:(?<=\w{3})(?:ings?|ed|es|s|e)|(?<=\w{4})(?:ies|ied|ers?|ens?|y)|(?<=eau)x)$")
# Matches "ail", "ails" and "aux" at the end of French nouns: "bail" and its plural "baux", or "journaux".
_PLURAL_IN_AUX = re.compile(r"(?<=\w)(?:(?<!e)aux|ails?)$")
_GERMAN = (
    "aber als am an auch auf aus bei bin bis da das dass dem den der des die dies diese dieser du durch ein eine "
    "einem einen einer eines er es für hat haben hatte ich ihr im in ist ja kann man mehr mit muss nach nicht "
    "noch nur oder sein seine sich sie sind so über um und uns unter vom von vor war waren was welche welchem "
    "welchen welcher welches wenn wer werden wie wieviel viel viele wird wo worden wurde wurden zu zum zur heißt "
    "hieß beim gemäß ihnen ihre ihrem ihren ihrer ihres kein keine keinem keinen keiner laut ohne pro seit "
    "trotz statt während mangels sofern obwohl"
)
_OTHERS = (
    "au aux avec ce ces cette comme dans de des du elle en est et il ils je la le les leur lui mais ne nous on ou "
    "par pas plus pour qu que quel quelle quels quelles qui sa se ses son sont sur un une vous combien quand où "
    "pourquoi comment était fut a del el ella en es esta este la las lo los más no nos para pero por que se su "
    "sus un una y cuál cuántos quién dónde qué"
)
_EMPTY = (
    "am although among because between both during either every further here however may might most must never "
    "nor off often only other otherwise over per same several shall should since still such therefore these those "
    "though through thus too toward towards under until upon used using via well were whether while within "
    "without yes st nd rd th don doesn didn isn wasn aren nothing none nobody everything something anything "
    "himself herself itself themselves myself yourself ourselves "
    "mr mrs ms mme mlle answer question according based stated mentioned described following specific"
)

_FIRST_NAMES = (
    "aaron adam adele adelheid adrian agathe agnes alain albert albrecht alejandro alex alexander alexandra "
    "alfred alice alina alois amalie amanda amelia ana anastasia andrea andreas andrew andré anette angela "
    "angelika anja anke anna anne annegret anneliese annemarie annette annika anthony antoine anton antonia "
    "antonio archibald armin arnold arthur astrid auguste augustin axel barbara bartholomew bastian beate "
    "beatrice benedikt benjamin bernadette bernard bernd bernhard bertha berthold bettina bianca birgit bjorn "
    "bodo boris brigitte bruno camille carla carlos carmen carolin caroline carsten catherine cecilia charles "
    "charlotte christa christel christina christine christophe christopher clara clarissa claudia claudine claus "
    "clemens clément conrad cordula cornelia cynthia cécile dagmar daniel daniela danielle david "
    "deborah denise dennis detlef diego dieter dietmar dominik donald dora doris dorothea dorothee "
    "dorothy eberhard eckhard edgar edith edmund eduard edward edwin effi eileen eleanor elena eleonore elfriede "
    "elias elisa elisabeth elise elizabeth elke ellen elsa elsbeth emil emilia emilie emily emma emmanuel "
    "enrique erich erik erna erwin esther eugen eugene eugénie eva evelyn ewald fabian felicitas felix "
    "ferdinand fernando fiona florian francesca francis francisco franziska françois françoise frederic "
    "frederick frieda friedhelm friedrich fritz gabriel gabriele geert geoffrey georg george georges gerald "
    "gerard gerd gerda gerhard gerlinde gertrud gilbert giovanni gisela giuseppe gottfried gottlieb gregor "
    "gregory gretchen grete gudrun guido guillaume gustav gustave günter günther hanna hannah hannelore hannes "
    "hans harald harriet hartmut heike heiko heinrich heinz helen helena helene helga hellmut helmut hendrik "
    "henri henriette henry herbert heribert hermann hermine hilda hilde hildegard holger howard hubert hugo "
    "hélène ida ignatius ignaz ilona ilse inga inge ingeborg ingo ingrid irene irma isaac isabel isabella "
    "isabelle isolde ivan jacob jacqueline jacques jaime jakob james jane janet javier jean jeanne jeffrey "
    "jennifer jens jeremy jerome jessica joachim joanna jochen johann johanna johannes john jonas jonathan jorge "
    "josef josefine joseph joshua josé juan judith jules julia julian juliane julie juliette jutta jérôme jörg "
    "jürgen karen karin karl karla karoline karsten kaspar katarina katharina katherine kathleen kathrin katja "
    "katrin kenneth kerstin kirsten klara klaus klemens konrad konstantin kristina kurt lars laura laurent "
    "leonard leonhard leonie leopold leslie lieselotte lisa lothar louis louisa louise luca lucas lucia lucie "
    "lucien lucy ludwig luis luise lukas luther lydia madeleine magdalena malte manfred manuel manuela marcel "
    "marcus marek margaret margarete margarethe margot maria mariana marianne marie mario marion "
    "marlene marta martha martin martina mary mathilde matilda matteo matthew matthias matthieu maurice "
    "maximilian mechthild melanie melissa meredith michael michaela michel michelle miguel miriam mirko monica "
    "monika monique moritz nadine natalie natascha nathan nathaniel nicholas nicolas nicole nikolaus nina nora "
    "norbert olga oliver oscar oskar ottilie otto pablo pamela patricia patrick paul paula pauline pedro "
    "peter petra philip philipp philippe rachel rainer ralf ralph ramona raphael raymond rebecca regina "
    "regine reinhard reinhold renate rené renée ricardo richard robert roberta roberto rodney rodrigo roger "
    "roland rolf ronald rosalie rosemarie rosina roswitha rudolf rudolph rupert ruprecht ruth rüdiger "
    "sabine sabrina samantha samuel sandra sara sarah sebastian sergio sharon sheila siegfried sieglinde "
    "siegmund sigrid silke silvia simon simone sofia sofie sonja sophia sophie stanley stefan stefanie steffen "
    "stephan stephanie stephen steven stéphane susan susanna susanne suzanne sven svenja sybille sylvia sylvie "
    "sébastien tamara tanja teresa theodor theodora theodore therese thomas thorsten thérèse tilman tim timothy "
    "tobias tom toni tony torsten traugott ulrich ulrike ursula uwe valentin valerie vanessa vera veronica "
    "veronika victor viktor vincent virginie volker walburga waldemar walter waltraud wendelin werner "
    "wilfried wilhelm wilhelmine willi william winfried winifred wolfgang wolfram xavier yannick yves yvette "
    "yvonne zoe édouard élise émile éric étienne"
)
"""Common first names, without those that are also another word, such as "Rose", "Mark" and "August"."""

_ADDRESSES = (
    "mr mrs ms miss dr doctor prof professor sir lady lord captain capt st doktor herr herrn frau familie firma "
    "monsieur madame mme mlle señor señora"
)


_PAST = (
    "became become began begin begun begin broke break broken break brought bring built build burnt burn bought buy "
    "came come caught catch chose choose chosen choose dealt deal drank drink drawn draw drew draw driven drive drove "
    "drive eaten eat ate eat fallen fall fell fall fled flee flew fly flown fly forbade forbid forbidden forbid "
    "forgave forgive forgot forget forgotten forget fought fight froze freeze frozen freeze gave give given give gone "
    "go went go grew grow grown grow heard hear held hold hid hide hidden hide hung hang kept keep knew know known "
    "know learnt learn lent lend lost lose made make met meet paid pay ran run ridden ride rode ride sang sing sank "
    "sink sat sit sent send shaken shake shook shake shot shoot shown show slept sleep sold sell sought seek spent "
    "spend spoke speak spoken speak stole steal stolen steal stood stand struck strike sworn swear swore swear swam "
    "swim taken take took take taught teach thought think threw throw thrown throw torn tear tore tear understood "
    "understand woke wake won win wore wear worn wear written write wrote write "
    "clung cling crept creep flung fling swung swing sprang spring sprung spring stung sting wept weep swept sweep "
    "died die dying die"
)
"""Pairs of a form of an irregular English verb and the verb, without forms that are also another word ("left")."""
_IRREGULAR = dict(zip(_PAST.split()[::2], _PAST.split()[1::2], strict=True))


_PAST_AND_WORD = (
    "left leave found find saw see seen see felt feel fell fall lay lie bound bind wound wind ground grind rose rise "
    "risen rise led lead bore bear born bear bent bend dug dig lit light"
)
"""Like ``_PAST``, but forms that are also another word."""


@lru_cache(maxsize=1 << 16)
def fold_word(word: str) -> str:
    """Fold a word: remove case, accents, and short words that an apostrophe joins to it ("l’", "’s")."""
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", word.casefold()) if not unicodedata.combining(sign))
    return _ELISION.sub("", plain.replace("’", "'"))


def without_ending(word: str) -> str:
    """Return the stem of a folded word: the word without the most common endings of English, German and French.
    Different words may have the same stem, so the app's search removes fewer letters
    (``app.language.spellings.without_endings``).

    One rule serves all languages, because a word is compared without knowing its language. Snowball's stemmers, English
    for all or by the language of the book, lost one or two of the tests ("bail" and "baux").
    """
    return _ENDINGS.sub("", _PLURAL_IN_AUX.sub("al", _IRREGULAR.get(word, word)))


def past_forms(verb: str) -> str:
    """The past forms of an irregular English verb that are also other words: "left" of "leave"; "" if there are
    none.
    """
    words = _PAST_AND_WORD.split()
    return " ".join(form for form, base in zip(words[::2], words[1::2], strict=True) if base == verb)


def _number_words() -> dict[str, int]:
    """Map folded number words in English, German and French to their values."""
    english = (
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
        "seventeen eighteen nineteen twenty"
    )
    german = "zwei drei vier fünf sechs sieben acht neun zehn"
    values = {word: value for value, word in enumerate(english.split())}
    values |= {word: value for value, word in enumerate(german.split(), start=2)}
    values |= {"zwölf": 12, "dreizehn": 13, "vierzehn": 14, "fünfzehn": 15, "sechzehn": 16, "siebzehn": 17}
    values |= {"achtzehn": 18, "neunzehn": 19, "dozen": 12, "hundert": 100, "tausend": 1000}
    tens = "thirty forty fifty sixty seventy eighty ninety"
    values |= {word: 10 * value for value, word in enumerate(tens.split(), start=3)}
    german_tens = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"
    for value, ten in enumerate(german_tens.split(), start=2):
        values[ten] = 10 * value
        for unit, word in enumerate(("ein", *german.split()[:8]), start=1):
            values[f"{word}und{ten}"] = 10 * value + unit
    french = "deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize"
    values |= {word: value for value, word in enumerate(french.split(), start=2)}
    values |= {"vingt": 20, "trente": 30, "quarante": 40, "cinquante": 50, "soixante": 60, "mille": 1000}
    values |= {"hundred": 100, "thousand": 1000, "million": 1_000_000, "millions": 1_000_000, "billion": 10**9}
    ordinals = (
        "third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
        "sixteenth seventeenth eighteenth nineteenth twentieth"
    )
    values |= {word: value for value, word in enumerate(ordinals.split(), start=3)}
    return {fold_word(word): value for word, value in values.items()}


_ENGLISH = SILENT | frozenset(_EMPTY.split())
_GERMAN_FOLDED = frozenset(map(fold_word, _GERMAN.split()))
_FIRST_NAMES_FOLDED = frozenset(map(fold_word, _FIRST_NAMES.split()))
SILENT_WORDS = _ENGLISH | _GERMAN_FOLDED | frozenset(map(fold_word, _OTHERS.split()))
ENGLISH_TOO = frozenset(["bin", "die", "dies", "hat", "man", "pour", "son", "war"])
"""Stop words of other languages that say something in an English text."""
FORMS_OF_ADDRESS = frozenset(map(fold_word, _ADDRESSES.split()))
"""Folded words that stand before a name and are no part of it."""
NUMBER_WORDS = _number_words()
_MULTIPLIERS = (12, 100, 1000, 1_000_000, 10**9)


def says_nothing(word: str) -> bool:
    """Whether a word is a stop word, such as "the", "der", "les"."""
    return fold_word(word) in SILENT_WORDS


def is_first_name(word: str) -> bool:
    """Whether a folded word is a common first name, with or without the ending of a German genitive."""
    return word != "jeans" and not _FIRST_NAMES_FOLDED.isdisjoint((word, word.removesuffix("s")))


def is_german(words: Iterable[str]) -> bool:
    """Whether more of a sentence's words are common German words than common English ones. A single sentence needs the
    longer lists of stop words: ``engine.languages.language_of`` knows only the words of nearly every text.
    """
    folded = [fold_word(word) for word in words]
    return sum(word in _GERMAN_FOLDED for word in folded) > sum(word in _ENGLISH for word in folded)


def _value(raw: str) -> str:
    """The value of a number, as text: "1,912" is "1912", "04" is "4", "2,5" is "2.5", "1.234,56" is "1234.56", and
    "850,00" is "850".
    """
    if _GROUPED.fullmatch(raw):
        return re.sub(r"[.,]", "", raw)
    if mixed := _MIXED.fullmatch(raw):
        whole, part = filter(None, mixed.groups())
        raw = f"{re.sub(r'[.,]', '', whole)}.{part}"
    value = raw.replace(",", ".").lstrip("0")
    if zeros := _ONLY_ZEROS.fullmatch(value):
        value = zeros[1]
    return value or "0"


def values_in(tokens: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield the keys of the numbers in a passage, as in ``numbers_in``, and then the key of each single number word:
    "ninety-nine" gives "#99", "#90" and "#9".
    """
    for key, _, _ in numbers_in(tokens, ""):
        yield key
    for raw, _ in tokens:
        if (value := NUMBER_WORDS.get(fold_word(raw))) is not None:
            yield f"#{value}"


def numbers_in(tokens: Sequence[tuple[str, int]], text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the key ("#99"), the characters and the offset of every number. Consecutive number words form one number. A
    single "zero" or "one" is skipped, because "one" is more often a pronoun.
    """
    run: list[tuple[str, int, int]] = []  # letters, offset and value of each word

    def joined() -> Iterator[tuple[str, str, int]]:
        if run and not (len(run) == 1 and run[0][2] < 2):
            value, current = 0, 0
            for _, _, number in run:
                if number in _MULTIPLIERS and (number != 12 or current):
                    current = max(1, current) * number
                    if number >= 1000:
                        value, current = value + current, 0
                else:
                    current += number
            last, at, _ = run[-1]
            yield f"#{value + current}", text[run[0][1] : at + len(last)], run[0][1]
        run.clear()

    for raw, start in tokens:
        if raw[0].isdigit():
            yield from joined()
            yield f"#{_value(raw)}", _shown(text, start, raw), start
            continue
        value = NUMBER_WORDS.get(fold_word(raw))
        if value is not None:
            if run and start - run[-1][1] - len(run[-1][0]) > len(" and "):
                yield from joined()
            run.append((raw, start, value))
        elif run and fold_word(raw) not in ("and", "und", "et"):
            yield from joined()
    yield from joined()


def _shown(text: str, start: int, raw: str) -> str:
    """Return a number together with the currency sign or per cent sign next to it, if there is one."""
    before, after = text[max(0, start - 1) : start], text[start + len(raw) :][:1]
    signs = ("$", "€", "£", "¥", "%")
    return f"{before if before in signs else ''}{raw}{after if after in signs else ''}"
