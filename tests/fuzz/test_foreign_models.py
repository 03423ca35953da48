"""Model folders and GGUF files that were made to do harm, asked as a person would ask them.

Each ends with one sentence and status 2, in less time and memory than it was made to take. In a normal run the command
runs in this process, the book has been read, the time of a template is cut, and what other tests meet closer by is left
out; with TRIFOLD_LONG=1 each runs in a process of its own, whose time and memory are measured.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from app.cli import ask as ask_command
from app.cli.main import main
from app.core.settings import DEMO_DRAFT, EXIT_BAD_INPUT
from engine import foreign
from engine.document import Document
from engine.errors import on_one_line
from engine.sandbox import Bounds
from tests.app.models.test_gguf_files import LLAMA, TENSORS, made
from tests.engine.model.test_gguf import config_of
from tests.engine.model.test_gguf import made as weights_in_a_file
from tests.fuzz.conftest import LONG
from tests.house import ROOT
from tests.tally import count

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes and devices among its files")

SECONDS = 20.0
BYTES = 1_500_000_000

Make = Callable[[Path], None]
"""Makes a good folder one that does harm."""


def _json(name: str, change: Callable[[dict[str, Any]], None]) -> Make:
    def make(folder: Path) -> None:
        stated = json.loads((folder / name).read_text(encoding="utf-8"))
        change(stated)
        (folder / name).write_text(json.dumps(stated), encoding="utf-8")

    return make


def _written(name: str, content: str) -> Make:
    def make(folder: Path) -> None:
        (folder / name).write_text(content, encoding="utf-8")

    return make


def _template(words: str) -> Make:
    def make(folder: Path) -> None:
        good = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        (folder / "chat_template.jinja").write_text(words + good, encoding="utf-8")

    return make


def _instead(name: str, put: Callable[[Path], object]) -> Make:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        put(folder / name)

    return make


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3_000_000_000)


def _link(place: str) -> Callable[[Path], object]:
    return lambda path: path.symlink_to(place)


def _pretokenizer(expression: str) -> Make:
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    return _json("tokenizer.json", lambda stated: stated.update(pre_tokenizer=split))


def _normalizer(*steps: dict[str, Any]) -> Make:
    sequence = {"type": "Sequence", "normalizers": list(steps)}
    return _json("tokenizer.json", lambda stated: stated.update(normalizer=sequence))


def _added(stated: dict[str, Any]) -> None:
    token = stated["added_tokens"][0]
    stated["added_tokens"] += [{**token, "id": number, "content": f"<{number}>"} for number in range(10_000, 120_000)]


def _folder(path: Path) -> None:
    path.mkdir()


def _indexed(place: str) -> Make:
    def make(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        index = {"metadata": {"total_size": 1}, "weight_map": {"model.norm.weight": place}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")

    return make


def _among_templates(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    os.mkfifo(folder / "additional_chat_templates" / "tools.jinja")


def _settings(**values: Any) -> Make:
    return _json("config.json", lambda stated: stated.update(values))


def _of_tokenizer(**values: Any) -> Make:
    return _json("tokenizer_config.json", lambda stated: stated.update(values))


def _zeros(folder: Path) -> None:
    held = load_file(folder / "model.safetensors")
    save_file({name: weights * 0 for name, weights in held.items()}, folder / "model.safetensors", {"format": "pt"})


def _no_numbers(folder: Path) -> None:
    held = load_file(folder / "model.safetensors")
    held["model.norm.weight"][0] = float("nan")
    save_file(held, folder / "model.safetensors", {"format": "pt"})


_GROWING = {"type": "Replace", "pattern": {"String": "e"}, "content": "e" * 1000}
_SILENT = {
    **{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a", "type_id": 0}}], "pair": []},
    "special_tokens": {"a": {"id": "a", "ids": [5], "tokens": ["a"]}},
}
_CONTROLS = "\x1b]0;yours\x07\x1b[2J\r\n\x9b31m\u202eAll is well."

TEMPLATES = {
    "a template without end": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "template takes longer than",
    ),
    "a template that counts": ("{{ 10**(10**9) }}", "template takes longer than"),
    "a template that repeats": ("{{ 'a'*(8*10**9) }}", "template takes more than"),
    "a template that fills": ("{{ '%9999999999d' % 1 }}", "template takes more than"),
    "a template that talks": ("{{ 'a' * 99999 }}", "writes 1"),
}
FOLDERS: dict[str, tuple[Make, str]] = {
    **{name: (_template(words), why) for name, (words, why) in TEMPLATES.items()},
    "a template of nothing": (_instead("chat_template.jinja", _sparse), "which no model needs"),
    "a template elsewhere": (_instead("chat_template.jinja", _link("/etc/hostname")), "leads out of its folder"),
    "a vocabulary that grows": (_normalizer(*[_GROWING] * 4), "characters of one (normalizer)"),
    "a vocabulary that backtracks": (_pretokenizer("(a+)+$"), "retry-limit-in-match"),
    "a vocabulary of additions": (_json("tokenizer.json", _added), "adds 11"),
    "a vocabulary nested deep": (_written("tokenizer.json", "[" * 100_000), "tokenizer"),
    "settings without end": (_instead("config.json", _link("/dev/zero")), "not an ordinary file"),
    "settings that nobody writes": (_instead("config.json", os.mkfifo), "not an ordinary file"),
    "settings that lead nowhere": (_instead("config.json", _link("gone")), "leads to nothing"),
    "settings in a list": (_written("generation_config.json", "[]"), "generation_config.json is damaged"),
    "settings for the terminal": (
        _json("config.json", lambda stated: stated.update(model_type=_CONTROLS, architectures=[_CONTROLS])),
        "is not an architecture that can be loaded",
    ),
    "settings of more labels than memory": (_settings(num_labels=10**12), "num_labels is 1000000000000"),
    "settings of more layers than memory": (
        _settings(model_type="qwen2", num_hidden_layers=10**12),
        "num_hidden_layers is 1000000000000",
    ),
    "settings of a hundred thousand factors": (
        _settings(rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [1] * 100_000}),
        "long_factor has 100,000 values",
    ),
    "settings of layers that are none": (
        _settings(rope_parameters={"full_attention": {"rope_type": "default"}}),
        "speaks of full_attention",
    ),
    "settings of a text model that is none": (_settings(text_config={"hidden_size": 8}), "its text_config is none"),
    "settings of 400 digits": (
        _settings(rope_parameters={"rope_type": "default", "rope_theta": 10**400}),
        "config.json is damaged",
    ),
    "settings of a type for the terminal": (_settings(dtype=_CONTROLS), "All is well."),
    "a function for the terminal": (_settings(hidden_act=_CONTROLS), "which is not known"),
    "weights rounded for the terminal": (_settings(quantization_config={"quant_method": _CONTROLS}), "All is well."),
    "a tokenizer of more tokens than memory": (
        _of_tokenizer(tokenizer_class="T5Tokenizer", extra_ids=10**9),
        "extra_ids is 1,000,000,000",
    ),
    "a tokenizer that runs its own code": (
        _of_tokenizer(tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", None]}),
        "could not be loaded",
    ),
    "a tokenizer that leads to itself": (_instead("tokenizer.json", _link("tokenizer.json")), "leads to nothing"),
    "a vocabulary that says nothing": (
        _json("tokenizer.json", lambda stated: stated.update(post_processor=_SILENT)),
        "makes no token of a text",
    ),
    "a vocabulary by chance": (
        _json("tokenizer.json", lambda stated: stated["model"].update(dropout=0.5)),
        "by chance",
    ),
    "a vocabulary for the terminal": (
        _json("tokenizer.json", lambda stated: stated["model"].update(merges=[[_CONTROLS, _CONTROLS]])),
        "All is well.",
    ),
    "a template that calls itself": (
        _written("chat_template.jinja", "{% macro a() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}"),
        "does not keep a book",
    ),
    "a template among others that nobody writes": (_among_templates, "not an ordinary file"),
    "weights that are a folder": (_instead("model.safetensors", _folder), "not an ordinary file"),
    "weights named for the terminal": (_indexed(_CONTROLS), "is not a .safetensors file of its folder"),
    "weights that are no numbers": (_no_numbers, "weights are damaged"),
    "weights that are zeros": (_zeros, "every word the same probability, because its weights are damaged"),
    "weights that lead nowhere": (_instead("model.safetensors", _link("gone")), "leads to nothing"),
}
_LONG_ONLY = (
    "a function for the terminal",
    "a template that fills",
    "a template that calls itself",
    "a tokenizer that runs its own code",
    "weights named for the terminal",
    "a vocabulary of additions",
    "a vocabulary nested deep",
    "weights that are no numbers",
    "weights that are zeros",
    "settings in a list",
    "settings of layers that are none",
)
_GGUF = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)
_NAME = b"tokenizer.ggml.tokens"
FILES: dict[str, tuple[bytes, str]] = {
    "twelve million tokens": (
        _GGUF + struct.pack("<Q", len(_NAME)) + _NAME + struct.pack("<IIQ", 9, 8, 12_000_000),
        "12,000,000 values of tokenizer.ggml.tokens",
    ),
    "more tokens than are stated": (made({**LLAMA, "llama.vocab_size": 2}, TENSORS), "says that it knows 2"),
    "no number": (made({**LLAMA, "llama.rope.freq_base": float("inf")}, TENSORS), "what is no number"),
    "words for the terminal": (made({**LLAMA, "general.architecture": _CONTROLS}, TENSORS), "All is well."),
    "a vocabulary for the terminal": (made({**LLAMA, "tokenizer.ggml.model": _CONTROLS}, TENSORS), "All is well."),
    "a number of parts in words": (made({**LLAMA, "split.count": _CONTROLS}, TENSORS), "does not say which part"),
    "layers in words": (made({**LLAMA, "llama.block_count": _CONTROLS}, TENSORS), "no num_hidden_layers"),
}


_WORDS = "The lamp stood on the sill. Maren lit it at dusk.\n" * 40
_BOOK = Document.from_text("The Lamp", _WORDS)


def _processor_s() -> float:
    """Seconds of the processor that all processes took for which this one has waited."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Importing the libraries, which takes seconds and more on a busy machine, is not what is timed."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    importlib.import_module("engine.session")
    for library in (AutoConfig, AutoTokenizer, AutoModelForCausalLM):
        library.from_pretrained(DEMO_DRAFT)


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[[Path], str]:
    """Asks a model about a short book. Gives what was said when that ended as it must."""
    book = tmp_path / "book.txt"
    book.write_text(_WORDS, encoding="utf-8")
    monkeypatch.setenv("TRIFOLD_DATA", str(tmp_path / "data"))

    def asked(model: Path) -> str:
        line = ["ask", str(book), "Who lit it?", "--model", str(model), "--max-tokens", "4"]
        began = time.monotonic()
        if LONG:
            before, command = _processor_s(), [sys.executable, "-m", "app.cli", *line]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10 * SECONDS)
            status, out, said = done.returncode, done.stdout, done.stderr
            # By the processor's clock: other programs may have this machine.
            assert _processor_s() - before < SECONDS
            # Of all processes that this one has waited for, so each that came before was no larger either.
            assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 < BYTES
        else:
            monkeypatch.setattr(ask_command, "open_books", lambda *_, **__: _BOOK)
            monkeypatch.setattr(foreign, "_TEMPLATE_BOUNDS", Bounds(foreign._TEMPLATE_BOUNDS.memory_bytes, 0.5))
            status = main(line)
            out, said = capfd.readouterr()
            assert time.monotonic() - began < SECONDS
        assert status == EXIT_BAD_INPUT, said
        assert out == ""
        sentence = said.splitlines()[-1]
        assert sentence.endswith("."), said
        assert on_one_line(sentence) == sentence
        assert "Traceback" not in said
        count("model folders, damaged or altered")
        return said

    return asked


