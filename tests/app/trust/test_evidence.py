"""Which passage a sentence of an answer rests on, and what is said of one that rests on nothing."""

from __future__ import annotations

import time

import pytest

from app.trust.book_words import BookWords
from app.trust.evidence import Evidence, EvidenceIndex
from engine.document import Document

PAGES = (
    "The island of Orre lies eleven miles from the mainland, and the steamer does it in under two hours. "
    "Walter Rudd was tally clerk on the wool wharf for thirty-eight years. His daughter kept the brass counter.",
    "\n\nNinety-nine steps lead up to the north light. Maren Holt kept it until 1921, and the light was never out. "
    "The Receiver was the cat of the inn; it slept on the ledger. In the winter of 1912 the",
    "harbour froze, and nobody crossed to Hull for 1,912 hours.\n\nGoods | Price | Weight\nBarley flour | 4.50 | 12\n"
    "Lamp oil | 6.25 | 40\n\nThe mail comes on Tuesdays, and what has not been called for is kept at the inn.",
)
GERMAN = (
    "Dieses Skript wurde im Wintersemester 2013/2014 von Martin Thoma geschrieben. Wer es gerne gebunden hätte, kann "
    "es für dreiundzwanzig Euro bestellen. Die Größe der Übungsblätter hat sich im Lauf der Jahre nicht geändert.",
)
FRENCH = (
    "L’île de Sein est habitée depuis l’époque néolithique. Le phare fut allumé en 1839 par les pêcheurs, qui "
    "l’avaient bâti de leurs mains. Les élèves de l’école étaient vingt.",
)


@pytest.fixture(scope="module")
def orre() -> EvidenceIndex:
    return EvidenceIndex(Document.from_pages("The Lamps of Orre", PAGES))


def marked(index: EvidenceIndex, found: Evidence) -> list[tuple[int, str]]:
    """The pages and the characters that a click marks."""
    pages = index.document.pages
    return [(part.page, pages[part.page].text[part.start : part.end]) for part in found.passages[0].parts]


@pytest.mark.parametrize(
    ("question", "sentence", "passage"),
    [
        ("How far is Orre from the mainland?", "Orre is 11 miles from the mainland.", "The island of Orre lies"),
        ("How far is Orre?", "It lies **eleven miles** from the mainland.", "The island of Orre lies"),
        ("What was Walter Rudd's job?", "He was a tally clerk.", "Walter Rudd was tally clerk"),
        ("How long did Walter Rudd work as tally clerk?", "38 years.", "Walter Rudd was tally clerk"),
        ("Who kept the north light?", "The north light was kept by Maren Holt until 1921.", "Ninety-nine steps lead"),
        ("What is the cat of the inn called?", "The cat of the inn is called Receiver.", "The Receiver was the cat"),
        ("What does lamp oil cost?", "Lamp oil costs 6.25.", "Lamp oil | 6.25 | 40"),
    ],
)
def test_the_passage_that_says_so(orre: EvidenceIndex, question: str, sentence: str, passage: str) -> None:
    found = orre.find(question, sentence)
    assert found.level == "says so"
    assert found.passages[0].text.startswith(passage)
    assert marked(orre, found)[0][1].startswith(passage)


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("Who kept the counter?", "His daughter did not keep the brass counter."),
        ("Who was tally clerk?", "Maren Rudd was tally clerk on the wool wharf for thirty-eight years."),
        ("How far is Orre?", "The island of Orre lies eleven steps from the mainland."),
        ("Where did the cat sleep?", "The Receiver was the cat of the inn; it slept on the wharf."),
    ],
)
def test_a_sentence_with_one_thing_altered_is_not_what_the_passage_says(
    orre: EvidenceIndex, question: str, sentence: str
) -> None:
    """All of these were called "says so": a word, a name, or a "not" more."""
    assert orre.find(question, sentence).level == "near"


def test_an_answer_from_the_first_pages_rests_on_no_other(orre: EvidenceIndex) -> None:
    """A page that the model had not before it was shown as what its words rest on."""
    question, sentence = "Who kept the north light?", "The north light was kept by Maren Holt until 1921."
    assert orre.find(question, sentence, pages_read=3) == orre.find(question, sentence)
    assert orre.find(question, sentence, pages_read=2).passages[0].text.startswith("Ninety-nine steps lead")
    unread = orre.find(question, sentence, pages_read=1)
    assert unread.level not in ("says so", "not found"), "it stands in the book, further on"
    assert all(part.page < 1 for passage in unread.passages for part in passage.parts)
    over = orre.find("When did the harbour freeze?", "The harbour froze in the winter of 1912.", pages_read=2)
    assert all(part.page < 2 for passage in over.passages for part in passage.parts), "nor on one that runs on"
    assert orre.find("What was she paid?", "She was paid $40,000.", pages_read=1).missing == ("$40,000",)


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("What is the captain of the steamer called?", ("captain",)),
        ("What did the new bell cost?", ("bell",)),
        ("How far is Orre from the mainland?", ()),
        ("What was Walter Rudd's job?", ()),
        ("What height is the north light?", ()),
        ("What is this document about, and who are the heroes?", ()),
        ("Put the fares into a spreadsheet.", ()),
        ("Who was mayor?", ()),
        ("Which steamer has the longest beard?", ("beard",)),
    ],
)
def test_what_a_question_asks_for_in_words_that_the_book_never_uses(
    orre: EvidenceIndex, question: str, words: tuple[str, ...]
) -> None:
    """A true sentence about the steamer was all that was said of its captain."""
    assert orre.unmentioned(question) == words


def test_a_price_needs_no_such_word_where_there_is_money(orre: EvidenceIndex) -> None:
    assert orre.unmentioned("What is the price of the counter?") == (), "its table has the word"
    for text, words in (("The machine weighs 23 kg.", ("price",)), ("The machine is 23 euros.", ())):
        index = EvidenceIndex(Document.from_text("The machine", text))
        assert index.unmentioned("What is the price of the machine?") == words
    sea = EvidenceIndex(Document.from_text("Le phare", FRENCH[0]))
    assert sea.unmentioned("Quelle est la température de l’eau ?") == ("température", "l’eau")


def test_french_plurals_in_aux_are_the_words_of_the_book() -> None:
    index = EvidenceIndex(Document.from_text("Le bail", "Le bail du château dit que le journal et le travail restent."))
    for plural in ("baux", "châteaux", "journaux", "travaux"):
        assert index.unmentioned(f"Que disent les {plural} ?") == ()


def test_numbers_are_compared_by_their_value(orre: EvidenceIndex) -> None:
    asked = "How many hours was the harbour frozen?"
    assert orre.find(asked, "The harbour was frozen for 1912 hours.").level == "says so"
    assert orre.find(asked, "The harbour was frozen for 19.12 hours.").missing == ("19.12",)
    assert orre.find("How many steps are there?", "There are 99 steps.").level == "says so"
    assert orre.find("How many steps are there?", "There are ninety-eight steps.").missing == ("ninety-eight",)


