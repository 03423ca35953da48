"""Model folders that were damaged or altered, whole: each is refused with the reason, before anything large is made."""

from __future__ import annotations

import itertools
import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig, Mode, SamplingParams
from engine.document import Document, Page
from engine.errors import InputError, ModelError, TrifoldError
from engine.events import AnswerDone, BookRead
from engine.model import loading
from engine.model_files import INDEX
from engine.prompt import Question
from engine.session import Session
from tests.tally import count

CPU = torch.device("cpu")
_NAN = float("nan")
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": _NAN, "original_max_position_embeddings": 128}
_WEIGHTS = "model.safetensors"
_PICKLE = b"\x80\x02cos\nsystem\n(S'false'\ntR."


@pytest.fixture
def folder(tiny: Callable[..., str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny("llama"), tmp_path / "model"))


def _set(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}), encoding="utf-8")


def _said(folder: Path) -> str:
    with pytest.raises(TrifoldError) as refused:
        loading.load(str(folder), window=256, device=CPU)
    assert refused.value.cause.endswith(".")
    count("model folders, damaged or altered")
    return refused.value.cause


def _header(folder: Path, change: Callable[[dict[str, Any], str], None]) -> None:
    path = folder / _WEIGHTS
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header, next(name for name in header if name != "__metadata__"))
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"num_hidden_layers": -1}, "num_hidden_layers is -1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"hidden_size": 10**9}, "hidden_size is 1000000000"),
        ({"hidden_size": -64}, "hidden_size is -64"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 64.5}, "hidden_size"),
        ({"num_attention_heads": 0}, "cannot be used"),
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"head_dim": 10**9}, "head_dim is 1000000000"),
        ({"intermediate_size": 10**12}, "intermediate_size is 1000000000000"),
        ({"vocab_size": 10**12}, "vocab_size is 1000000000000"),
        ({"max_position_embeddings": 0}, "max_position_embeddings is 0"),
        ({"max_position_embeddings": 10**18}, "max_position_embeddings is"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings"),
        ({"rms_norm_eps": _NAN}, "rms_norm_eps is nan"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": _NAN}}, "rope_theta is nan"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -5.0}}, "rope_theta is -5.0"),
        ({"rope_parameters": _YARN}, "factor is nan"),
        ({"rope_parameters": {"rope_type": "evil", "rope_theta": 1e4}}, "evil"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"hidden_act": "os.system"}, "os.system"),
        ({"dtype": "evil"}, "evil"),
        ({"model_type": []}, "cannot be used"),
        ({"num_hidden_layers": 900}, "describes about"),
        ({"auto_map": {"AutoConfig": "evil.Config"}, "model_type": "evil"}, "without running its own code"),
    ],
)
def test_settings_that_mean_nothing(folder: Path, values: dict[str, Any], why: str) -> None:
    _set(folder, **values)
    (folder / "evil.py").write_text("raise SystemExit", encoding="utf-8")
    assert why in _said(folder)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"a', "no JSON can be read"),
        (b"[]", "no JSON object"),
        (b"\xff\xfe\0", "no JSON can be read"),
        (b"[" * 200_000, "no JSON can be read"),
        (b'{"model_type": "llama", "x": "' + b"a" * (5 << 20) + b'"}', "MB, which no model needs"),
        (None, "has no config.json"),
    ],
)
def test_settings_that_cannot_be_read(folder: Path, content: bytes | None, why: str) -> None:
    path = folder / "config.json"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert why in _said(folder)


def test_a_vocabulary_of_absurd_size_is_not_read(folder: Path) -> None:
    with (folder / "tokenizer.json").open("wb") as file:
        file.truncate(300 << 20)  # a sparse file: nothing of it is read
    assert "tokenizer.json has 315 MB" in _said(folder)