@pytest.mark.parametrize("name", [name for name in FOLDERS if LONG or name not in _LONG_ONLY])
def test_a_folder_ends_in_a_sentence(name: str, tmp_path: Path, ask: Callable[[Path], str]) -> None:
    make, why = FOLDERS[name]
    folder = tmp_path / "model"
    shutil.copytree(DEMO_DRAFT, folder)
    make(folder)
    assert why in ask(folder).splitlines()[-1]


@pytest.mark.parametrize("name", FILES)
def test_a_file_ends_in_a_sentence(name: str, tmp_path: Path, ask: Callable[[Path], str]) -> None:
    content, why = FILES[name]
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert why in ask(file).splitlines()[-1]


@pytest.mark.skipif(not LONG, reason="a vocabulary is converted for seconds, and folders have the same templates")
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_in_a_file_ends_in_a_sentence(name: str, tmp_path: Path, ask: Callable[[Path], str]) -> None:
    words, why = TEMPLATES[name]
    template = words + (DEMO_DRAFT / "chat_template.jinja").read_text(encoding="utf-8")
    config = config_of("qwen2", tie_word_embeddings=True)
    (file,) = weights_in_a_file(tmp_path, "qwen2", config, True, add_context_length=4096, add_chat_template=template)
    assert why in ask(file).splitlines()[-1]


def test_a_template_of_gigabytes_in_a_file(tmp_path: Path, ask: Callable[[Path], str]) -> None:
    file, field = tmp_path / "model.gguf", b"tokenizer.chat_template"
    file.write_bytes(_GGUF + struct.pack("<Q", len(field)) + field + struct.pack("<IQ", 8, 3_000_000_000))
    os.truncate(file, 3_100_000_000)
    assert "header does not come to an end" in ask(file).splitlines()[-1]