def test_a_number_after_a_letter_is_no_quantity(orre: EvidenceIndex) -> None:
    assert orre.find("Which lamps?", "The lamps x77 and y88 burn on the 12th.").missing == ()
    assert orre.find("Which boat?", "The boat was the K77 of the 88th year.").missing == ("88", "K77")


def test_a_passage_of_two_pages_is_marked_on_both(orre: EvidenceIndex) -> None:
    found = orre.find("When did the harbour freeze?", "The harbour froze in the winter of 1912.")
    assert found.level == "says so"
    assert marked(orre, found) == [
        (1, "In the winter of 1912 the"),
        (2, "harbour froze, and nobody crossed to Hull for 1,912 hours."),
    ]


def test_what_stands_nowhere_is_named(orre: EvidenceIndex) -> None:
    found = orre.find("What is the salary of the clerk?", "The salary of the clerk is $40,000 in Boston, 7%.")
    assert (found.level, found.passages) == ("not found", ())
    assert found.missing == ("$40,000", "7%", "Boston")
    assert orre.find("Where is it told?", "In The Lamps of Orre, near Hull's harbour.").missing == ()
    nobody = orre.find("Who is Zaphod?", "He is the keeper of the lighthouse.")
    assert (nobody.level, nobody.missing) == ("not found", ("Zaphod",))
    assert orre.find("What does he do?", "Harold Quint's duties include:").missing == ("Quint's",)


def test_a_name_in_the_genitive_is_the_same_name() -> None:
    words = EvidenceIndex(Document.from_text("Vertrag", "Walter Müller und Sophie Kern haben den Vertrag gelesen."))
    for sentence in ("Es ist Walters Vertrag.", "Sophies Vertrag lag da."):
        assert words.find("Wessen Vertrag ist es?", sentence).missing == ()


def test_the_right_number_of_something_else_says_nothing(orre: EvidenceIndex) -> None:
    horses = orre.find("How many horses are there on Orre?", "There are ninety-nine horses on Orre.")
    assert (horses.level, horses.missing) == ("not found", ("horses",))
    assert orre.find("When was Walter Rudd born?", "Walter Rudd was born in 1921.").level == "near"


def test_a_passage_about_somebody_else_is_no_evidence() -> None:
    between = ["The wind was in the east, and nothing else was written down on that day by anybody."] * 12
    text = ["Abel Lincoln came by the evening boat.", *between, "The old soldier wrote home that he was tired of war."]
    index = EvidenceIndex(Document.from_pages("Letters", ["\n\n".join(text)]))
    found = index.find("What did Abel Lincoln write?", "Lincoln wrote home that he was tired of war.")
    assert (found.level, found.passages, found.missing) == ("not found", (), ())
    assert index.find("What did the old soldier write?", "He wrote home that he was tired of war.").level == "says so"


@pytest.mark.parametrize(
    ("passage", "sentence", "level"),
    [
        (
            "In 1897 the light of Orre was not lit for three nights.",
            "In 1897 the light was lit for three nights.",
            "near",
        ),
        ("There was no boat on the island that winter.", "There was a boat on the island that winter.", "near"),
        ("Die Größe der Blätter hat sich nicht geändert.", "Die Größe der Blätter hat sich geändert.", "near"),
        ("The light was not lit until 1897 in the tower.", "The light in the tower was lit in 1897.", "says so"),
        ("The light was not only lit but seen from Hull.", "The light was lit and seen from Hull.", "says so"),
        ("Not lit on Monday, the light was lit on Tuesday.", "The light was lit on Tuesday.", "says so"),
        ("The tower did not burn, though its lamp did for days.", "The lamp of the tower did for days.", "says so"),
    ],
)
def test_what_a_passage_denies_it_does_not_say(passage: str, sentence: str, level: str) -> None:
    index = EvidenceIndex(Document.from_pages("The Lamps", (passage,)))
    assert index.find("What is it?", sentence).level == level


LEASE = (
    "The Landlord lets the boathouse to the Tenant. The Landlord insures the building against fire and flood, and "
    "keeps the walls in repair. The Tenant insures her tools. When the lease ends the Tenant removes her machines. "
    "The mediator is appointed by the Chamber of Kelmouth. Her fee is paid by both."
)


@pytest.mark.parametrize(
    ("sentence", "level"),
    [
        ("The Landlord insures the building against fire.", "says so"),
        ("The Tenant insures the building against fire.", "near"),
        ("The Landlord lets the boathouse to the Tenant.", "says so"),
        ("The Tenant lets the boathouse to the Landlord.", "near"),
        ("The Tenant removes her machines when the lease ends.", "says so"),
        ("The Landlord removes her machines when the lease ends.", "near"),
        ("The Chamber of Kelmouth appoints the mediator.", "says so"),
        ("The mediator appoints the Chamber of Kelmouth.", "near"),
        ("The fee of the mediator is paid by both.", "says so"),
    ],
)
def test_a_passage_does_not_say_of_one_what_it_tells_of_another(sentence: str, level: str) -> None:
    """Words alone gave every action to everybody who stood beside it: 29 of 52 such sentences were said to be there."""
    index = EvidenceIndex(Document.from_text("Lease", LEASE))
    assert index.find("Who does what?", sentence).level == level


def test_a_form_of_address_is_no_name_that_a_book_lacks() -> None:
    index = EvidenceIndex(Document.from_text("Lease", "Miriam Osei-Brandt, boatbuilder, rents the house."))
    assert index.find("What is Ms Osei-Brandt?", "Ms Osei-Brandt is a boatbuilder.").level == "says so"
    assert index.unmentioned("What is Ms Osei-Brandt?") == ()


def test_a_name_in_quotation_marks_is_a_name() -> None:
    index = EvidenceIndex(Document.from_text("Kidnapped", "David rode the horse of his uncle to the ferry."))
    found = index.find("What was the name of the horse?", 'The name of the horse was "Barnaby".')
    assert (found.level, found.missing) == ("not found", ("Barnaby",))


def test_the_kind_of_a_thing_that_is_named_need_not_stand_in_the_book() -> None:
    index = EvidenceIndex(Document.from_text("Bees", "One colony was infected with Nosema."))
    assert index.unmentioned("Which disease did one colony have?", answered=True) == ()
    assert index.unmentioned("Which disease did one colony have?") == ("disease",)
    assert index.unmentioned("Which colony had the vaccine?", answered=True) == ("vaccine",)


def test_a_summary_is_not_suspect_for_its_question(orre: EvidenceIndex) -> None:
    found = orre.find("Summarize chapter II.", "It tells of the cat and of those who wrote about harbours.")
    assert found.missing == ()
    assert orre.find("What is chapter III about?", "In III, the harbour froze in 1912.").missing == ()


def test_words_of_its_own_do_not_make_a_good_answer_suspect(orre: EvidenceIndex) -> None:
    found = orre.find("What was Walter Rudd's profession?", "Walter Rudd was a clerk on the wharf.")
    assert found.level == "says so"
    assert orre.find("How old is the north light's cat?", "It is called Receiver.").level in ("near", "says so")