@pytest.mark.parametrize("content", [b'{"a', b"[]", b"", b"[" * 300_000, b'{"model": {"type": "Evil"}}'])
def test_a_broken_vocabulary(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(ModelError, match="tokenizer"):
        Session.load(EngineConfig(model=str(folder)))
    count("model folders, damaged or altered")


def _shrink(folder: Path, rows: int) -> None:
    """Embedding and head of fewer tokens, in weights and settings alike: a whole model, of another vocabulary."""
    weights = load_file(folder / _WEIGHTS)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = weights[name][:rows].contiguous()
    save_file(weights, folder / _WEIGHTS, {"format": "pt"})
    _set(folder, vocab_size=rows)


def test_a_tokenizer_that_knows_more_than_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It used to load, and the first book ended in an IndexError from inside the embedding."""
    _shrink(folder, 300)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)  # no weights are read for this
    with pytest.raises(ModelError) as refused:
        Session.load(EngineConfig(model=str(folder)))
    assert "gives token ids up to 383" in refused.value.cause
    assert "knows 300 tokens" in refused.value.cause
    assert "download it again" in refused.value.remedy
    count("model folders, damaged or altered")


def test_an_added_token_behind_the_embedding(folder: Path) -> None:
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    later = {**tokenizer["added_tokens"][0], "id": 384, "content": "<|later|>", "special": True}
    tokenizer["added_tokens"].append(later)
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    # Words never become a special token, and the template does not name this one.
    assert Session.load(EngineConfig(model=str(folder))).tokenizer.vocabulary["<|later|>"] == 384
    later["special"] = False
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ModelError, match=r"ids up to 384, .* knows 384 tokens"):
        Session.load(EngineConfig(model=str(folder)))
    count("model folders, damaged or altered")


def test_a_token_for_padding_behind_the_embedding_is_harmless(folder: Path, book: Document) -> None:
    """Folders that were tuned often have one, and neither words nor a template ever become it."""
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**settings, "pad_token": "[PAD]"}), encoding="utf-8")
    session = Session.load(EngineConfig(model=str(folder), context=4096))
    assert session.tokenizer.vocabulary["[PAD]"] == session.target.vocabulary == 384
    odd = replace(book, pages=(Page(1, "1", "[PAD] <|pad|> " + book.pages[0].text), *book.pages[1:]))
    assert isinstance(list(session.read(odd))[-1], BookRead)
    path.write_text(
        json.dumps({**settings, "pad_token": "[PAD]", "chat_template": "{{ pad_token }}"}), encoding="utf-8"
    )
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ModelError, match="ids up to 384"):
        Session.load(EngineConfig(model=str(folder)))


@pytest.mark.parametrize("stated", [300, 500])
def test_an_embedding_of_another_size_than_stated(folder: Path, stated: int) -> None:
    _set(folder, vocab_size=stated)
    assert "could not be loaded" in _said(folder)


@pytest.mark.parametrize("kind", ["t5", "whisper", "vit"])
def test_a_kind_without_a_longest_text(folder: Path, kind: str) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    assert f"is a {kind} model" in _said(folder)


def test_words_that_the_library_does_not_know(folder: Path) -> None:
    _set(folder, hidden_act="zap")
    assert "asks for 'zap'" in _said(folder)
    _set(folder, hidden_act="silu", rope_parameters={"rope_type": "zig", "rope_theta": 1e4})
    assert "asks for 'zig'" in _said(folder)


def _in_parts(folder: Path) -> Path:
    """The weights as converters write them where they take several files; returns their index."""
    held = load_file(folder / _WEIGHTS)
    (folder / _WEIGHTS).unlink()
    names = sorted(held)
    places = {name: f"model-{number % 3}.safetensors" for number, name in enumerate(names)}
    for file in sorted({*places.values()}):
        save_file({name: held[name] for name in names if places[name] == file}, folder / file, {"format": "pt"})
    total = sum(tensor.nbytes for tensor in held.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")
    return folder / INDEX


@pytest.mark.parametrize("described", [True, False])
def test_weights_in_several_files(folder: Path, monkeypatch: pytest.MonkeyPatch, described: bool) -> None:
    """transformers asks an index for ``metadata``, which that of some converters lacks."""
    expected = [weight.clone() for _, weight in loading.load(str(folder), window=256, device=CPU).named_weights()]
    index = _in_parts(folder)
    found = json.loads(index.read_text(encoding="utf-8"))
    assert found["metadata"]["total_size"] > 0
    if not described:
        del found["metadata"]
        index.write_text(json.dumps(found), encoding="utf-8")
    before = sorted(folder.iterdir()), index.read_bytes()
    for _, weight in loading.load(str(folder), window=256, device=CPU).named_weights():
        assert torch.equal(weight, expected.pop(0))
    assert (sorted(folder.iterdir()), index.read_bytes()) == before
    assert expected == []


def test_the_cause_of_a_missing_key_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any KeyError was told as an unknown activation."""

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("offsets")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    assert "could not be loaded: 'offsets' is not described" in _said(folder)


def test_heads_that_do_not_share_evenly(folder: Path) -> None:
    _set(folder, num_key_value_heads=3)
    assert "num_attention_heads is 4 for 3" in _said(folder)


def test_a_draft_with_fewer_tokens_than_the_target(folder: Path, tiny: Callable[..., str], book: Document) -> None:
    """Models of one family differ in a few added tokens: what the draft has no row for costs a guess, not an answer."""
    _shrink(folder, 370)
    target = tiny("llama", seed=1)
    settings = EngineConfig(model=target, draft=str(folder), context=4096, retrieval_budget=256)
    said = []
    for config in (settings, replace(settings, draft=None)):
        session = Session.load(config)
        list(session.read(book))
        done = list(session.ask(Question("Where does the key hang?", sampling=SamplingParams(max_tokens=40))))[-1]
        assert isinstance(done, AnswerDone)
        assert any(token >= 370 for token in session.conversation.tokens)
        said.append(session.conversation.tokens)
    assert said[0] == said[1]


def test_weights_under_another_name_are_not_replaced_by_chance(folder: Path) -> None:
    """The library would fill the hole with random numbers, and the answers would be rubbish without a word."""
    _header(folder, lambda header, first: header.update(other=header.pop(first)))
    assert "lack" in _said(folder)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda header, first: header[first].update(dtype="I32"), "whole numbers"),
        (lambda header, first: header[first].update(dtype="PICKLE"), "cannot be right"),
        (lambda header, first: header[first].update(data_offsets=[0, 4]), "cannot be right"),
        (lambda header, first: header[first].update(shape=[2**40, 2**40]), "cannot be right"),
        (lambda header, first: header[first].update(shape=header[first]["shape"][::-1]), "could not be loaded"),
    ],
)
def test_an_altered_header(folder: Path, change: Callable[[dict[str, Any], str], None], why: str) -> None:
    _header(folder, change)
    assert why in _said(folder)


