"""The app killed while it downloads a model: nothing half is taken for whole, and the next start goes on with it."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.core.settings import DEMO_DRAFT, DEMO_MODEL
from app.models.hub import MARKER, PARTS
from app.models.local import LocalModels
from app.models.switch import MODELS_FOLDER
from tests.app.models.hub import Hub, start
from tests.faults.conftest import LONG
from tests.faults.driver import App
from tests.nursery import Nursery
from tests.tally import count

CUTS = 20 if LONG else 2
SEED = 20261121
TARGET, DRAFT, WEIGHTS = "acme/target", "acme/draft", "model.safetensors"
_GONE_SECONDS = 5.0
_BLOCK = 1 << 20  # bytes in which a download arrives
_ENOUGH = 8 * _BLOCK  # to be cut in the middle of


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    hub.add(TARGET, DEMO_MODEL)
    hub.add(DRAFT, DEMO_DRAFT)
    server = start(hub)
    yield hub
    hub.go_on.set()
    server.shutdown()
    server.server_close()


def _downloads(folder: Path) -> list[psutil.Process]:
    """Processes that bring something into a folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "app.models.hub" in line and any(str(folder) in word for word in line):
            found.append(process)
    return found


def _nothing_half_has_a_name(folder: Path, served: dict[str, bytes]) -> None:
    here = {file.name: file for file in folder.glob("*") if file.is_file() and not file.name.endswith(".new")}
    for name in here.keys() & served.keys():
        assert here[name].read_bytes() == served[name], f"{name} has its name and is not whole"
    if MARKER in here:
        assert served.keys() <= here.keys()


def _growing(folder: Path) -> int:
    """Bytes of weights that have arrived so far."""
    return sum(part.stat().st_size for part in (folder / PARTS).glob(f"{WEIGHTS}.*"))


def test_cuts_while_a_model_is_downloaded(
    tmp_path: Path, pair: tuple[str, ...], nursery: Nursery | None, hub: Hub
) -> None:
    dice, data = random.Random(SEED), tmp_path / "Données é"
    local_models = LocalModels(data / MODELS_FOLDER)
    folder, size = local_models.own(TARGET), len(hub.models[TARGET][WEIGHTS])
    environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hub"), "HF_TOKEN": ""}

    def began(app: App) -> dict[str, Any]:
        app.until(lambda state: not state["setup"]["stage"])  # the model of the start is there
        answer = app.post("/models/use", {"model": TARGET, "draft": DRAFT})
        assert answer.status == 200, answer.text
        return app.until(lambda state: state["setup"]["stage"] != "looking")

    arrived = 0
    for number in range(1, CUTS + 1):
        if size - arrived < _ENOUGH:
            shutil.rmtree(folder)
            arrived = 0
        # So far does the line hold this time; then it is silent until the cut.
        hub.stalled[WEIGHTS] = arrived + dice.randrange(2 * _BLOCK, (size - arrived) // 2)
        with App(data, pair, environment, nursery=nursery) as app:
            began(app)
            if number % 3:  # in the middle of the weights; else wherever it is just then
                until = time.monotonic() + 30
                while _growing(folder) <= arrived and time.monotonic() < until:
                    time.sleep(0.02)
                time.sleep(dice.uniform(0.0, 0.3))
            else:
                time.sleep(dice.uniform(0.0, 1.5))
            app.kill()
        until = time.monotonic() + _GONE_SECONDS
        while _downloads(folder) and time.monotonic() < until:
            time.sleep(0.05)
        assert not _downloads(folder), "a download outlives the app"
        _nothing_half_has_a_name(folder, hub.models[TARGET])
        _nothing_half_has_a_name(local_models.own(DRAFT), hub.models[DRAFT])
        assert not (folder / MARKER).exists()
        assert _growing(folder) >= arrived, "what had arrived was thrown away"
        arrived = _growing(folder)
        count("kills at random moments survived")
    assert arrived
    hub.stalled.clear()
    hub.asked.clear()
    with App(data, pair, environment, nursery=nursery) as app:
        assert app.state()["book"]["stage"] == "empty"
        began(app)
        app.until(lambda state: not state["setup"]["stage"], 120)
        assert app.read("lamp.txt", b"The lamp was lit at dusk. " * 40)["book"]["stage"] == "ready"
        assert app.ask("Who lit it?").ended
    assert f"bytes={arrived}-" in hub.fetched(WEIGHTS), "it began again"
    assert (folder / WEIGHTS).read_bytes() == hub.models[TARGET][WEIGHTS]
    assert (folder / MARKER).exists()
    assert not (folder / PARTS).exists()