@pytest.mark.parametrize(
    ("question", "sentence"),
    [
        ("Hello!", "Hello! How can I help you today?"),
        ("Thank you.", "You're welcome!"),
        ("What do you think of it?", "I think it is a fine story."),
        ("What did the bishop say?", "The book does not mention a bishop."),
        ("What did the bishop say?", "There is no information about a bishop in the text."),
        ("Was sagte der Bischof?", "Das Buch macht dazu keine Angaben."),
        ("Are there horses?", "There are no horses on Orre."),
        ("Who kept the light?", "1."),
        ("", ""),
    ],
)
def test_what_claims_nothing_gets_nothing(orre: EvidenceIndex, question: str, sentence: str) -> None:
    found = orre.find(question, sentence)
    assert (found.level, found.passages, found.claims) == ("", (), False)


def test_german() -> None:
    index = EvidenceIndex(Document.from_pages("Geometrie", GERMAN))
    assert index.find("Wer schrieb das Skript?", "Martin Thoma hat das Skript geschrieben.").level == "says so"
    assert index.find("Was kostet es gebunden?", "Gebunden kostet es 23 Euro.").level == "says so"
    assert index.find("Was hat sich geändert?", "Die Grosse der Ubungsblatter änderte sich.").passages
    assert index.find("Was kostet es?", "Es kostet 25 Euro.").missing == ("25",)
    assert index.find("Wer schrieb es?", "Die Studenten der Hochschule schrieben es.").missing == ()  # nouns, no names


LEASE_IN_GERMAN = (
    "Die Kaution von 3.600 Euro liegt auf einem Sparkonto. Haustiere sind nur mit Zustimmung der Vermieterin erlaubt. "
    "Der Hausmeister Jürgen Weißmüller übernimmt den Winterdienst. Die Wohnfläche beträgt 84,5 Quadratmeter."
)


@pytest.mark.parametrize(
    ("sentence", "missing"),
    [
        ("Der Vermieter heißt Karl Lindemann.", ("Karl", "Lindemann")),
        ("Karl Lindemann", ("Karl", "Lindemann")),
        ("Das ist Dr. Lindemann.", ("Lindemann",)),
        ("The lease names Karl Lindemann.", ("Karl", "Lindemann")),
        ("Das ist Jürgen Weißmüller.", ()),
        ("Das ist Herr Doktor Weißmüller.", ()),
        ("Hohe Gebühren sind hier üblich.", ()),
        ("Der Preis enthält fünf Liter Milch.", ("fünf",)),
        ("Nach Ihren Notizen ist es der Besitzer.", ()),
        ("Trotz Regens ist es der Besitzer.", ()),
        ("Dank Fördermitteln ist es der Besitzer.", ()),
        ("Falls Bienen kommen, ist es der Besitzer.", ()),
        ("**Key Points:**", ()),
        ("Security Deposit:", ()),
        ("**Praktische Tipps:**", ()),
        ("**Key Points**", ()),
        ("1. __Key Points__", ()),
        ("## Key Points", ()),
        ("**Es ist Karl Lindemann.**", ("Karl", "Lindemann")),
    ],
)
def test_a_name_that_a_german_book_lacks(sentence: str, missing: tuple[str, ...]) -> None:
    """Since every German noun has a capital, an invented name was called near."""
    index = EvidenceIndex(Document.from_text("Mietvertrag", LEASE_IN_GERMAN))
    assert index.find("Wer ist der Vermieter?", sentence).missing == missing


BOOKS = {
    "Buddenbrooks": "»Wenn es ein warmer Schlag ist«, sprach Tony und nickte bei jedem Wort mit dem Kopfe, "
    "»so schlägt der Blitz ein.« Herr Buddenbrook aber war böse auf diese Weisheit, er verlangte durchaus zu "
    "wissen, wer dem Kinde diese Stupidität beigebracht habe, und als sich ergab, Ida Jungmann, die kürzlich für "
    "die Kleinen engagierte Mamsell aus Marienwerder, sei es gewesen, mußte der Konsul diese Ida in Schutz "
    "nehmen.",
    "Die Verwandlung": "Als Gregor Samsa eines Morgens aus unruhigen Träumen erwachte, fand er sich in seinem "
    "Bett zu einem ungeheueren Ungeziefer verwandelt. Er lag auf seinem panzerartig harten Rücken und sah, wenn "
    "er den Kopf ein wenig hob, seinen gewölbten, braunen, von bogenförmigen Versteifungen geteilten Bauch.",
    "Effi Briest": "In Front des schon seit Kurfürst Georg Wilhelm von der Familie von Briest bewohnten "
    "Herrenhauses zu Hohen-Cremmen fiel heller Sonnenschein auf die mittagsstille Dorfstraße, während nach der "
    "Park- und Gartenseite hin ein rechtwinklig angebauter Seitenflügel einen breiten Schatten warf.",
    "Les Misérables": "Monsieur Charles-François-Bienvenu Myriel était évêque de Digne. C’était un vieillard "
    "d’environ soixante-quinze ans; il occupait le siège de Digne depuis mille huit cent six.",
    "Boletín": "La victoria del equipo fue clara, y el puerto la celebró durante dos días con música y con barcos.",
    "The Lamps of Orre": PAGES[0],
}


@pytest.mark.parametrize(
    ("book", "sentence", "missing"),
    [
        ("Buddenbrooks", "Anna Buddenbrook sprach vom Blitz.", ("Anna",)),
        ("Buddenbrooks", "Das Kind heißt Anna Buddenbrook.", ("Anna",)),
        ("Buddenbrooks", "Es waren Annas Worte.", ("Annas",)),
        ("Buddenbrooks", "Es waren Tonys Worte, und Peters.", ("Peters",)),
        ("Buddenbrooks", "Ein Schlag heißt Gewitterblitz für den Vater.", ()),
        ("Buddenbrooks", "Er trug Jeans.", ()),
        ("Buddenbrooks", "Ein Mann namens Weichbrodt sprach vom Blitz.", ("Weichbrodt",)),
        ("Buddenbrooks", "**Anna Jungmann**", ("Anna",)),
        ("Buddenbrooks", "**Mamsell: Frau Weichbrodt**", ("Weichbrodt",)),
        ("Buddenbrooks", "Name: Peter Buddenbrook", ("Peter",)),
        ("Buddenbrooks", "Name der Mamsell: Johanna Weichbrodt.", ("Johanna", "Weichbrodt")),
        ("Buddenbrooks", "Tony Weichbrodt sprach vom Blitz.", ("Weichbrodt",)),
        ("Buddenbrooks", "Die Mamsell heißt Weichbrodt.", ("Weichbrodt",)),
        ("Buddenbrooks", "Tony Buddenbrook sprach vom Blitz.", ()),
        ("Buddenbrooks", "Davon hatte Ida Kenntnis, das heißt Kinder sprachen davon.", ()),
        ("Buddenbrooks", "Der Konsul hieß Gäste willkommen.", ()),
        ("Buddenbrooks", "- **Key Points:** Ida Jungmann kam aus Marienwerder.", ()),
        ("Buddenbrooks", "Security Deposit: Es steht ein Blitz im Buch.", ()),
        ("Die Verwandlung", "Peter Samsa erwachte in seinem Bett.", ("Peter",)),
        ("Die Verwandlung", "Gregor Samsas Rücken war hart.", ()),
        ("Effi Briest", "Der Kurfürst hieß Friedrich Wilhelm.", ("Friedrich",)),
        ("Effi Briest", "Ort des Hauses: Hohen-Cremmen", ()),
        ("Les Misérables", "Marie Myriel était évêque de Digne.", ("Marie",)),
        ("Les Misérables", "**Henri Myriel**", ("Henri",)),
        ("Les Misérables", "Âge Total : soixante-quinze ans.", ()),
        ("Les Misérables", "Nom : Charles Myriel", ()),
        ("Boletín", "Clara victoria del equipo.", ()),
        ("The Lamps of Orre", "Margaret Rudd was tally clerk on the wharf.", ("Margaret",)),
        ("The Lamps of Orre", "**Working Years**: thirty-eight years on the wool wharf.", ()),
        ("The Lamps of Orre", "**Key Points**", ()),
    ],
)
def test_an_invented_first_name_is_told_from_a_label(book: str, sentence: str, missing: tuple[str, ...]) -> None:
    """A first name that begins a sentence was passed over, and so was one of a known family or in bold type in a German
    book; words of a label were called names."""
    assert EvidenceIndex(Document.from_text(book, BOOKS[book])).find("Wer war es?", sentence).missing == missing


