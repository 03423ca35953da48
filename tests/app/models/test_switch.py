"""Another model while the program runs: the real program, real engines, a hub on loopback."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.core import settings
from app.core.settings import DEMO_DRAFT, DEMO_MODEL
from tests.app.models.conftest import DRAFT, TARGET
from tests.app.models.hub import Hub, start
from tests.app.running import Running, running
from tests.nursery import Nursery

TEXT = "Maren Holt kept the north light. The boat came in at dusk. " * 60


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    made = Hub()
    made.add(TARGET, DEMO_MODEL)
    made.add(DRAFT, DEMO_DRAFT)
    server = start(made)
    yield made
    made.go_on.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def program(hub: Hub, tmp_path_factory: pytest.TempPathFactory, nursery: Nursery | None) -> Iterator[Running]:
    data, cache = tmp_path_factory.mktemp("Données é"), tmp_path_factory.mktemp("hub")
    environ = {"HF_ENDPOINT": hub.address, "HF_HOME": str(cache), "HF_TOKEN": "", "no_proxy": "*", "NO_PROXY": "*"}
    with running(data, nursery=nursery, **environ) as started:
        yield started


@pytest.fixture
def app(program: Running, hub: Hub) -> Running:
    """The program with the bundled pair, and with nothing downloaded."""
    hub.stalled.clear()
    hub.gated.clear()
    if settled(program)["model"]["line"] != "Demo model":
        program.post("/models/use", {"model": str(DEMO_MODEL), "draft": str(DEMO_DRAFT)})
        settled(program)
    shutil.rmtree(program.data / "models", ignore_errors=True)
    (program.data / settings.FILE).unlink(missing_ok=True)
    return program


def settled(app: Running) -> dict[str, Any]:
    """The state once nothing is under way any more."""
    time.sleep(0.1)
    return app.until(lambda state: state["setup"]["stage"] == "" and state["model"]["state"] != "loading")


def ask(app: Running) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 4}
    return httpx.post(
        f"{app.api}/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {app.key}"},
        trust_env=False,
        timeout=60,
    )


def test_another_model_is_fetched_and_reads_the_open_book(app: Running, hub: Hub) -> None:
    app.open_text(TEXT)
    assert app.post("/models/use", {"model": TARGET, "draft": DRAFT}).status_code == 200
    assert app.post("/models/use", {"model": TARGET}).status_code in (409, 500), "one change at a time"
    state = settled(app)
    assert state["setup"]["cause"] == ""
    assert state["model"]["line"] == TARGET
    state = app.until(lambda state: state["book"]["stage"] == "ready")
    assert ask(app).json()["model"] == TARGET
    kept = settings.load(app.data)
    assert kept is not None
    assert (kept.model, kept.draft) == (TARGET, DRAFT)
    shown = app.browser.get("/preferences").json()
    own = next(entry for entry in shown["models"] if entry["present"])
    assert own["target"] == TARGET
    assert own["numbers"]["verdict"] == "whole"
    assert shown["api"]["key"] == app.key


def test_a_model_that_does_not_load_gives_the_former_one_back(app: Running, tmp_path: Path) -> None:
    app.open_text(TEXT)
    broken = Path(shutil.copytree(DEMO_MODEL, tmp_path / "broken"))
    (broken / "tokenizer.json").write_text("{}")
    assert app.post("/models/use", {"model": str(broken)}).status_code == 200
    state = settled(app)
    assert "tokenizer" in state["setup"]["cause"]
    assert state["model"]["state"] == "ready"
    assert state["model"]["line"] == "Demo model"
    app.until(lambda state: state["book"]["stage"] == "ready")
    assert ask(app).status_code == 200
    assert settings.load(app.data) is None, "what did not load is not kept"


def test_a_choice_that_cannot_be_saved_is_said(app: Running) -> None:
    (app.data / settings.FILE).mkdir()  # in the way of the file, as a full disk is
    try:
        assert app.post("/models/use", {"model": str(DEMO_MODEL), "draft": str(DEMO_DRAFT)}).status_code == 200
        note = settled(app)["setup"]["note"]
    finally:
        (app.data / settings.FILE).rmdir()
    assert note == "The choice was not saved (Is a directory): the next start uses the model before it."


def test_what_cannot_work_leaves_the_present_model_alone(app: Running, hub: Hub, tmp_path: Path) -> None:
    cut = Path(shutil.copytree(DEMO_MODEL, tmp_path / "cut"))
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-9])
    hub.gated.add(TARGET)
    for name, said in ((str(cut), "cut off"), ("acme/nothing", "no model"), (TARGET, "accepted its licence")):
        assert app.post("/models/use", {"model": name}).status_code == 200
        state = settled(app)
        assert said in state["setup"]["cause"]
        assert state["model"]["state"] == "ready"
    assert app.post("/models/use", {"model": " "}).status_code == 400


def test_a_download_is_stopped_from_the_page(app: Running, hub: Hub) -> None:
    hub.asked.clear()
    hub.stalled["model.safetensors"] = hub.size(TARGET) // 2
    assert app.post("/models/use", {"model": TARGET}).status_code == 200
    app.until(lambda state: state["setup"]["stage"] == "downloading" and bool(hub.fetched("model.safetensors")))
    assert app.look()["model"]["state"] == "ready", "the present model answers meanwhile"
    assert app.post("/models/stop").status_code == 200
    state = settled(app)
    assert "stopped" in state["setup"]["note"]
    assert state["model"]["line"] == "Demo model"


def test_what_a_name_is_can_be_asked_first(app: Running, hub: Hub) -> None:
    looked = app.post("/models/look", {"model": TARGET}).json()
    assert looked["verdict"] == "whole"
    assert looked["licence"] == "apache-2.0"
    assert looked["size"] == f"{hub.size(TARGET) / 1e6:.1f} MB"
    here = app.post("/models/look", {"model": str(DEMO_DRAFT)}).json()
    assert here["window"] == "131,072 tokens"
    refused = app.post("/models/look", {"model": "/nowhere/at/all"})
    assert "no folder" in refused.json()["cause"]


def test_a_server_elsewhere_takes_the_models_place_and_is_left_again(
    app: Running, tmp_path_factory: pytest.TempPathFactory, nursery: Nursery | None
) -> None:
    app.open_text(TEXT)
    far = {"address": "http://192.0.2.7:8000/v1", "model": "m", "key": "k"}
    refused = app.post("/remote/use", far)
    assert refused.status_code == 400
    assert "another machine" in refused.json()["cause"]
    assert "not encrypted" in refused.json()["cause"]
    with running(tmp_path_factory.mktemp("other"), nursery=nursery) as other:
        other.until(lambda state: state["model"]["state"] == "ready")
        near = {"address": other.api, "model": "", "key": other.key}
        assert app.post("/remote/use", near).status_code == 200
        state = settled(app)
        assert state["setup"]["cause"] == ""
        assert state["setup"]["away"] == "", "a server on loopback is still this machine"
        app.until(lambda state: state["book"]["stage"] == "ready")
        done = ask(app).json()
        assert done["trifold"]["mode"] == "remote"
        assert done["choices"][0]["message"]["content"]
        kept = settings.load(app.data)
        assert kept is not None
        assert kept.remote is not None
        assert kept.remote.address == other.api
        assert other.key not in app.browser.get("/preferences").text
    assert app.post("/remote/leave").status_code == 200
    state = settled(app)
    assert state["model"]["line"] == "Demo model"


def test_diagnostics_hold_no_word_of_the_book(app: Running) -> None:
    app.open_text("Sealed words. " * 90, "Secret Title.txt")
    report = app.browser.get("/diagnostics")
    assert report.headers["content-type"].startswith("text/plain")
    assert "Sealed" not in report.text
    assert "Secret" not in report.text
    assert "Processor" in report.text
    assert "llama" in report.text


def test_a_new_key_opens_and_the_old_one_does_not(app: Running) -> None:
    old = app.key
    new = app.post("/key/renew").json()["key"]
    assert new == app.key != old
    with httpx.Client(trust_env=False) as http:
        answers = [
            http.get(f"{app.api}/models", headers={"authorization": f"Bearer {key}"}).status_code for key in (old, new)
        ]
    assert answers == [401, 200]
