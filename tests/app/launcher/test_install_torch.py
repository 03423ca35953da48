"""The right build of torch gets installed: pip against an index on this machine that serves a torch of one line."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.launcher import install, torch_build
from app.launcher import install as pip
from app.launcher.console import LaunchError
from app.launcher.environment import Environment, PackageSet
from app.launcher.torch_build import CPU, CUDA_13, PLAIN, ROCM, Gpu
from tests.tiny_package import make_wheel, write_requirements

DEAD_SITE = "http://127.0.0.1:9"


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return


def serve_torch(root: Path, build: str, code: str = "") -> None:
    folder = root / build / "torch"
    folder.mkdir(parents=True, exist_ok=True)
    make_wheel(folder, "torch", f"1.0+{build}", code)
    link = f'<a href="torch-1.0%2B{build}-py3-none-any.whl">torch-1.0+{build}-py3-none-any.whl</a>'
    (folder / "index.html").write_text(link, encoding="utf-8")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A package index with a CPU build of torch; its page for CUDA 13.0 is empty."""
    serve_torch(tmp_path / "site", CPU)
    empty = tmp_path / "site" / CUDA_13 / "torch"
    empty.mkdir(parents=True)
    (empty / "index.html").write_text("<!doctype html>", encoding="utf-8")
    handler = functools.partial(QuietHandler, directory=str(tmp_path / "site"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    """An environment to be made, whose requirements pin a torch that the usual index has too."""
    monkeypatch.setattr(pip, "brings_pip", lambda: False)
    monkeypatch.setattr(install.platform, "system", lambda: "Linux")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # no index of this machine, local or not, may help
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    wheels = home / "wheels"
    home.mkdir()
    make_wheel(wheels, "torch", "1.0")
    write_requirements(home / "requirements.txt", wheels, "torch==1.0")
    return Environment(home, PackageSet("program", home / "requirements.txt"))


def installed_torch(environment: Environment) -> str:
    text = next(environment.folder.rglob("torch/__init__.py")).read_text(encoding="utf-8")
    return text.split("'")[1]


@pytest.mark.parametrize(
    ("gpus", "build", "version", "words"),
    [
        ([], CPU, "1.0+cpu", "build of torch for processors is enough"),
        ([Gpu("NVIDIA Test", 580, 9.0)], PLAIN, "1.0", "usual index has instead"),  # its build is not there
        ([Gpu("NVIDIA Test", 470, 9.0)], PLAIN, "1.0", "too old"),
    ],
)
def test_build_for_this_machine_or_else_the_usual_one(
    gpus: list[Gpu],
    build: str,
    version: str,
    words: str,
    site: str,
    fresh: Environment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch_build, "INDEX_URL", site)
    monkeypatch.setattr(torch_build, "find_gpus", lambda: gpus)
    monkeypatch.setattr(torch_build, "find_amd_gpus", list)
    monkeypatch.setattr(torch_build, "find_intel_gpus", list)
    install.ensure(fresh, [fresh.program])
    assert words in capsys.readouterr().err
    assert fresh.read_stamp(fresh.program)["torch"] == build
    assert installed_torch(fresh) == version


def test_only_modules_that_are_imported_are_compiled(fresh: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip would compile all of them for half a minute; what the program imports is compiled once, in the install."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("TRIFOLD_TORCH", PLAIN)
    wheels = fresh.program.requirements.parent / "wheels"
    make_wheel(wheels, "unused", "1.0")
    write_requirements(fresh.program.requirements, wheels, "torch==1.0", "unused==1.0")
    install.ensure(fresh, [fresh.program])
    assert list(fresh.folder.rglob("torch/__pycache__/*.pyc"))
    assert list(fresh.folder.rglob("unused/__init__.py"))
    assert not list(fresh.folder.rglob("unused/__pycache__/*.pyc"))


def test_site_that_does_not_answer_costs_a_sentence(
    fresh: Environment, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_build, "INDEX_URL", DEAD_SITE)
    monkeypatch.setenv("TRIFOLD_TORCH", CUDA_13)
    install.ensure(fresh, [fresh.program])
    said = capsys.readouterr().err
    assert f"TRIFOLD_TORCH asks for the build of torch named {CUDA_13}" in said
    assert "does not answer" in said
    assert installed_torch(fresh) == "1.0"


@pytest.mark.parametrize(("build", "needed"), [(CPU, 4), (CUDA_13, 12), (ROCM, 25)])
def test_full_disk_is_said_before_anything_is_made(
    build: str, needed: int, site: str, fresh: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the build: one for a GPU takes several times as much."""
    monkeypatch.setattr(torch_build, "INDEX_URL", site)
    monkeypatch.setenv("TRIFOLD_TORCH", build)
    (tmp_path / "site" / build / "torch").mkdir(parents=True, exist_ok=True)  # its index answers
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=needed * 10**9 - 1))
    with pytest.raises(LaunchError, match=f"needs {needed} GB"):
        install.ensure(fresh, [fresh.program])
    assert not fresh.folder.exists()


def test_the_usual_build_is_large_on_linux_alone() -> None:
    sizes = [torch_build.disk_bytes(PLAIN, system) for system in ("Linux", "Windows", "Darwin")]
    assert sizes == [12 * 10**9, 4 * 10**9, 4 * 10**9]


def test_torch_that_does_not_start_is_not_taken_for_installed(
    fresh: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIFOLD_TORCH", PLAIN)
    make_wheel(fresh.home / "wheels", "torch", "1.0", "import a_library_that_is_not_here")
    with pytest.raises(install.LaunchError, match="does not start"):
        install.ensure(fresh, [fresh.program])
    assert not fresh.is_ready(fresh.program)


def test_torch_that_does_not_see_the_gpu_is_said(
    site: str,
    tmp_path: Path,
    fresh: Environment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(torch_build, "INDEX_URL", site)
    monkeypatch.setenv("TRIFOLD_TORCH", CUDA_13)
    code = "class cuda:\n    is_available = staticmethod(lambda: False)"
    serve_torch(tmp_path / "site", CUDA_13, code)
    install.ensure(fresh, [fresh.program])
    assert "not on the GPU" in capsys.readouterr().err
    assert fresh.read_stamp(fresh.program)["torch"] == CUDA_13


def test_a_path_too_long_for_windows_is_said_before_the_download(
    fresh: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = Path.touch

    def short_alone(path: Path) -> None:
        if len(str(path)) >= len(str(fresh.notes)) + 200:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        touch(path)

    monkeypatch.setattr(install.platform, "system", lambda: "Windows")
    monkeypatch.setattr(Path, "touch", short_alone)
    monkeypatch.setenv("TRIFOLD_TORCH", PLAIN)
    with pytest.raises(LaunchError, match="too long for Windows"):
        install.ensure(fresh, [fresh.program])
    assert not fresh.folder.exists()