def test_a_german_noun_of_which_the_book_has_a_part() -> None:
    """ "Wohnung" was not found beside "Wohnfläche"."""
    index = EvidenceIndex(Document.from_text("Mietvertrag", LEASE_IN_GERMAN))
    assert index.unmentioned("Wie groß ist die Wohnung?") == ()
    assert index.unmentioned("Wie teuer ist die Zahlung?") == ("Zahlung",)
    assert index.find("Wie groß ist die Wohnung?", "Die Wohnfläche ist 84,5 m² groß.").level == "near"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("1.234,56", "1234,56"),
        ("1.234,56", "1.234,56"),
        ("1.234,56", "1,234.56"),
        ("1.234,56", "1234.56"),
        ("1.200", "1.200,00"),
        ("1.200,00", "1200"),
        ("850", "850.00"),
        ("850,00", "850"),
        ("0,00", "0"),
    ],
)
def test_a_number_with_thousands_and_decimals_is_one_however_it_is_written(written: str, said: str) -> None:
    """ "1234,56" was not found where the book says "1.234,56", nor "850" where it says "850,00"."""
    index = EvidenceIndex(Document.from_pages("Miete", [f"Die monatliche Miete beträgt {written} Euro, ist fällig."]))
    assert index.find("Wie hoch ist die Miete?", f"Die Miete beträgt {said} Euro.").level == "says so"
    assert index.find("Wie hoch ist die Miete?", "Die Miete beträgt 1.234,50 Euro.").missing == ("1.234,50",)


def test_french() -> None:
    index = EvidenceIndex(Document.from_pages("Sein", FRENCH))
    assert index.find("Quand le phare fut-il allumé ?", "Le phare a été allumé en 1839.").level == "says so"
    assert index.find("Combien d'élèves ?", "Il y avait 20 élèves à l'école.").level == "says so"


def test_attention_decides_between_equals() -> None:
    index = EvidenceIndex(Document.from_pages("Twice", ["The bell rang at noon in the old tower."] * 3))
    asked = ("When did the bell ring?", "The bell rang at noon.")
    assert index.find(*asked).passages[0].parts[0].page == 0
    assert index.find(*asked, favour=(0.1, 0.1, 0.8)).passages[0].parts[0].page == 2


def test_a_book_without_words() -> None:
    for pages in ([], [""], ["\n\n", "* * *"]):
        found = EvidenceIndex(Document.from_pages("", pages)).find("Who?", "Nobody knows the way.")
        assert (found.level, found.passages) == ("", ())


@pytest.mark.parametrize("mark", ["\n", "A* ", '"A ', "it ", "1. ", "is no ", "nine ", "字"])
def test_no_text_takes_long(orre: EvidenceIndex, mark: str) -> None:
    text = (mark * 20_000)[:20_000]
    began = time.process_time()
    orre.find(text, text)
    assert time.process_time() - began < 2.0


def test_pages_are_ranked_by_what_they_promise() -> None:
    pages = ["The mill stood by the river.", "Marta sold a goose to Jonas.", "Jonas ate his bread. A goose flew by."]
    scores = BookWords(Document.from_pages("The Mill", pages)).page_scores("Who sold the goose to Jonas?")
    assert scores[1] > scores[2]
    assert scores[1] > scores[0], "next to a passage counts less"


def test_a_thing_of_somebody_else_is_no_evidence() -> None:
    """Every word of such an answer stands somewhere in a long book: "Balfour" was taken for the name of a horse."""
    between = ["The wind was in the east, and nothing else was written down on that day by anybody."] * 12
    text = ["“They call me David Balfour,” said the boy at the door of the great house.", *between]
    index = EvidenceIndex(
        Document.from_text("Kidnapped", "\n\n".join([*text, "The carter cried, and a horse started."]))
    )
    horse = 'The name of David\'s horse was "Balfour".'
    assert index.find("What was the name of David's horse?", horse).level == "not found"
    assert index.find("How many horses did David Balfour have?", "David Balfour had two.").level == "not found"
    door = index.find("Where was David's house?", "David Balfour was at the door of the great house.")
    assert door.level == "says so"


def test_a_passage_with_a_year_need_not_say_that_it_is_one() -> None:
    """ "1912" was only near, since the passage has no "year", which the book has elsewhere."""
    built = "The ferry to the island was built in 1912 by two brothers, who had lost their boats to the ice."
    light = ["The lighthouse was white, and it stood where the road ended."] * 6
    text = [built, *light, "She waited a year, and the ferry was sold."]
    index = EvidenceIndex(Document.from_text("Ferry", "\n\n".join(text)))
    assert index.find("In which year was the ferry built?", "1912").level == "says so"
    assert index.find("In which year was the ferry sold?", "1912").level == "near"
    assert index.find("In which year was the lighthouse built?", "1912").level == "near"
    rent = [
        "The rent is 1,450 pounds a month.",
        *light,
        "The rent for a year is paid in May.",
        *light,
        "The rent is high.",
    ]
    index = EvidenceIndex(Document.from_text("Lease", "\n\n".join(rent)))
    assert index.find("What is the rent per year?", "1,450 pounds.").level == "near"


