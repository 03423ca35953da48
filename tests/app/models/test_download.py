"""Downloads from a real server on loopback: whole, in part, damaged, gated, too large, stopped, offline."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.core.settings import DEMO_DRAFT, DEMO_MODEL
from app.models import hub as downloads
from app.models.hub import CONVERTER, MARKER, PARTS, Cancelled, Download, Progress
from app.models.local import LocalModels
from app.models.switch import install
from engine.errors import EngineError, ModelError, ModelNotFound, ResourceError
from engine.plan import FreeMemory
from tests.app.models.conftest import DRAFT, TARGET
from tests.app.models.hub import PROPOSED, REVISION, Hub, Proposal
from tests.house import ROOT

WEIGHTS = "model.safetensors"
PLENTY = FreeMemory(memory=10**12, disk=10**12, on_gpu=False)


def same(one: Path, other: Path) -> bool:
    return hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest()


def test_a_pair_arrives_whole_and_is_not_fetched_again(hub: Hub, local_models: LocalModels) -> None:
    hub.models[TARGET]["pytorch_model.bin"] = b"\x80\x02 never fetched"
    hub.models[TARGET]["consolidated.safetensors"] = b"the same a second time"
    seen: list[Progress] = []
    installed = install(local_models, Download(), TARGET, DRAFT, seen.append, PLENTY)
    folder = local_models.own(TARGET)
    assert installed.model == str(folder)
    assert installed.draft == str(local_models.own(DRAFT))
    assert same(folder / WEIGHTS, DEMO_MODEL / WEIGHTS)
    assert not (folder / "pytorch_model.bin").exists()
    assert not (folder / PARTS).exists()
    assert json.loads((folder / MARKER).read_text())["revision"] == REVISION
    assert all(0 <= step.done <= step.total for step in seen)
    assert seen[-1].checking
    assert seen[-1].done == seen[-1].total
    small = [path for _, path, _ in hub.asked].index(f"/{DRAFT}/resolve/{REVISION}/tokenizer.json")
    large = [path for _, path, _ in hub.asked].index(f"/{TARGET}/resolve/{REVISION}/{WEIGHTS}")
    assert small < large, "both vocabularies are known before any weights are fetched"
    hub.asked.clear()
    assert install(local_models, Download(), TARGET, DRAFT, seen.append, PLENTY) == installed
    assert hub.asked == []


def test_a_program_may_warn_at_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stopped when the pipe was full, which on Windows holds 4 KB."""
    program = "import sys; sys.stderr.buffer.write(b'\\xe4rger\\n' * 100_000); print('{\"kind\": \"about\"}')"
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda command, **rest: start([sys.executable, "-c", program], **rest))
    answer: list[dict[str, object]] = []
    download = Download()
    asking = threading.Thread(target=lambda: answer.append(download.about(TARGET)), daemon=True)
    asking.start()
    asking.join(30)
    download.cancel()
    assert answer == [{"kind": "about"}]


def test_a_program_that_breaks_says_why_and_not_where() -> None:
    """The first choice's look at the starter answered with a traceback and paths of this machine."""
    with pytest.raises(EngineError) as broken:
        Download().about("starter")  # a program that can be asked for the model and not about it
    assert broken.value.cause.startswith("The download broke off: ")
    for word in ("Traceback", "File ", str(ROOT)):
        assert word not in broken.value.cause


def test_a_broken_connection_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    hub.cut[WEIGHTS] = hub.size(TARGET) // 3
    Download().get(TARGET, tmp_path / "got", lambda _: None)
    assert same(tmp_path / "got" / WEIGHTS, DEMO_MODEL / WEIGHTS)
    assert [wanted for wanted in hub.fetched(WEIGHTS) if wanted], "later requests ask for the rest only"


