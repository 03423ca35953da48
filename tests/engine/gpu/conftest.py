"""What the tests on the simulated device share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from engine.model import loading
from engine.model.kernels import cuda
from tests.engine.conftest import build_model, build_tokenizer
from tests.engine.gpu.simulated_cuda import why_not


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say why, where there can be no simulated device."""
    reason = why_not()
    for item in items:
        if reason and "tests/engine/gpu" in item.path.as_posix() and "real_gpu" not in item.keywords:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Folders of a target with as many layers as the module's ``LAYERS`` says, and of a draft."""
    folders: list[Path] = []
    for seed, (layers, width) in enumerate(((request.module.LAYERS, 64), (1, 32))):
        folder = tmp_path_factory.mktemp("model")
        build_tokenizer(folder)
        build_model(folder, "llama", seed=seed, layers=layers, width=width, spread=0.1 + 0.1 * seed)
        folders.append(folder)
    return str(folders[0]), str(folders[1])


@pytest.fixture(autouse=True, scope="session")
def little_measured() -> Iterator[None]:
    """Which kernel is the fastest says nothing here, and each is measured for every shape and block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "_PROBE_REPEATS", 1)
        patch.setattr(cuda, "measure", partial(cuda.measure, keys=512))
        patch.setattr(cuda, "MANY_KEYS", 512)
        patch.setattr(cuda, "MANY_ROWS", 512)
        yield


@pytest.fixture(autouse=True, scope="session")
def loaded_once(tiny: Callable[..., str]) -> None:
    """transformers settles some things in the first load of a process; if that one is inside of the simulation, no
    later one has RoPE's frequencies, on a processor neither."""
    loading.load(tiny(), window=64, device=torch.device("cpu"))
