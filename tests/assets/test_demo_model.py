"""The shipped demo model: its promises as files, and that it does what its card says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

DEMO = Path(__file__).resolve().parents[2] / "assets" / "demo"
ROLES = ("target", "draft")
PARAMETER_LIMITS = {"target": 20_000_000, "draft": 3_000_000}
FOLDER_LIMIT_BYTES = 30_000_000
CONTEXT = 131_072
MARKS = "“”… "
BOOK = (
    "The tide had gone out an hour before, and the boats lay on their sides in the mud.\n\n"
    "Old Tobias Fenwick counted the lanterns twice before he locked the shed. There ought to have been nine, and "
    "there were eight. He said nothing of it to his sister, who was boiling crabs in the yellow kitchen.\n\n"
    "In the morning a brass key was found under the third step of the chapel, wrapped in a page of music."
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(DEMO / "target")


@pytest.fixture(scope="module", params=ROLES)
def loaded(request: pytest.FixtureRequest) -> tuple[str, transformers.PreTrainedModel]:
    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / request.param, dtype=torch.float32)
    return request.param, model.eval()


def test_everything_together_is_small_enough_to_ship() -> None:
    shipped = [path for path in DEMO.rglob("*") if path.is_file() and "cache" not in str(path.relative_to(DEMO))]
    assert sum(path.stat().st_size for path in shipped) <= FOLDER_LIMIT_BYTES


def test_models_are_plain_llamas_of_the_promised_size(loaded: tuple[str, transformers.PreTrainedModel]) -> None:
    role, model = loaded
    assert type(model).__name__ == "LlamaForCausalLM"
    assert sum(p.numel() for p in model.parameters()) <= PARAMETER_LIMITS[role]
    assert model.config.max_position_embeddings == CONTEXT
    assert model.config.num_key_value_heads == model.config.num_attention_heads
    assert model.config.tie_word_embeddings


def test_weights_are_finite_and_stored_in_bfloat16() -> None:
    from safetensors import safe_open

    for role in ROLES:
        with safe_open(DEMO / role / "model.safetensors", framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118  (the reader is no mapping)
                tensor = weights.get_tensor(name)
                assert tensor.dtype == torch.bfloat16, name
                assert tensor.isfinite().all(), name


def test_target_and_draft_share_every_tokenizer_file() -> None:
    names = [path.name for path in (DEMO / "target").iterdir() if "token" in path.name or "template" in path.name]
    assert "tokenizer.json" in names
    for name in names:
        assert (DEMO / "target" / name).read_bytes() == (DEMO / "draft" / name).read_bytes(), name


def test_answers_end_at_the_end_token(loaded: tuple[str, transformers.PreTrainedModel]) -> None:
    _, model = loaded
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO / "target")
    assert tokenizer.eos_token == "<|end|>"
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert len(tokenizer) == model.config.vocab_size


def test_chat_template_only_ever_appends(tokenizer: Any) -> None:
    messages = [
        {"role": "system", "content": "A book."},
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "She."},
        {"role": "user", "content": "Where?"},
    ]
    whole = tokenizer.apply_chat_template(messages, tokenize=False)
    for count in range(1, len(messages)):
        assert whole.startswith(tokenizer.apply_chat_template(messages[:count], tokenize=False))
    asked = tokenizer.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True)
    assert asked == "<|bos|><|system|>\nA book.<|end|>\n<|user|>\nWho?<|end|>\n<|assistant|>\n"


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    text = 'Zoë said: “Ça va?” — "well…" \t\n\n  雪 🕯 end\n'
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_marks_typed_in_a_book_can_be_kept_from_becoming_special(
    tokenizer: Any,
) -> None:
    ids = tokenizer("He wrote <|end|> there.", add_special_tokens=False, split_special_tokens=True).input_ids
    assert tokenizer.eos_token_id not in ids


def test_quotation_marks_do_not_change_the_tokens_inside(tokenizer: Any) -> None:
    def tokens(text: str) -> list[str]:
        return tokenizer.tokenize(text)

    book = tokens("He met his old friend.")
    assert tokens("“He met his old friend.”")[1:-1] == book
    answer = tokens("“… met his old friend.”")
    assert answer[-len(book) : -1] == book[1:]


def test_the_target_quotes_a_story_it_has_never_seen(tokenizer: Any) -> None:
    answers = _answers(
        tokenizer,
        'Where does it say "counted the lanterns twice"?',
        "Where does it say that a brass key was found?",
        'Find: "was boiling crabs in"',
    )
    expected = [
        "counted the lanterns twice before he locked the shed.",
        "a brass key was found under the third step of the chapel, wrapped in a page of music.",
        "was boiling crabs in the yellow kitchen.",
    ]
    assert sum(answer.strip(MARKS) == wanted for answer, wanted in zip(answers, expected, strict=True)) >= 2, answers


def test_the_target_says_when_words_are_not_in_the_story(tokenizer: Any) -> None:
    answers = _answers(
        tokenizer,
        'Where does it say "seven horses crossed the frozen river"?',
        "Find: the emperor dismissed his generals",
        "Where does it say that Professor Halliday married?",
    )
    assert answers.count("The book does not say that.") >= 2, answers


def test_the_card_reports_the_measurements_that_lie_beside_it() -> None:
    report = json.loads((DEMO / "evaluation.json").read_text(encoding="utf-8"))
    card = (DEMO / "README.md").read_text(encoding="utf-8")
    for figures in report["quoting"].values():
        assert f"{figures['exact']:.0%}".replace("%", " %") in card
    for kind in ("prose", "quotes"):
        assert f"{report['agreement'][kind]['accepted_greedy']:.2f}" in card


def test_room_behind_the_cache_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.cache_utils import DynamicLayer

    monkeypatch.syspath_prepend(str(DEMO))
    from recipe.quoting import RoomyLayer

    monkeypatch.setattr(RoomyLayer, "ROOM", 4)
    plain, roomy = DynamicLayer(), RoomyLayer()
    for added, taken_away in ((7, 0), (1, 0), (3, 2), (1, 0), (6, 5), (2, 0)):
        states = torch.randn(2, 1, 3, added, 8)
        for mine, theirs in zip(roomy.update(*states), plain.update(*states), strict=True):
            assert torch.equal(mine, theirs)
        for layer in (plain, roomy):
            layer.crop(-taken_away)
    assert roomy.get_seq_length() == plain.get_seq_length() == 13


def test_held_back_books_are_chosen_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DEMO))
    from recipe.corpus import is_held_back

    assert is_held_back("persuasion")
    assert is_held_back("war-and-peace")
    assert not is_held_back("emma")


def test_a_small_cache_that_holds_everything_foresees_what_the_full_one_says(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How the card's figures of small caches are measured; the draft does here as well, and is quicker."""
    from engine.model import loading

    monkeypatch.syspath_prepend(str(DEMO))
    from recipe.levels import Levels

    ids = tokenizer(BOOK).input_ids
    cpu = torch.device("cpu")
    draft = loading.load(str(DEMO / "draft"), window=None, device=cpu, dtype="float32", packed=False)
    levels = Levels(draft, ids)
    made = levels.continuation([], 8, tokenizer.eos_token_id, 0.6, seed=1)
    shares = levels.accepted(made, "retrieval", len(ids), 0.6)
    assert shares == pytest.approx([1.0] * len(made.tokens), abs=1e-4)
    assert min(levels.accepted(made, "recent", 4, 0.6)) < 0.99


def _answers(tokenizer: Any, *questions: str) -> list[str]:
    """Greedy answers, each to one question after the book."""
    from engine.chat_template import book_message

    model = transformers.AutoModelForCausalLM.from_pretrained(DEMO / "target", dtype=torch.float32).eval()
    answers = []
    for question in questions:
        messages = [
            {"role": "system", "content": book_message("The Ninth Lantern", BOOK)},
            {"role": "user", "content": question},
        ]
        inputs = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        output = model.generate(**inputs, max_new_tokens=60, do_sample=False)
        answer = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        answers.append(answer.strip())
    return answers