def test_a_stopped_download_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    download, steps = Download(), []
    hub.stalled[WEIGHTS] = hub.size(TARGET) // 2

    def stop(step: Progress) -> None:
        steps.append(step)
        if step.done > step.total - hub.size(TARGET):  # the first of the weights are there
            download.cancel()

    with pytest.raises(Cancelled):
        download.get(TARGET, tmp_path / "got", stop)
    part = next((tmp_path / "got" / PARTS).glob(f"{WEIGHTS}.*"))
    arrived = part.stat().st_size
    assert 0 < arrived < (DEMO_MODEL / WEIGHTS).stat().st_size
    hub.stalled.clear()
    hub.asked.clear()
    Download().get(TARGET, tmp_path / "got", lambda _: None)
    assert hub.fetched(WEIGHTS) == [f"bytes={arrived}-"]
    assert same(tmp_path / "got" / WEIGHTS, DEMO_MODEL / WEIGHTS)


def test_a_damaged_file_is_fetched_once_more(hub: Hub, tmp_path: Path) -> None:
    hub.damaged[WEIGHTS] = 1
    Download().get(TARGET, tmp_path / "got", lambda _: None)
    assert len(hub.fetched(WEIGHTS)) == 2
    assert same(tmp_path / "got" / WEIGHTS, DEMO_MODEL / WEIGHTS)


def test_a_file_that_is_damaged_twice_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.damaged["config.json"] = 2
    with pytest.raises(ModelError, match="checksum"):
        Download().get(TARGET, tmp_path / "got", lambda _: None)
    assert not (tmp_path / "got" / "config.json").exists()
    assert not (tmp_path / "got" / MARKER).exists()


