"""``pip install`` of this folder: a wheel is built, installed into an empty environment, and used as a person uses it.

The packages that it asks for come from the environment that runs the tests; nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import httpx
import pytest
import tomllib

from app.web.auth import opening_address
from engine.version import VERSION
from tests.processes import free_port, started

SOURCES = ("app", "engine", "assets", "launch.py", "pyproject.toml", "requirements.txt", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
LIMIT_S = 120

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    """Built from a copy, since a build leaves its folders beside the sources."""
    for package in ("pip", "setuptools"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed here, and without a network it cannot be had")
    folder = tmp_path_factory.mktemp("sources")
    unwanted = shutil.ignore_patterns("__pycache__", "screenshots", "measurements")
    for name in SOURCES:
        if (checkout / name).is_dir():
            shutil.copytree(checkout / name, folder / name, ignore=unwanted)
        else:
            shutil.copy(checkout / name, folder)
    built = tmp_path_factory.mktemp("wheel")
    run([*PIP, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", str(built), str(folder)])
    return next(built.glob("*.whl"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    """An environment with the wheel in it; only the packages that it asks for are lent."""
    folder = tmp_path_factory.mktemp("a place é") / "env"
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    run([*PIP, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)])
    lent = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages(folder) / "lent.pth").write_text("\n".join(lent), encoding="utf-8")
    return folder


def site_packages(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages" if os.name != "nt" else "Lib/site-packages"))


def program(environment: Path) -> str:
    return str(environment / ("Scripts/trifold.exe" if os.name == "nt" else "bin/trifold"))


def run(command: list[str], status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=LIMIT_S, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_the_wheel_takes_one_name_and_holds_what_runs(wheel: Path, checkout: Path) -> None:
    assert wheel.name.startswith(f"trifold-{VERSION}-")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].removesuffix(".dist-info").split("-")[0] for name in names} == {"trifold"}
    page = [*checkout.glob("app/web/page/*"), *checkout.glob("assets/style/*"), *checkout.glob("assets/icons/*")]
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    left_out = project["tool"]["setuptools"]["exclude-package-data"]["trifold"]  # what measures and trains
    outside = {file for pattern in left_out for file in checkout.glob(pattern)}
    assert outside
    assert not [file for file in outside if f"trifold/{file.relative_to(checkout).as_posix()}" in names]
    code = [file for side in ("app", "engine") for file in (checkout / side).rglob("*.py") if file not in outside]
    kept = (
        "abilities.json",
        "adapter.safetensors",
        "build.py",
        "evaluation.json",
        "recipe/__init__.py",
        "recipe/adapter.py",
    )
    starter = [checkout / "assets" / "starter" / name for name in kept]  # what makes it where there is no checkout
    catalogue = checkout / "app" / "models" / "catalogue.json"
    typed = checkout / "engine" / "py.typed"
    for file in [checkout / "launch.py", *code, *page, *starter, catalogue, typed]:
        assert f"trifold/{file.relative_to(checkout).as_posix()}" in names
    assert not [name for name in names if "tests/" in name or name.endswith("requirements.txt")]


def test_what_it_says_of_itself_is_true_of_an_installed_program(place: Path) -> None:
    told = run([program(place), "--help"]).stdout
    assert told.startswith("usage: trifold [options]")
    assert run([program(place), "--version"]).stdout == f"Trifold {VERSION}\n"
    python = Path(program(place)).with_name("python.exe" if os.name == "nt" else "python")
    library = "from trifold.engine import Document, Engine, EngineConfig, __version__; print(__version__)"
    assert run([str(python), "-c", library]).stdout.strip() == VERSION
    assert "launch.py" not in told
    assert "TRIFOLD_HOME" not in told  # there is no environment of its own to be put anywhere
    assert "checkout" in run([program(place), "test"], status=2).stderr
    assert "There is no option '--repair'" in run([program(place), "--repair"], status=2).stderr


def test_it_looks_reads_and_answers(place: Path, data_folder: Path) -> None:
    before = files(place)
    assert str(data_folder) in run([program(place), "doctor"]).stdout
    sample = next((site_packages(place) / "trifold" / "assets" / "sample").glob("*.pdf"))
    question = ["--pages", "3", "--max-tokens", "8", "Continue the story."]
    assert run([program(place), "ask", str(sample), *question]).stdout.strip()
    assert any(data_folder.iterdir()), "what it keeps is in the person's folder"
    assert files(place) == before


def test_the_page_with_all_its_scripts(place: Path, checkout: Path, tmp_path: Path) -> None:
    elsewhere, data, port = tmp_path / "elsewhere", tmp_path / "data", free_port()
    elsewhere.mkdir()
    data.mkdir()
    command = [program(place), "--no-browser", "--port", str(port)]
    base = f"http://127.0.0.1:{port}"
    with (
        started(command, data, port, elsewhere),
        httpx.Client(base_url=base, trust_env=False, timeout=30, follow_redirects=True) as browser,
    ):
        browser.headers["origin"] = base
        browser.get(opening_address(data, port))
        page = browser.get("/").text
        wanted = set(re.findall(r'"(/ui/[\w.-]+)"', page))
        assert {"/ui/main.js", "/ui/trifold.css", "/ui/trifold.svg"} <= wanted
        wanted |= {f"/ui/{script.name}" for script in checkout.glob("app/web/page/*.js")}
        for address in wanted:
            name = address.rpartition("/")[2]
            known = next(file for folder in ("app/web/page", "assets") for file in (checkout / folder).rglob(name))
            assert browser.get(address).content == known.read_bytes()
        assert browser.post("/books/sample", json={}).status_code == 200


def files(environment: Path) -> set[Path]:
    """All that is installed, but for what Python itself writes."""
    found = (site_packages(environment) / "trifold").rglob("*")
    return {file for file in found if file.suffix != ".pyc" and file.name != "__pycache__"}
