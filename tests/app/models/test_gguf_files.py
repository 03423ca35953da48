"""GGUF files of other programs: found where those keep them, looked at without trust, opened as they are and asked."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import GGML_QUANT_SIZES

from app.core.format import size
from app.core.settings import ModelChoice, is_gguf, is_hub_id, model_name
from app.models import gguf_files
from app.models.hub import Download
from app.models.local import LocalModels
from app.models.switch import install
from app.readers.gguf_facts import BLOCKS
from app.web.preferences import model_options
from engine import foreign
from engine.errors import ModelError, ModelNotFound
from engine.plan import FreeMemory
from tests.real import real_or_skip
from tests.tally import count

KINDS = {int: 4, float: 6, bool: 7, str: 8}
NUMBERS = {4: "<I", 6: "<f", 7: "<?"}
LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.file_type": 15,
    "general.license": "apache-2.0",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 2048,
    "llama.rope.dimension_count": 16,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["a", "b", "c"],
}
Tensors = dict[str, tuple[tuple[int, ...], int]]
TENSORS: Tensors = {"token_embd.weight": ((64, 3), 0), "blk.0.attn_q.weight": ((64, 64), 0)}


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def made(fields: dict[str, Any], tensors: Tensors, version: int = 3) -> bytes:
    """A file whose weights are zeros."""
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields))
    for name, value in fields.items():
        header += text(name)
        if isinstance(value, list):
            kind = KINDS[type(value[0])]
            header += struct.pack("<IIQ", 9, kind, len(value))
            header += b"".join(text(one) if kind == 8 else struct.pack(NUMBERS[kind], one) for one in value)
        else:
            header += struct.pack("<I", KINDS[type(value)])
            header += text(value) if isinstance(value, str) else struct.pack(NUMBERS[KINDS[type(value)]], value)
    offset = 0
    for name, (shape, kind) in tensors.items():
        header += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
        values = 1
        for length in shape:
            values *= length
        offset += -(-values * 4 // 32) * 32
    return header + bytes(-len(header) % 32) + bytes(offset)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def in_ollama(models: Path, name: str, file: bytes | Path, number: str = "ab" * 32) -> Path:
    """Put a file into a store of Ollama, as it lays it out."""
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{number}"},
    ]
    title, _, tag = name.partition(":")
    place = models / "manifests" / "registry.ollama.ai" / "library" / title / tag
    write(place, json.dumps({"schemaVersion": 2, "layers": layers}).encode())
    blob = models / "blobs" / f"sha256-{number}"
    if isinstance(file, bytes):
        return write(blob, file)
    blob.parent.mkdir(parents=True, exist_ok=True)
    os.link(file, blob)
    return blob


@pytest.mark.parametrize(
    ("system", "cache"),
    [("linux", ".cache/llama.cpp"), ("darwin", "Library/Caches/llama.cpp"), ("win32", "AppData/Local/llama.cpp")],
)
def test_files_are_found_where_each_program_keeps_them(tmp_path: Path, system: str, cache: str) -> None:
    file = made(LLAMA, TENSORS)
    write(tmp_path / ".lmstudio/models/maker/Small-GGUF/Small-Q4_K_M.gguf", file)
    write(tmp_path / ".cache/lm-studio/models/maker/Old-GGUF/Old.gguf", file)
    write(tmp_path / cache / "maker_Third.gguf", file)
    write(tmp_path / "Downloads/elsewhere.gguf", file)
    blob = in_ollama(tmp_path / ".ollama" / "models", "llama3.2:3b", file)
    environ = {"USERPROFILE" if system == "win32" else "HOME": str(tmp_path)}
    found = gguf_files.found(environ, system)
    assert [(one.title, one.owner) for one in found] == [
        ("llama3.2:3b", "Ollama"),
        ("maker_Third", "llama.cpp"),
        ("Old", "LM Studio"),
        ("Small-Q4_K_M", "LM Studio"),
    ], "known folders, and no others"
    assert found[0].path == blob
    assert is_gguf(str(blob))
    assert all(is_gguf(str(one.path)) and not is_hub_id(str(one.path)) for one in found)


def test_folders_that_variables_name(tmp_path: Path) -> None:
    write(tmp_path / "a" / ("one.gguf" if os.name == "nt" else "one\x1b[2J\n.gguf"), b"")
    in_ollama(tmp_path / "b", "two:latest", b"")
    environ = {"HOME": str(tmp_path / "home"), "LLAMA_CACHE": str(tmp_path / "a"), "OLLAMA_MODELS": str(tmp_path / "b")}
    assert [file.title for file in gguf_files.found(environ, "linux")] == [
        "one" if os.name == "nt" else "one\ufffd[2J",
        "two:latest",
    ]


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../secret"}]}',
        b'{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}',
        b'{"layers": {"mediaType": 3}}',
    ],
)
def test_manifests_that_make_no_sense_name_no_file(tmp_path: Path, manifest: bytes) -> None:
    models = tmp_path / ".ollama" / "models"
    write(models / "manifests" / "registry.ollama.ai" / "library" / "evil" / "latest", manifest)
    write(models / "secret", b"GGUF")
    assert gguf_files.found({"HOME": str(tmp_path)}, "linux") == []
    count("model folders, damaged or altered")


def test_what_a_header_says(tmp_path: Path) -> None:
    model = gguf_files.look(write(tmp_path / "Small.gguf", made(LLAMA, TENSORS)))
    assert (model.shape.layers, model.shape.kv_heads, model.shape.head_dim, model.shape.window) == (2, 2, 16, 2048)
    assert (model.rounded, model.licence) == ("Q4_K_M", "apache-2.0")
    assert model.note("Ollama").startswith("A GGUF file of Ollama, weights in Q4_K_M. Without a GPU it is opened")


def test_what_a_header_of_gemma_4_says(tmp_path: Path) -> None:
    """Whether values have weights is told by the names of tensors alone."""
    own: dict[str, Any] = {
        **{"block_count": 2, "embedding_length": 64, "feed_forward_length": 128, "context_length": 2048},
        **{"attention.head_count": 4, "attention.head_count_kv": [2, 1], "attention.key_length": 32},
        **{"attention.key_length_swa": 16, "attention.sliding_window": 512, "rope.freq_base_swa": 1e4},
        "attention.sliding_window_pattern": [True, False],
    }
    fields = {"general.architecture": "gemma4", "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.tokens": [*"abc"]}
    fields |= {f"gemma4.{name}": value for name, value in own.items()}
    tensors: Tensors = {"token_embd.weight": ((64, 3), 0), "rope_freqs.weight": ((16,), 0)}
    shape = gguf_files.look(write(tmp_path / "Small.gguf", made(fields, tensors))).shape
    assert (shape.kv_heads, shape.head_dim, shape.sliding_layers, shape.sliding_kv) == (1, 32, 1, (2, 16))
    tensors["blk.1.attn_v.weight"] = ((64, 64), 0)
    with pytest.raises(ModelError, match="several shapes"):
        gguf_files.look(write(tmp_path / "Other.gguf", made(fields, tensors)))


def test_a_file_stands_in_the_list_with_what_it_takes(tmp_path: Path) -> None:
    write(tmp_path / ".lmstudio/models/maker/Small-GGUF/Small-Q4_K_M.gguf", made(LLAMA, TENSORS))
    write(tmp_path / ".lmstudio/models/maker/Bad-GGUF/Bad.gguf", b"GGUF")
    models = LocalModels(tmp_path / "models", {"HOME": str(tmp_path)})
    free = FreeMemory(16_000_000_000, 100_000_000_000, on_gpu=False)
    listed = [option for option in model_options(models, free, None) if option["id"].startswith("gguf:")]
    assert [option["title"] for option in listed] == ["Small-Q4_K_M"]
    assert listed[0]["here"]
    assert listed[0]["numbers"]["verdict"] == "whole"
    assert listed[0]["target"].endswith("Small-Q4_K_M.gguf")
    assert "LM Studio" in listed[0]["note"]
    # one that was named, with a draft: it was told with two bytes for each of its weights of four bits
    own = str(write(tmp_path / "own.gguf", made(LLAMA, TENSORS)))
    present = model_options(models, free, ModelChoice(own, own))[0]
    assert (present["id"], present["numbers"]["size"]) == ("own", size(2 * Path(own).stat().st_size))


def test_block_sizes_are_those_of_the_format() -> None:
    known = {int(kind): sizes for kind, sizes in GGML_QUANT_SIZES.items()}
    assert {kind: known[kind] for kind in BLOCKS} == BLOCKS


def without(*names: str, **more: Any) -> dict[str, Any]:
    changed = {**LLAMA, **{name.replace("__", "."): value for name, value in more.items()}}
    return {name: value for name, value in changed.items() if name not in names}


GOOD = made(LLAMA, TENSORS)
HOSTILE = {
    "no GGUF": (b"PK\x03\x04" + bytes(100), "no GGUF file"),
    "nothing": (b"", "no GGUF file"),
    "magic alone": (b"GGUF", "cut off"),
    "version 1": (made(LLAMA, TENSORS, version=1), "version 1"),
    "other byte order": (b"GGUF" + struct.pack(">IQQ", 3, 1, 1), "version 50331648"),
    "a billion fields": (b"GGUF" + struct.pack("<IQQ", 3, 1, 1 << 60), "more parts"),
    "a billion tensors": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), "more parts"),
    "a long name": (b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 1 << 62), "does not come to an end"),
    "an endless list": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<IIQ", 9, 0, 1 << 61),
        "values of a, more than any model",
    ),
    "a list of lists": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<IIQIQ", 9, 9, 1, 9, 1),
        "does not come to an end",
    ),
    "a string beyond the end": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<IIQQ", 9, 8, 2, 1 << 63) + bytes(64),
        "does not come to an end",
    ),
    "cut weights": (GOOD[:-100], "is cut off: it describes"),
    "a part": (made({**LLAMA, "split.count": 3}, TENSORS), "one of 3 parts"),
    "a vision part": (made({**LLAMA, "general.type": "mmproj"}, TENSORS), "no language model"),
    "no vocabulary": (made(without("tokenizer.ggml.tokens"), TENSORS), "no vocabulary"),
    "another vocabulary": (made({**LLAMA, "tokenizer.ggml.model": "bert"}, TENSORS), "vocabulary of the kind bert"),
    "another kind": (made({**LLAMA, "general.architecture": "mamba"}, TENSORS), "the kind mamba"),
    "experts": (made({**LLAMA, "llama.expert_count": 8}, TENSORS), "llama with experts"),
    "stretched": (made({**LLAMA, "llama.rope.scaling.type": "longrope"}, TENSORS), "window that was stretched"),
    "stretched by nothing": (made({**LLAMA, "llama.rope.scaling.type": "yarn"}, TENSORS), "no rope.scaling.factor"),
    "turned in part": (made({**LLAMA, "llama.rope.dimension_count": 8}, TENSORS), "a part of each head"),
    "layers unlike": (made({**LLAMA, "llama.attention.head_count_kv": [2, 4]}, TENSORS), "several shapes"),
    "no layers": (made(without("llama.block_count"), TENSORS), "no num_hidden_layers"),
    "absurd layers": (made({**LLAMA, "llama.block_count": 4_000_000_000}, TENSORS), "num_hidden_layers"),
    "blocks of two bits": (
        made(LLAMA, {**TENSORS, "blk.0.attn_k.weight": ((256, 2), 16)}),
        "in a block format that is not supported",
    ),
    "a part of no number": (made({**LLAMA, "split.count": "3"}, TENSORS), "does not say which part"),
    "unknown blocks": (made(LLAMA, {"token_embd.weight": ((64, 3), 99)}), "not known here"),
    "overlapping": (struct.pack("<IQ", 0, 0).join(GOOD.rsplit(struct.pack("<IQ", 0, 768), 1)), "overlap"),
    "a vocabulary without weights": (
        made({**LLAMA, "tokenizer.ggml.tokens": ["a"] * 4}, TENSORS),
        "4 tokens, and says that it knows 3",
    ),
    "a vocabulary that is not stated": (made({**LLAMA, "llama.vocab_size": 2}, TENSORS), "says that it knows 2"),
    "twelve million tokens": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + text("a") + struct.pack("<IIQ", 9, 8, 12_000_000),
        "12,000,000 values of a",
    ),
    "scores of other tokens": (made({**LLAMA, "tokenizer.ggml.scores": [1, 2]}, TENSORS), "2 values of"),
    "a number that is none": (
        made(LLAMA | {"llama.rope.freq_base": float("nan")}, TENSORS),
        "rope.freq_base what is no",
    ),
    "scores that are no numbers": (
        made({**LLAMA, "tokenizer.ggml.scores": [0.0, float("inf"), 0.0]}, TENSORS),
        "scores what is no number",
    ),
    "words for the terminal": (
        made({**LLAMA, "general.architecture": "\x1b]0;you\x07\x1b[2J\r\nAll is well.\u202e"}, TENSORS),
        "kind \ufffd]0;you\ufffd\ufffd[2J All is well.\ufffd, which",
    ),
    "alignment": (made({**LLAMA, "general.alignment": 0}, TENSORS), "not aligned"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_read_is_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    content, words = HOSTILE[name]
    file = write(tmp_path / "Hostile.gguf", content)
    with pytest.raises(ModelError) as refused:
        gguf_files.look(file)
    assert words in refused.value.cause
    assert "Hostile.gguf" in refused.value.cause
    assert refused.value.remedy
    count("model folders, damaged or altered")


def in_parts(folder: Path, count: int = 3, **changes: Any) -> list[Path]:
    """A model whose tensors lie in several files, the first of which has none; ``changes`` of what a part says."""
    names = [f"Big-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    found = []
    for number, name in enumerate(names):
        split = {"split.no": number, "split.count": count, "split.tensors.count": len(TENSORS)}
        fields = {**(LLAMA if number == 0 else {}), **split, **changes.get(f"part_{number + 1}", {})}
        tensors = dict(list(TENSORS.items())[number - 1 : number] if number else [])
        found.append(write(folder / name, made(fields, tensors)))
    return found


def test_any_part_of_a_model_in_several_files_is_that_model(tmp_path: Path) -> None:
    folder = tmp_path / ".cache" / "llama.cpp"
    parts = in_parts(folder)
    whole = gguf_files.look(write(tmp_path / "Whole.gguf", GOOD))
    places = set()
    for part in parts:
        model = gguf_files.look(part)
        assert model.files == tuple(parts)
        assert model.shape.parameters == whole.shape.parameters
        places.add(gguf_files.folder_of(tmp_path, str(part)))
    assert {place.name for place in places} == {"Big"}
    assert len(places) == 1
    assert [(file.title, file.path) for file in gguf_files.found({"HOME": str(tmp_path)}, "linux")] == [
        ("Big", parts[0])
    ]


def test_what_of_a_model_in_parts_is_missing_is_named(tmp_path: Path) -> None:
    parts = in_parts(tmp_path)
    parts[1].rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(ModelNotFound, match=r"Big-00002-of-00003.gguf is missing: the model of .*00003-of-00003.gguf"):
        gguf_files.look(parts[2])
    with pytest.raises(ModelError, match=r"elsewhere.gguf is one of 3 parts"):
        gguf_files.look(tmp_path / "elsewhere.gguf")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"part_2": {"split.no": 2}}, "Big-00002-of-00003.gguf says that it is part 3 of 3"),
        ({"part_1": {"split.tensors.count": 9}}, "has 2 tensors in its parts, and says that it has 9"),
        ({"part_3": {"general.alignment": 7}}, "has a part that cannot be used: Big-00003-of-00003.gguf is damaged"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    parts = in_parts(tmp_path, **changes)
    with pytest.raises(ModelError) as refused:
        gguf_files.look(parts[0])
    assert words in refused.value.cause


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="There is no file"):
        LocalModels(tmp_path, {}).find(str(tmp_path / "none.gguf"))


def test_a_real_file_of_lm_studio_and_of_ollama_answers_as_its_weights_do(tmp_path: Path) -> None:
    """Its settings are those of the converted fixture, and its weights stay where they are."""
    real = real_or_skip()
    home = tmp_path / "home"
    studio = home / ".lmstudio" / "models" / "maker" / "SmolLM2-GGUF" / "SmolLM2-135M-Q4_0.gguf"
    studio.parent.mkdir(parents=True)
    shutil.copyfile(real.gguf, studio)
    blob = in_ollama(home / ".ollama" / "models", "smollm2:135m", studio)
    models = LocalModels(tmp_path / "models", {"HOME": str(home)})
    assert [(file.title, file.path) for file in models.gguf_files()] == [
        ("SmolLM2-135M-Q4_0", studio),
        ("smollm2:135m", blob),
    ]
    assert models.is_at_hand(str(blob))
    assert models.find(str(blob)) is None
    installed = install(models, Download(), str(blob), None, lambda _: None)
    folder = Path(installed.model)
    assert models.find(str(blob)) == str(folder)
    assert (tmp_path / "tried" / f"{foreign._sum_of(folder)}.json").read_text(encoding="utf-8") == '["linear"]'
    assert model_name(f"{folder.parent.name}/{folder.name}", str(folder)) == folder.name
    assert (folder / "chat_template.jinja").read_bytes() == (real.folder / "chat_template.jinja").read_bytes()
    stated, usual = (json.loads((each / "config.json").read_text(encoding="utf-8")) for each in (folder, real.folder))
    assert 0.7 < stated.pop("stored_bytes_per_weight") < 0.75
    rounded = stated.pop("fitted_bytes_per_weight")  # Q4_0: 4 bits, and a scale and a middle for each 32 weights
    assert 0.625 <= rounded < 0.63
    shape = gguf_files.look(studio).shape
    assert shape.fitted == pytest.approx(rounded, abs=1e-3)
    assert shape.on_card == pytest.approx(stated.pop("card_bytes_per_weight"), rel=0.02)
    assert stated == {name: usual[name] for name in stated}
    words, usual_words = (
        json.loads((each / "tokenizer.json").read_text(encoding="utf-8")) for each in (folder, real.folder)
    )
    words["model"]["merges"] = [pair.split(" ") for pair in words["model"]["merges"]]
    assert words == usual_words
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000
    assert not [*folder.glob("*.safetensors")]