def test_a_passage_with_the_rest_of_the_question_need_not_name_its_subject() -> None:
    """ "Thirty-one years." was not found, since the Warden is "he" for more than eight passages."""
    between = ["The wind was in the east, and nothing else was written down on that day by anybody."] * 12
    said = "I asked him how many years he had played draughts with the lighthouse.\n\n“Thirty-one,” said Josse Pell."
    light = ["The lighthouse was white, and it stood where the road ended."] * 12
    text = [*["The Warden was in his bed, and his leg was broken."] * 6, *between, said, *between, *light]
    index = EvidenceIndex(Document.from_text("Orre", "\n\n".join(text)))
    asked = "How many years has the Warden played draughts with the lighthouse?"
    found = index.find(asked, "Thirty-one years.")
    assert found.level == "near"
    assert found.passages[0].text.startswith("“Thirty-one,”")
    assert index.find("How many years has the Warden been in the east?", "Josse Pell.").level == "not found"


@pytest.mark.parametrize(
    "unit", ["dollars", "euros", "pounds", "months", "weeks", "kilometers", "metres", "feet", "hours"]
)
def test_a_unit_is_no_thing_that_the_passage_must_mention(unit: str) -> None:
    """ "It cost $500." was not found if only another chapter had the word "dollars"."""
    between = ["The wind was in the east, and nothing else was written down on that day by anybody."] * 12
    text = ["The boat was bought of the old smith for 500.", *between, f"The carter had two {unit} left."]
    index = EvidenceIndex(Document.from_text("The boat", "\n\n".join(text)))
    assert index.find(f"How many {unit} did the boat cost?", "It cost 500.").level == "near"


BARBER = (
    "Auf dem langen Hügel steht das Schloss der Stadt, und daneben die alte und berühmte Universität. "
    "The barber on his rounds wore a beautiful white wig, and he asked David shrewdly what his business was. "
    "The city of Edinburgh has a castle and an old university, both of them on a long ridge. "
    "Der Barbier trug an jenem Tag seine schöne weiße Perücke und fragte ihn nach allem."
)


@pytest.mark.parametrize(
    ("question", "sentence", "level"),
    [
        ("Which university did the barber attend?", "The barber attended a university.", "not found"),
        ("Welche Universität besuchte der Barbier?", "Der Barbier besuchte eine Universität.", "not found"),
        ("Did the barber attend a university?", "The barber attended a university.", "near"),
        ("Was the university attended by the barber?", "The barber attended a university.", "near"),
        ("Which did the barber attend, a school or a university?", "The barber attended a university.", "near"),
        ("Which university did the barber attend?", "**The barber attended this university:**", "near"),
        ("Which university did the barber attend?", "**The University of the Barber**", "near"),
        ("Which university did the barber attend?", "## The University of the Barber", "near"),
        ("Which universities did the barber attend?", "The barber attended one university.", "near"),
        ("How many universities did the barber attend?", "The barber attended a university.", "near"),
        ("Wie viele Universitäten besuchte der Barbier?", "Der Barbier besuchte eine Universität.", "near"),
        ("Which universities did the barber attend?", "The barber attended no university.", "near"),
        ("Who attended the barber?", "Nobody attended the barber.", "near"),
        ("Which of David and the barber attended a university?", "The barber attended a university.", "near"),
        ("When the barber came, was David in Edinburgh?", "Yes, David was in Edinburgh.", "near"),
        ("Where is Edinburgh and did David attend a university?", "David attended a university.", "near"),
        ("Which university did the barber attend in peace and war?", "The barber attended a university.", "not found"),
        ("Who wore a white wig on his rounds?", "He wore a white wig on his rounds.", ""),
    ],
)
def test_an_answer_that_only_repeats_its_question_needs_a_passage(question: str, sentence: str, level: str) -> None:
    """Such an answer was near, whatever it was asked for. What the book states is no answer, but true."""
    assert EvidenceIndex(Document.from_text("Kidnapped", BARBER)).find(question, sentence).level == level


RULES = (
    "Dogs and cats are allowed in the garden. Swimming is allowed from the jetty, but diving is not. Nets are "
    "prohibited. Subletting is permitted with the consent of the landlord. Smoking is not permitted indoors. Bear "
    "spray is recommended, not required. Spray painting is forbidden in the loft. A deposit of 40 dollars is required."
)


@pytest.mark.parametrize(
    ("question", "sentence", "level"),
    [
        ("Which lease allows dogs?", "The lease allows dogs.", "says so"),
        ("Are dogs allowed?", "Yes, the lease allows dogs in the garden.", "says so"),
        ("Is smoking permitted?", "The rules do not permit smoking indoors.", "says so"),
        ("Is a deposit required?", "The contract requires a deposit of 40 dollars.", "says so"),
        ("Which lease allows smoking?", "The lease allows smoking.", "not found"),
        ("Are nets allowed?", "The rules allow nets.", "near"),
        ("Is diving allowed?", "The rules allow diving from the jetty.", "near"),
        ("Is diving allowed?", "Diving is allowed from the jetty.", "near"),
        ("Is spray painting allowed?", "Spray painting is allowed in the loft.", "near"),
        ("Is subletting permitted?", "The lease does not permit subletting.", "near"),
        ("Is bear spray required?", "The rules require bear spray.", "near"),
    ],
)
def test_what_a_document_allows_is_stated_where_it_is_allowed(question: str, sentence: str, level: str) -> None:
    """A sentence that says so of the lease was red, because no passage names the lease. What a passage forbids was
    stated if its next sentence allows something else.
    """
    assert EvidenceIndex(Document.from_text("Rules", RULES)).find(question, sentence).level == level


@pytest.mark.parametrize(
    ("text", "sentence", "level"),
    [
        ("The law requires a permit for nets.", "The law requires a permit for nets.", "says so"),
        ("We recommend a lower tax on bread.", "The report recommends a lower tax on bread.", "says so"),
        ("The lease allows dogs, cats and birds.", "The lease allows dogs, cats and birds.", "says so"),
        ("The lease allows dogs. It requires a deposit.", "The lease allows dogs and requires a deposit.", "says so"),
        ("The lease forbids dogs and allows cats.", "The lease allows dogs.", "near"),
        ("Permits for nets are required.", "The rules permit nets.", "near"),
        ("All animals except dogs are allowed.", "The lease allows dogs.", "near"),
        ("Dogs are allowed only with a written consent.", "The lease allows dogs.", "near"),
        ("Dogs are allowed in all rooms outside the kitchen.", "The lease allows dogs in the kitchen.", "near"),
        ("Dogs are not only allowed but welcome.", "The lease does not allow dogs.", "near"),
        ("Dogs were allowed until 2010.", "The lease allows dogs.", "near"),
    ],
)
def test_what_a_document_allows_is_stated_in_its_own_words_and_without_a_limit(
    text: str, sentence: str, level: str
) -> None:
    """A passage in the same words as the sentence was only near, and one with an exception stated what it excepts."""
    assert EvidenceIndex(Document.from_text("Rules", text)).find("What of it?", sentence).level == level


