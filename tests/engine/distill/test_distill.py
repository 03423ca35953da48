"""From books to a draft that a session takes, with tiny models: exact, repeatable, and refused where it is wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.bench.workloads import is_held_back
from engine.config import EngineConfig, SamplingParams
from engine.distill import books_in, corpus, main, training
from engine.document import Document
from engine.errors import ModelError, OptionError, TrifoldError, UnsupportedModel, VocabularyMismatch
from engine.events import AnswerDone
from engine.kv.streaming import StreamingCache
from engine.model import distilled, loading
from engine.model.architectures import DRAFT_HEAD
from engine.prompt import BookTokenizer, Question
from engine.session import Session
from tests.engine.conftest import TEXT, VOCABULARY, build_tokenizer

CPU = torch.device("cpu")
HEAD_TOKENS = 96
TOKENS = 40


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and short rows."""
    for module in (corpus, training):
        monkeypatch.setattr(module, "ROWS", 4)
    monkeypatch.setattr(corpus, "PROMPT_TOKENS", 64)
    monkeypatch.setattr(corpus, "WRITTEN_TOKENS", 24)
    monkeypatch.setattr(training, "BATCH_ROWS", 2)
    monkeypatch.setattr(training, "LOG_EVERY", 1)


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("books")
    for name in ("one", "two"):
        (folder / f"{name}.txt").write_text(TEXT * 8, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def draft_of(tiny: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """``draft_of(kind, layers)`` -> a target whose weights bfloat16 holds, and a draft that is as it begins."""

    def make(kind: str, kept: int, head_tokens: int = HEAD_TOKENS) -> tuple[str, str]:
        folder = tmp_path_factory.mktemp(kind)
        model = loading.load(tiny(kind), window=None, device=CPU, packed=False).model
        model.bfloat16().float().save_pretrained(folder / "target")
        build_tokenizer(folder / "target")
        ids = torch.arange(0, VOCABULARY, VOCABULARY // head_tokens)
        draft, config = training.started_from(model, kept, ids)
        distilled.save(draft, config, ids, model, folder / "draft")
        return str(folder / "target"), str(folder / "draft")

    return make


def words(target: str, shelf: Path, folder: Path, **more: object) -> list[str]:
    given = {"model": target, "books": shelf, "work": folder / "work", "out": folder / "draft"}
    given |= {"head_tokens": HEAD_TOKENS, "shards": 2, "epochs": 2, **more}
    return [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def answers(model: str, draft: str, book: Document) -> list[AnswerDone]:
    """By the hierarchy with the draft, lookup left out, and by plain decoding."""
    lengths: dict[str, Any] = {"num_draft_tokens": 3, "num_pending_tokens": 4, "num_lookup_tokens": 0}
    session = Session.load(EngineConfig(model=model, draft=draft, context=4096, retrieval_budget=256, **lengths))
    list(session.read(book))
    params = SamplingParams(max_tokens=TOKENS, repetition_penalty=1.3)
    found = []
    for mode in ("hierarchical", "plain"):
        done = list(session.ask(Question("Where does the key hang?", sampling=params, mode=mode)))[-1]
        assert isinstance(done, AnswerDone)
        found.append(done)
    return found


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_the_command_makes_a_draft_that_changes_no_answer(
    kind: str, tiny: Callable[..., str], books: Path, book: Document, tmp_path: Path
) -> None:
    target = tiny(kind)
    assert main(words(target, books, tmp_path)) == 0
    log = [json.loads(line) for line in (tmp_path / "work" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["step"] for row in log] == list(range(1, 9))
    assert all(0.0 < row["accepted"] < 1.0 and row["divergence"] > 0.0 for row in log)
    fast, plain = answers(target, str(tmp_path / "draft"), book)
    assert fast.token_ids == plain.token_ids
    assert fast.figures.middle.proposed > 0


def test_the_command_makes_a_head_that_changes_no_answer(
    tiny: Callable[..., str], books: Path, book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the published form, from a training that brings it nearer. It is refused beside another model."""
    monkeypatch.setattr(training, "WARM_UP_STEPS", 2)
    monkeypatch.setattr(training, "LEARNING_RATE", 1e-2)
    target = tiny("llama", spread=0.1)
    given = words(target, books, tmp_path, shards=1, epochs=8, head_tokens=VOCABULARY)
    assert main([*given, "--head"]) == 0
    log = [json.loads(line) for line in (tmp_path / "work" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert log[-1]["divergence"] < 0.8 * log[0]["divergence"]
    assert log[-1]["accepted"] > log[0]["accepted"] + 0.02
    stored = load_file(tmp_path / "draft" / "model.safetensors")
    assert stored["mtp.fc.weight"].shape == (64, 128)
    assert {name.partition(".")[0] for name in stored} == {"mtp", "target"}
    fast, plain = answers(target, str(tmp_path / "draft"), book)
    assert fast.token_ids == plain.token_ids
    assert fast.figures.middle.accepted > 0
    with pytest.raises(VocabularyMismatch, match="another model"):
        answers(tiny("llama", seed=1), str(tmp_path / "draft"), book)
    with pytest.raises(ModelError, match="by itself"):
        answers(str(tmp_path / "draft"), str(tmp_path / "draft"), book)


def test_training_brings_the_draft_nearer(tiny: Callable[..., str], books: Path, tmp_path: Path) -> None:
    main(words(tiny("llama", spread=0.05), books, tmp_path, shards=1, epochs=20))
    log = [json.loads(line) for line in (tmp_path / "work" / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert log[-1]["divergence"] < 0.5 * log[0]["divergence"]
    assert log[-1]["accepted"] > log[0]["accepted"]


@pytest.mark.parametrize("kind", ["llama", "phi3-partial", "gemma3_text", "granite", "smollm3"])
def test_a_draft_of_all_layers_and_tokens_is_the_target(kind: str, draft_of: Callable[..., Any]) -> None:
    """Embedding, layers, norm and head are where they belong, packed and shared: the logits are the target's."""
    target_folder, draft_folder = draft_of(kind, 3, VOCABULARY)
    target = loading.load(target_folder, window=None, device=CPU)
    draft = distilled.load(draft_folder, target)
    rng = random.Random(1)
    ids = torch.tensor([rng.randrange(6, VOCABULARY) for _ in range(12)])
    with torch.inference_mode():
        logits = []
        for model in (target, draft):
            cache = StreamingCache(model.kv_shape, 4, 64, 32, model.rotate)
            logits.append(model.forward(ids, cache.extend(12)))
    assert torch.equal(*logits)


def test_only_the_tokens_of_its_head_have_a_chance(draft_of: Callable[..., Any]) -> None:
    target_folder, draft_folder = draft_of("llama", 1)
    draft = distilled.load(draft_folder, loading.load(target_folder, window=None, device=CPU))
    logits = draft.logits(torch.randn(1, 3, 64), draft.last_product)
    known = torch.zeros(VOCABULARY, dtype=torch.bool)
    known[:: VOCABULARY // HEAD_TOKENS] = True
    assert logits.shape == (3, VOCABULARY)
    assert bool((logits.isfinite() == known).all())


def test_a_stop_at_any_moment_changes_nothing(
    tiny: Callable[..., str], books: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a shard is written, and in a step behind the last checkpoint; then the same command again."""
    made = {}
    for name, stops in (("whole", ()), ("stopped", (("row", 30), ("step", 3), ("step", 2)))):
        folder = tmp_path / name
        for kind, count in stops:
            owner, method = (corpus._Row, "add") if kind == "row" else (training.Training, "learn")
            with monkeypatch.context() as patch:
                patch.setattr(training, "SAVE_EVERY_S", 0.0)
                patch.setattr(owner, method, _stopping(getattr(owner, method), count))
                with pytest.raises(KeyboardInterrupt):
                    main(words(tiny("llama"), books, folder))
        main(words(tiny("llama"), books, folder))
        made[name] = load_file(folder / "draft" / "model.safetensors")
        assert not list((folder / "work").glob("*.tmp"))
    assert made["whole"].keys() == made["stopped"].keys()
    assert all(torch.equal(made["whole"][name], made["stopped"][name]) for name in made["whole"])


def _stopping(method: Callable[..., Any], count: int) -> Callable[..., Any]:
    calls = iter(range(count))

    def call(*given: Any) -> Any:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return method(*given)

    return call


def test_a_text_that_ends_or_circles_is_followed_by_another() -> None:
    class Given:
        def prompt(self, rng: random.Random, *, chat: bool) -> list[int]:
            return [1, 2]

        def further(self, row: list[int], rng: random.Random, *, chat: bool) -> list[int]:
            return [70, 71]

    row = corpus._Row(Given(), frozenset((9,)), random.Random(1), chat=True)  # type: ignore[arg-type]
    assert [row.add(token) for token in (5, 9, 6, 7, 8)] == [5, 9, 70, 71, 8]
    # 33 equal tokens are one and 32 that repeat it.
    assert [row.add(3) for _ in range(34)] == [*[3] * 33, 70]
    assert row.tokens[:7] == [1, 2, 5, 9, 70, 71, 8]


def test_rows_are_prompts_of_the_app(tiny: Callable[..., str]) -> None:
    tokenizer = BookTokenizer(tiny("llama"))
    prompts = corpus.Prompts(tokenizer, [TEXT * 4], 4)
    form = tokenizer.format_for("Title")
    for chat in (False, True):
        row = prompts.prompt(random.Random(3), chat=chat)
        assert len(row) == corpus.PROMPT_TOKENS
        assert row[:4] == tokenizer.template_words(form.before_title + "Title" + form.before_book)[:4]
        end = tokenizer.template_words(form.after_question)
        assert (row[-len(end) :] == end) == chat
    further = prompts.further([*row, tokenizer.template_words(form.between_turns)[0]], random.Random(3), chat=True)
    assert further[0] == tokenizer.template_words(form.between_turns)[1]


def test_books_that_are_held_back_or_too_short_are_left_out(tmp_path: Path) -> None:
    names = [f"book-{number}" for number in range(60)]
    for name in names:
        (tmp_path / f"{name}.txt").write_text(f"{name} {TEXT * 8}", encoding="utf-8")
    held_back = {name for name in names if is_held_back(Path(name))}
    assert held_back
    (tmp_path / "note.txt").write_text("Nothing to take a passage from.", encoding="utf-8")
    assert {text.split()[0] for text in books_in(tmp_path)} == set(names) - held_back


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"books": "nowhere"}, "There is no folder"),
        ({"books": ""}, "no book"),
        ({"layers": 3}, "not be smaller"),
        ({"layers": 0}, "at least 1"),
        ({"head_tokens": VOCABULARY + 1}, "tokens"),
        ({"out": ""}, "is there already"),
        ({"model": "./nowhere"}, "no model folder"),
        ({"device": "cuda:9"}, "cuda"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_any_work(
    changed: dict[str, Any], said: str, tiny: Callable[..., str], books: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    paths = {"": tmp_path / "empty", "nowhere": tmp_path / "nowhere"}
    given = {name: paths.get(value, value) for name, value in changed.items()}
    with pytest.raises(TrifoldError, match=said):
        main(words(tiny("llama"), books, tmp_path, **given))
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


@pytest.mark.parametrize(("kind", "why"), [("qwen3_5_text", "recurrent state"), ("qwen3_moe", "a mixture of experts")])
def test_a_draft_of_layers_that_are_no_draft_is_refused(
    kind: str, why: str, tiny: Callable[..., str], books: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        main(words(tiny(kind), books, tmp_path))


def test_a_work_folder_is_for_one_draft(tiny: Callable[..., str], books: Path, tmp_path: Path) -> None:
    main(words(tiny("llama"), books, tmp_path))
    with pytest.raises(OptionError, match="another seed"):
        main(words(tiny("llama"), books, tmp_path, out=tmp_path / "second", seed=2))


def test_a_draft_serves_its_target_alone(draft_of: Callable[..., Any], tiny: Callable[..., str]) -> None:
    target_folder, draft_folder = draft_of("llama", 2)
    with pytest.raises(VocabularyMismatch, match="another model"):
        Session.load(EngineConfig(model=tiny("llama", seed=7), draft=draft_folder))
    with pytest.raises(ModelError, match="cannot answer by itself"):
        Session.load(EngineConfig(model=draft_folder))
    assert Session.load(EngineConfig(model=target_folder, draft=draft_folder, dtype="bfloat16")).draft is not None


@pytest.mark.parametrize("damage", ["cut", "missing", "shape", "tokens", "count", "foreign"])
def test_a_damaged_draft_is_refused(damage: str, draft_of: Callable[..., Any]) -> None:
    target_folder, draft_folder = draft_of("llama", 2)
    target = loading.load(target_folder, window=None, device=CPU)
    file, settings = (Path(draft_folder) / name for name in ("model.safetensors", "config.json"))
    found = load_file(file)
    if damage == "missing":
        del found["model.norm.weight"]
    elif damage == "shape":
        found["model.norm.weight"] = found["model.norm.weight"][:8].clone()
    elif damage == "tokens":
        found["head.token_ids"][-1] = VOCABULARY
    elif damage == "foreign":
        found["model.layers.7.mlp"] = torch.zeros(3)
    save_file(found, file)
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    elif damage == "count":
        said = json.loads(settings.read_text(encoding="utf-8"))
        settings.write_text(json.dumps({**said, DRAFT_HEAD: 7}), encoding="utf-8")
    with pytest.raises(ModelError):
        distilled.load(draft_folder, target)