def test_pickles_alone(folder: Path) -> None:
    (folder / _WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(_PICKLE)
    assert "no .safetensors weights" in _said(folder)


@pytest.mark.parametrize(
    ("name", "place", "value", "why"),
    [
        ("model.layers.0.self_attn.q_proj.weight", 0, _NAN, "values that are not numbers"),
        ("model.embed_tokens.weight", slice(None), _NAN, "values that are not numbers"),
        ("model.norm.weight", 3, _NAN, "values that are not numbers"),
        ("lm_head.weight", (7, 0), _NAN, "values that are not numbers"),
        ("lm_head.weight", slice(None), 0.0, "every word the same probability"),
    ],
)
def test_weights_that_are_no_numbers(
    folder: Path, book: Document, name: str, place: Any, value: float, why: str
) -> None:
    """They were answered with nothing, or with exclamation marks, and it ended well."""
    held = load_file(folder / _WEIGHTS)
    held[name][place] = value
    save_file(held, folder / _WEIGHTS, {"format": "pt"})
    session = Session.load(EngineConfig(model=str(folder), context=4096))
    with pytest.raises(ModelError, match=f"{why}, because its weights are damaged"):
        list(session.read(book))
    with pytest.raises(InputError, match="No book is open"):
        list(session.ask(Question("Where does the key hang?")))
    count("model folders, damaged or altered")


def test_a_token_of_the_answer_that_is_no_number(folder: Path, tiny: Callable[..., str], book: Document) -> None:
    """A row of the embedding that no word of the prompt reads was missed: the answer went on with exclamation marks."""
    session = Session.load(EngineConfig(model=str(folder), draft=tiny("llama", seed=1, layers=1), context=4096))
    list(session.read(book))
    embedding = session.target.model.get_input_embeddings().weight
    warm = SamplingParams(max_tokens=16, temperature=0.9, top_p=0.9, seed=2)
    for sampling, mode in itertools.product((SamplingParams(max_tokens=16), warm), get_args(Mode)):
        question = Question("Where does the key hang?", sampling=sampling, mode=mode)
        done = list(session.ask(question))[-1]
        assert isinstance(done, AnswerDone)
        prompt = session.conversation.tokens[: done.figures.prompt_tokens]
        token = next(token for token in done.token_ids[:-1] if token not in prompt)
        row = embedding[token].clone()
        embedding[token] = _NAN
        with pytest.raises(ModelError, match="not numbers, because its weights are damaged"):
            list(session.ask(question))
        embedding[token] = row
        again = list(session.ask(question))[-1]
        assert isinstance(again, AnswerDone)
        assert again.token_ids == done.token_ids
        count("model folders, damaged or altered")


def test_a_draft_that_is_no_number(tiny: Callable[..., str], tmp_path: Path, book: Document) -> None:
    draft = Path(shutil.copytree(tiny("llama", seed=1, layers=1), tmp_path / "draft"))
    held = load_file(draft / _WEIGHTS)
    held["model.norm.weight"][3] = _NAN
    save_file(held, draft / _WEIGHTS, {"format": "pt"})
    session = Session.load(EngineConfig(model=tiny("llama"), draft=str(draft), context=4096, num_draft_tokens=2))
    list(session.read(book))
    with pytest.raises(ModelError, match=r"draft computes values that are not numbers"):
        list(session.ask(Question("Where does the key hang?", sampling=SamplingParams(max_tokens=8))))
    count("model folders, damaged or altered")