def test_a_title_of_one_of_several_documents_belongs_to_each_of_its_passages() -> None:
    """The answer names the document, whose passage says "the premises"."""
    apart = " The Tenant repairs the doors.\n\nThe Landlord insures it.\n\n" * 9
    leases = [
        Document.from_text(
            f"Lease of the {place}", f"Lease of the {place}\n\n{apart}\n\n{dog}\n\nThe rent is {rent} pounds."
        )
        for place, dog, rent in (
            ("Boathouse at Tarn Quay", "The Tenant may keep one dog on the premises.", "1,450"),
            ("Net Loft", "No animals may be kept on the premises.", "980"),
        )
    ]
    index = EvidenceIndex(Document.together(leases))
    question = "Which of the leases has the higher rent, and may a dog be kept?"
    rent = index.find(question, "The rent of the Boathouse at Tarn Quay is 1,450 pounds.")
    assert (rent.level, [passage.text for passage in rent.passages]) == ("says so", ["The rent is 1,450 pounds."])
    swapped = index.find(question, "The rent of the Net Loft is 1,450 pounds.")
    assert swapped.level != "says so"
    dog = index.find("Which of the leases allow a dog?", "The lease of the Boathouse at Tarn Quay allows a dog.")
    assert dog.level == "near"
    assert dog.passages[0].text == "The Tenant may keep one dog on the premises."
    compared = "The rent of the boathouse is 1,450 pounds, while the rent of the net loft is 980 pounds."
    clauses = [compared[start:end] for start, end in index.clauses(compared)]
    assert clauses == ["The rent of the boathouse is 1,450 pounds, ", "while the rent of the net loft is 980 pounds."]
    assert [index.find(question, clause).level for clause in clauses] == ["says so", "says so"]
    for whole in (
        "The rent of the boathouse is 1,450 pounds, and the dog may stay.",
        "It is 1,450 pounds, but 980 later.",
    ):
        assert index.clauses(whole) == [(0, len(whole))]


TENANCY = """Assured Shorthold Tenancy

Rent
The Tenant shall pay a rent of1,485pounds a month to Margaret Doyle, and 90 for the boat.

Term
The term begins on 1 March 2024. The Landlord repairs the roof.
"""


@pytest.fixture(scope="module")
def tenancy() -> EvidenceIndex:
    return EvidenceIndex(Document.from_text("Tenancy", TENANCY))


@pytest.mark.parametrize(
    "sentence",
    [
        "Certainly!",
        "Absolutely! Let's go through the clauses.",
        "Sure thing!",
        "Selbstverständlich!",
        "Bien sûr !",
        "I hope this helps!",
        "Hope that helps.",
        "Would you like a table of the dates",
        "Soll ich die Fristen auflisten",
    ],
)
def test_what_is_said_around_an_answer_gets_no_mark(tenancy: EvidenceIndex, sentence: str) -> None:
    """Such a sentence was not found in the book, with "Certainly" as a missing name."""
    found = tenancy.find("Explain every clause.", sentence)
    assert (found.level, found.claims, found.missing) == ("", False, ())


@pytest.mark.parametrize(
    ("question", "sentence", "level", "missing"),
    [
        ("Wer bekommt die Miete?", "Die Miete von 1.485 Pfund bekommt Margaret Doyle.", "near", ()),
        ("Wann beginnt die Laufzeit?", "Die Laufzeit beginnt am 1. März 2024.", "near", ()),
        ("Wann beginnt die Laufzeit?", "Die Laufzeit beginnt am 1. März 1999.", "not found", ("1999",)),
        ("Wer repariert das Dach?", "Der Vermieter repariert das Dach.", "", ()),
        ("Wer repariert das Dach?", "Karl Lindemann repariert das Dach.", "not found", ("Karl", "Lindemann")),
        ("Qui répare le toit ?", "Le bailleur répare le toit et les murs.", "", ()),
    ],
)
def test_in_another_language_only_names_and_numbers_are_compared(
    tenancy: EvidenceIndex, question: str, sentence: str, level: str, missing: tuple[str, ...]
) -> None:
    """Every German answer about an English text was not found."""
    found = tenancy.find(question, sentence)
    assert (found.level, found.missing) == (level, missing)
    assert tenancy.unmentioned(question) == ()


@pytest.mark.parametrize(
    "question",
    [
        "What is the monthly rent in the lease?",
        "What does the contract call the person who pays the rent?",
        "What percentage of the rent is due, in the format YYYY?",
        "Which paragraph is about the roof?",
    ],
)
def test_a_word_for_the_text_or_for_the_answers_form_is_no_thing_of_the_book(
    tenancy: EvidenceIndex, question: str
) -> None:
    assert tenancy.unmentioned(question) == ()
    assert tenancy.unmentioned("Who feeds the horse in the lease?") == ("horse",)


def test_a_number_that_touches_a_word_in_a_scan_is_found(tenancy: EvidenceIndex) -> None:
    assert tenancy.find("What is the rent?", "The rent is 1,485 pounds a month.").level == "says so"
    assert tenancy.find("What is the rent?", "The rent is 1,585 pounds a month.").missing == ("1,585",)


REPORT = """The survey of 1,500 adults ran from October 2015 to November 2015. The poverty rate was 23.6% in 2014, less
than a peak of 26.5% in 2010. The purchasing power of the north was $1.3 trillion in 2014, higher than that of the south
($1.1 trillion) and the west ($770 billion). The institute is among the top 20 of the world and the top 3 in Asia.

The tenant pays £1,485 a month. Pupils may only swim with a teacher. No dogs are allowed in the hall. The garden has a
pond.

It spread in the parish of Barn, and in Oxley; so that in the second week the parish of Barn buried 886, and Oxley 155.

Programme | Full time | Part time
Psychology | 2 - 3 years | 4 - 5 years
Counselling | 1 - 2 years | 2 - 4 years

Weekly bill from the 12th to the 19th of September

St Giles, Cripplegate: 456
St Giles-in-the-Fields: 140
Clarkenwell: 77

Income of the funds in millions
Fund        2018    2017
Northern    108.9   97.3
Southern    55.1    61.4

Payslip of Ada Quill
Month: March

Gross pay | 2900.00
Income tax | 702.35

Day | Text | Amount | Balance
05.03. | Rent of the boathouse | -480.00 | 2,818.40
11.03. | Bread | -4.20 | 2,814.20

Every summer MarenHolt met WalterRudd inWesthaven.
"""