def test_a_gated_model_says_what_to_accept_and_where(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.gated.add(TARGET)
    with pytest.raises(ModelNotFound, match="accepted its licence") as refused:
        Download().get(TARGET, tmp_path / "got", lambda _: None)
    assert f"{hub.address}/{TARGET}" in refused.value.remedy
    assert "hf auth login" in refused.value.remedy
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(ModelNotFound) as refused:
        Download().get(TARGET, tmp_path / "got", lambda _: None)
    assert "hf auth login" not in refused.value.remedy, "there is a key already; its account lacks the licence"
    monkeypatch.setenv("HF_TOKEN", hub.key)
    Download().get(TARGET, tmp_path / "got", lambda _: None)
    assert (tmp_path / "got" / MARKER).exists()


def test_a_full_disk_is_told_before_anything_is_fetched(hub: Hub, tmp_path: Path) -> None:
    hub.lies[WEIGHTS] = 10**15
    with pytest.raises(ResourceError, match="needs 1000 TB"):
        Download().get(TARGET, tmp_path / "got", lambda _: None)
    assert hub.fetched(WEIGHTS) == []


def test_offline_is_one_sentence_and_quick(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    begin = time.monotonic()
    with pytest.raises(ModelNotFound, match="offline"):
        Download().get(TARGET, tmp_path / "got", lambda _: None)
    assert time.monotonic() - begin < 10


def test_a_silent_hub_is_not_waited_for_long(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    with socket.socket() as deaf:  # takes connections and never answers
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(8)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        begin = time.monotonic()
        with pytest.raises(ModelNotFound, match="offline"):
            Download().get(TARGET, tmp_path / "got", lambda _: None)
        assert time.monotonic() - begin < 15


def test_an_unknown_model_is_named(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no model acme/nothing"):
        Download().get("acme/nothing", tmp_path / "got", lambda _: None)


def test_pickled_weights_are_not_taken(hub: Hub, tmp_path: Path) -> None:
    hub.models["acme/old"] = {"config.json": b"{}", "pytorch_model.bin": b"\x80\x02"}
    with pytest.raises(ModelError, match="no weights in safetensors"):
        Download().get("acme/old", tmp_path / "got", lambda _: None)


def _pickled(hub: Hub) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """A model whose maker offers pickles only, and the same with the weights in safetensors."""
    converted = {**hub.models[TARGET], "pytorch_model.bin": b"\x80\x02"}
    published = {name: content for name, content in converted.items() if name != WEIGHTS}
    hub.models["acme/old"] = published
    return published, converted


def test_the_hubs_own_conversion_of_pickled_weights_is_taken(hub: Hub, tmp_path: Path) -> None:
    published, converted = _pickled(hub)
    stranger = Proposal("somebody", {**converted, WEIGHTS: b"not these"})
    stale = Proposal(CONVERTER, {**converted, WEIGHTS: b"nor these"}, parent="f" * 40)
    hub.proposals["acme/old"] = [stranger, stale, Proposal(CONVERTER, converted)]
    about = Download().about("acme/old")
    assert about["weights"] == len(converted[WEIGHTS])
    hub.proposals["acme/old"] = [hub.proposals["acme/old"][2]]
    Download().get("acme/old", tmp_path / "got", lambda _: None)
    assert same(tmp_path / "got" / WEIGHTS, DEMO_MODEL / WEIGHTS)
    assert not (tmp_path / "got" / "pytorch_model.bin").exists()
    marker = json.loads((tmp_path / "got" / MARKER).read_text())
    assert (marker["revision"], marker["converted"]) == (PROPOSED, "refs/pr/1")
    assert WEIGHTS not in published


@pytest.mark.parametrize(("author", "parent"), [("somebody", REVISION), (CONVERTER, "f" * 40)])
def test_no_other_pull_request_is_taken(hub: Hub, tmp_path: Path, author: str, parent: str) -> None:
    """Neither a stranger's nor one that was made of weights which the maker has replaced since."""
    _, converted = _pickled(hub)
    hub.proposals["acme/old"] = [Proposal(author, converted, parent)]
    with pytest.raises(ModelError, match="no weights in safetensors"):
        Download().get("acme/old", tmp_path / "got", lambda _: None)
    assert hub.fetched(WEIGHTS) == []


def test_a_draft_with_another_vocabulary_is_left_out_before_its_weights(hub: Hub, local_models: LocalModels) -> None:
    tokenizer = json.loads(hub.models[DRAFT]["tokenizer.json"])
    first, second = list(tokenizer["model"]["vocab"])[300:302]
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    hub.models[DRAFT]["tokenizer.json"] = json.dumps(tokenizer).encode()
    installed = install(local_models, Download(), TARGET, DRAFT, lambda _: None, PLENTY)
    assert installed.draft is None
    assert "another vocabulary" in installed.note
    assert [path for _, path, _ in hub.asked if path == f"/{DRAFT}/resolve/{REVISION}/{WEIGHTS}"] == []


def test_a_model_that_cannot_fit_is_refused_before_its_weights(hub: Hub, local_models: LocalModels) -> None:
    with pytest.raises(ResourceError, match="Does not fit"):
        install(
            local_models,
            Download(),
            TARGET,
            None,
            lambda _: None,
            FreeMemory(memory=hub.size(TARGET) // 4, disk=10**12, on_gpu=False),
        )
    assert hub.fetched(WEIGHTS) == []


def test_a_model_of_another_kind_is_refused_before_its_weights(hub: Hub, local_models: LocalModels) -> None:
    hub.models[TARGET]["config.json"] = json.dumps({"model_type": "mamba"}).encode()
    with pytest.raises(ModelError, match="mamba"):
        install(local_models, Download(), TARGET, None, lambda _: None, PLENTY)
    assert hub.fetched(WEIGHTS) == []


def test_about_tells_size_and_settings(hub: Hub) -> None:
    about = Download().about(DRAFT)
    assert about["weights"] == (DEMO_DRAFT / WEIGHTS).stat().st_size
    assert about["config"]["model_type"] == "llama"
    assert about["licence"] == "apache-2.0"


def test_a_download_ends_with_the_program_that_started_it(hub: Hub, tmp_path: Path) -> None:
    hub.stalled[WEIGHTS] = hub.size(TARGET) // 2
    download = Download()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            download.get(TARGET, tmp_path / "got", lambda _: None)
        except BaseException as error:  # noqa: BLE001 - looked at below
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while download._process is None or not hub.fetched(WEIGHTS):
        time.sleep(0.05)
    assert download._process.stdin is not None
    download._process.stdin.close()  # what a program that dies does to it
    thread.join(10)
    assert not thread.is_alive()
    assert failed


def test_a_download_reads_its_parent_only_when_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows importing numpy waited for the end of that read, so that no model could be made."""
    done: list[str] = []
    monkeypatch.setattr(downloads, "wait_for_bytes", lambda pipe: done.append("waits"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=None, read=lambda: done.append("reads")))
    monkeypatch.setattr(os, "_exit", lambda status: done.append("ends"))
    downloads._end_with_parent()
    assert done == ["waits", "reads", "ends"]