@pytest.mark.parametrize(
    ("question", "sentence", "level"),
    [
        ("What was the poverty rate in 2014?", "The poverty rate was 23.6% in 2014.", "says so"),
        ("What was the poverty rate in 2014?", "The poverty rate was 26.5% in 2014.", "near"),
        (
            "What is the purchasing power of the south?",
            "The purchasing power of the south was $1.1 trillion.",
            "says so",
        ),
        ("What is the purchasing power of the west?", "The purchasing power of the west was $1.1 trillion.", "near"),
        ("What is the purchasing power of the west?", "The purchasing power of the west was $1.3 trillion.", "near"),
        ("What is the institute among?", "The institute is among the top 3 in Asia.", "says so"),
        ("What is the institute among?", "The institute is among the top 20 in Asia.", "near"),
        ("How many did Barn bury?", "In the second week the parish of Barn buried 886.", "says so"),
        ("How many did Oxley bury?", "In the second week the parish of Oxley buried 886.", "near"),
        ("What does the tenant pay?", "The tenant pays £1,485 a month.", "says so"),
        ("What does the tenant pay?", "The tenant pays £1,485 a year.", "near"),
        ("What does the tenant pay?", "The tenant pays $1,485 a month.", "near"),
        ("May pupils swim?", "Pupils may only swim with a teacher.", "says so"),
        ("What has a pond?", "Only the garden has a pond.", "near"),
        ("How long is Psychology full time?", "Psychology takes 2 - 3 years full time.", "says so"),
        ("How long is Psychology full time?", "Psychology takes 4 - 5 years full time.", "near"),
        ("How long is Psychology part time?", "Psychology takes 2 - 5 years part time.", "near"),
        ("How long is Counselling part time?", "Counselling takes 2 - 4 years part time.", "says so"),
        ("How long is Psychology part time?", "Psychology takes 2 - 4 years part time.", "near"),
        ("What of St Giles?", "140 people were buried in St Giles-in-the-Fields.", "says so"),
        ("What of St Giles?", "456 people were buried in St Giles-in-the-Fields.", "near"),
        ("What of St Giles?", "From the 12th to the 19th of September, St Giles-in-the-Fields buried 140.", "says so"),
        ("What of St Giles?", "From the 12th to the 19th of October, St Giles-in-the-Fields buried 140.", "near"),
        ("How did the funds do?", "The northern fund had 108.9 million in 2018.", "says so"),
        ("How did the funds do?", "The northern fund had 108.9 million in 2017.", "near"),
        ("How did the funds do?", "The northern fund had 55.1 million in 2018.", "near"),
        ("How did the funds do?", "The northern fund had 108.9 million.", "near"),
        ("What was the tax?", "The income tax for March was 702.35.", "says so"),
        ("What was the tax?", "The income tax for March was 2900.00.", "near"),
        ("What of the rent?", "The rent of the boathouse was 480.00, paid on 05.03.", "says so"),
        ("What of the rent?", "The rent of the boathouse was 2,818.40, paid on 05.03.", "near"),
        ("What was left?", "After the bread the balance was 2,814.20.", "says so"),
        ("What was left?", "After the bread the balance was 2,818.40.", "near"),
        ("Whom did Maren meet?", "Maren Holt met Walter Rudd in Westhaven.", "says so"),
        ("Are there dogs?", "There are no dogs.", "says so"),
        ("Is there a pond?", "There is no pond.", "near"),
        ("Is there a gym?", "There is no gym.", ""),
    ],
)
def test_a_number_belongs_to_its_unit_its_words_and_its_column(question: str, sentence: str, level: str) -> None:
    """Another year's share, the figure of the next column and another period were *says so*."""
    found = EvidenceIndex(Document.from_text("Report", REPORT)).find(question, sentence)
    assert found.level == level
    assert found.missing == (("gym",) if "gym" in sentence else ())


def test_a_sentence_to_check_comes_with_what_the_passage_lacks() -> None:
    found = EvidenceIndex(Document.from_text("Report", REPORT)).find(
        "What does the tenant pay?", "The tenant pays £1,485 a month by standing order."
    )
    assert (found.level, found.lacks) == ("near", ("standing", "order"))


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Why was the survey cancelled?", ("cancelled",)),
        ("When did the tenant sell the garden?", ("sell",)),
        ("When was the fund buried?", ("buried",)),
        ("Why does the tenant pay £1,485?", ()),
        ("When was the poverty rate 23.6%?", ()),
        ("Was the survey cancelled?", ()),
        ("Warum wurde die Umfrage abgebrochen?", ()),
    ],
)
def test_what_a_question_assumes_is_looked_up_too(question: str, words: tuple[str, ...]) -> None:
    """ "Why was it cancelled?" was answered with a reason for something else, and nothing was said of the premise. Of a
    thing of the question and a rarer word that stands elsewhere, the thing was said to be missing.
    """
    found = EvidenceIndex(Document.from_text("Report", REPORT)).premise(question)
    assert (found[0].words if found else ()) == words


def test_a_word_of_an_english_text_is_heard_though_it_is_a_german_article() -> None:
    """ "How did Ada die?" was looked up as "Ada", and "Why did the war end?" as "end"."""
    words = BookWords(Document.from_text("War", "The war ended in May, and Ada died in June with her son. " * 3))
    assert [term.key for term in words.terms("Why did the war end, and how did the man's son die?")] == [
        "war",
        "end",
        "man",
        "son",
        "die",
    ]
    assert "die" in words.keys_of(0)
    assert "die" not in [term.key for term in words.terms("Wann hat die Kälte begonnen?")]
    german = BookWords(Document.from_text("Der Krieg", "Der Krieg und die Kälte waren lang, und man fror sehr. " * 5))
    assert [term.key for term in german.terms("Wie lange war die Kälte?")] == ["lang", "kalt"]


LODGER = """The Lodger

by Ada Quill

Mr. Sleuth did not take his money with him when he went out, but left it in a drawer. The bank had closed early. I
counted the smoking chimneys above the harbour. Mr. Holt clung to the door until noon. Daisy was listening to what Holt
was saying. He was telling her about his real home, of the place where his mother lived, at Richmond, close to the park.

The gull sat on the roof. They sang together. The street was wet. The lamps burned. A cart went by. The clock struck
nine. The kettle sang. The fire was low. The cat slept. I was no Daisy Holt. The
numbers of the houses are painted white.
"""


@pytest.mark.parametrize(
    ("question", "words", "nearest"),
    [
        ("Why did Mr. Sleuth take the money when he went out?", ("take",), "did not take his money"),
        ("Why did Mr. Sleuth leave the money in a drawer?", (), ""),
        ("Why did Mr. Holt cling to the door?", (), ""),
        ("When did the bank burn down?", ("burn", "down"), "The bank had closed"),
        ("Why did the bank close early?", (), ""),
        ("How did Daisy Holt die?", (), ""),
    ],
)
def test_a_premise_is_denied_or_has_its_nearest_passage(question: str, words: tuple[str, ...], nearest: str) -> None:
    """A passage with "not" passed for the premise, and "clung" or "left" not for "cling" or "leave"."""
    found = EvidenceIndex(Document.from_text("Text", LODGER)).premise(question)
    assert (found[0].words if found else ()) == words
    assert nearest in (found[1].text if found and found[1] else "")


@pytest.mark.parametrize(
    ("question", "sentence", "level"),
    [
        ("Where does Daisy's mother live?", "Daisy's mother lives at Richmond.", "near"),
        ("Where does Holt's mother live?", "Holt's mother lives at Richmond.", "says so"),
        ("What did Quill count?", "Quill counted the smoking chimneys above the harbour.", "says so"),
        ("What did Mr. Holt do?", "Mr. Holt clung to the door together until noon.", "says so"),
        ("What is painted?", "The number of each house is painted white.", "says so"),
    ],
)
def test_a_mother_is_the_one_of_whom_was_named_last(question: str, sentence: str, level: str) -> None:
    """ "His mother" was anybody's; the author's line above a text, and "number" for "numbers", were not known. A word
    such as "together" that a passage lacks made a sentence doubtful."""
    assert EvidenceIndex(Document.from_text("Text", LODGER)).find(question, sentence).level == level


OFFICES = """The Department of Health was founded in 1950 by Ada Quill and has its seat in Orre. The building has nine
floors and a library. Nobody lives there. The cellar is full of files.

Science is taught at the school of Westhaven, which Ada Holt built. Its pupils come from nine villages. The school keeps
hens. The yard is large. A bell rings at noon.

Tom Quill sold the boathouse and wrote a letter to the mayor. The lease has no date.
"""


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Who founded the Department of Science for Health?", ("Department of Science for Health",)),
        ("Who founded the Department of Health?", ()),
        ("What did Tom Holt sell?", ("Tom Holt",)),
        ("What did Ada Quill found?", ()),
        ("Is a dog or cat allowed?", ("dog", "cat")),
        ("Does the lease mention parking or storage?", ("parking", "storage")),
    ],
)
def test_a_neighbour_of_a_name_and_both_of_two_things_are_named(question: str, words: tuple[str, ...]) -> None:
    """Only the first thing of "a dog or cat" was; an office with two others' words was taken for one of the book."""
    assert EvidenceIndex(Document.from_text("Offices", OFFICES)).unmentioned(question) == words


@pytest.mark.parametrize(
    ("sentence", "level"),
    [
        ("The Department of Health was founded in 1950 by Ada Quill.", "says so"),
        ("The Department of Science for Health was founded in 1950 by Ada Quill.", "near"),
        ("Tom Quill has sold the boathouse.", "says so"),
        ("Tom Quill did sell the boathouse and write a letter to the mayor.", "says so"),
    ],
)
def test_a_passage_has_the_whole_name_and_any_form_of_a_verb(sentence: str, level: str) -> None:
    index = EvidenceIndex(Document.from_text("Offices", OFFICES))
    assert index.find("", sentence).level == level


MANUAL = """\
The control ranges from 1 (warmest) to 5 (coldest). He owned two farms, and about thirty cows.

When you plug in the fridge for the first time:
1. Set the fridge control to 3.
2. Set the freezer control to B.

My mother was named Harriet Bailey. She was the daughter of Isaac and Betsey Bailey.

It was the butcher again, who said he had cut his hand over the scraper. I called at Farmer's, the ironmonger, and gave
him the job of moving the scraper.

Our code is called DressWell. The office will keep records for five years. The use of codes in the records is
prohibited. It is said that the piper was blind, but he was not blind.

The collection was sent to Professor Baird of the Museum.

• The degree in Law is joined with Yale • The degree in Art takes a year

I sold some of my books to raise a little money. My friend Collins agreed with the captain for my passage.

Colonel Reeve, head of the mission, and Captain Pardo, who commanded the trawler, were thanked. I purchased the brig
from Colonel Reeve, and arranged for Mackintosh to go to Sydney and take charge of her.

The kitchen came first, in which slept the cook, Sing Sing; then the cottage, in which lived the superintendent, Old
Bates. The stables were behind. They stood half a mile from the creek. Of carriages there were two “buggies”, one for
two and one for four sitters. We offered the mission, and the authorities desired that it should go on.

“Tony's no fool,” remarked Lettice. “He's no fool, Horace,” she said again.
"""


@pytest.mark.parametrize(
    ("question", "sentence", "supported"),
    [
        ("Which is coldest?", "The control ranges from 1 (warmest) to 5 (coldest).", True),
        ("Which is coldest?", "The control ranges from 1 (coldest) to 5 (warmest).", False),
        ("How many cows did he own?", "He owned two farms and about thirty cows.", True),
        ("How many cows did he own?", "He owned thirty farms and about two cows.", False),
        ("What are the controls set to?", "Set the fridge control to 3 and the freezer control to B.", True),
        ("What are the controls set to?", "Set the fridge control to B and the freezer control to 3.", False),
        ("Who was Douglass's mother?", "Frederick Douglass's mother was named Harriet Bailey.", True),
        ("Who was Douglass's mother?", "Harriet Bailey was the daughter of Isaac and Betsey Bailey.", True),
        ("Who was Douglass's mother?", "Betsey Bailey was the daughter of Isaac and Harriet Bailey.", False),
        ("What did the butcher cut?", "The butcher said that he had cut his hand over the scraper.", True),
        ("What did the butcher cut?", "The ironmonger said that he had cut his hand over the scraper.", False),
        ("What is the code called?", "The code is called DressWell.", True),
        ("What is the code called?", "The code is called WorkWell.", False),
        ("How long are records kept?", "The office will keep records for one year.", False),
        ("May codes be used in the records?", "The use of codes in the records is allowed.", False),
        ("Was the piper blind?", "The piper was blind.", False),
        ("Where was the collection sent?", "He sent the collection to Professor Baird of the Museum.", True),
        ("Which degree is joined with Yale?", "The degree in Law is joined with Yale.", True),
        ("Which degree is joined with Yale?", "The degree in Art is joined with Yale.", False),
        ("What did Douglass sell?", "Douglass sold some of his books to raise a little money.", True),
        ("What did Collins sell?", "Collins sold some of his books to raise a little money.", False),
        ("Who commanded the trawler?", "Captain Pardo commanded the trawler.", True),
        ("Who commanded the trawler?", "Colonel Reeve commanded the trawler.", False),
        ("Who goes to Sydney?", "Mackintosh was to go to Sydney and take charge of the brig.", True),
        ("Who goes to Sydney?", "Colonel Reeve was to go to Sydney and take charge of the brig.", False),
        ("Who was the cook?", "Sing Sing was the cook.", True),
        ("Who was the cook?", "Old Bates was the cook, who lived in the cottage.", False),
        ("Where are the stables?", "The stables stood half a mile from the creek.", True),
        ("How many buggies are there?", "There were two buggies, one for two and one for four sitters.", True),
        ("How many buggies are there?", "There were four buggies, one for two and one for four sitters.", False),
        ("What did they desire?", "The authorities desired that the mission should be given up.", False),
        ("What was said of Tony?", "Lettice said that Tony was no fool.", True),
        ("What was said of Tony?", "Horace said that Tony was no fool.", False),
        ("Who is her father?", "Harriet Bailey was the daughter of Jacob and Betsey Bailey.", False),
    ],
)
def test_a_sentence_is_supported_part_by_part(question: str, sentence: str, supported: bool) -> None:
    """Words in each other's places were *says so*, and a sentence about the person who tells the text was near. What
    the book tells of "me" was *says so* of whomever the question named.
    """
    found = EvidenceIndex(Document.from_text("Life of Frederick Douglass", MANUAL)).find(question, sentence)
    assert (found.level == "says so") == supported
