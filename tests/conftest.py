"""What all tests share: a data folder that is thrown away, no network for the libraries, and where things are."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.app.running import Running
    from tests.nursery import Nursery

CHECKOUT = Path(__file__).resolve().parent.parent

# Libraries read these when they are imported, which the tests' next conftest.py does.
os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", GRADIO_ANALYTICS_ENABLED="False")
# Every process that the tests start would compile our files again, and pytest their assertions.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if not Path("/dev/nvidia0").exists():  # Triton's interpreter stands in for a GPU
    os.environ["TRITON_INTERPRET"] = "1"
gc.disable()  # until all is collected: what is imported is no garbage, and looking for some takes an eighth of the time
# Tiny tensors gain nothing from threads. Where processes share the cores, an operation takes ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Registered before all others, so called after them: the interpreter would take apart all that was imported.
    atexit.register(os._exit, 0)


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        # Who starts the others: what one of them compiles is there for all, and for the programs that they start.
        folder = os.environ["TRIFOLD_KERNELS"] = tempfile.mkdtemp(prefix="trifold-kernels-")
        config.add_cleanup(partial(shutil.rmtree, folder, ignore_errors=True))  # also where no session begins: --help
    # A shell's background job ignores Ctrl-C, and so would every program that it starts and wants to stop.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New folders. Pytest looks through all that it has made to name another: 3 ms in a run of thousands of tests."""
    place = tmp_path_factory.mktemp("data")
    return (place / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def data_folder(data_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees or touches what the person who runs it keeps."""
    folder = next(data_folders)
    folder.mkdir(0o700)
    monkeypatch.setenv("TRIFOLD_DATA", str(folder))
    return folder


@pytest.fixture(scope="session")
def checkout() -> Path:
    return CHECKOUT


@pytest.fixture(scope="session")
def shared() -> Path:
    """Books and documents beside the checkout, for tests on many real files."""
    folder = CHECKOUT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the folder ../shared with real books and documents is not here")
    return folder


@pytest.fixture(scope="session", autouse=True)
def forked_parsers() -> Iterator[Any]:
    """Children that parse documents are forked, where processes can be; gives the product's own way of starting one."""
    from engine import sandbox

    if not sys.platform.startswith("linux"):
        yield sandbox._start
        return
    from tests import parsers

    forks: list[parsers.Parsers] = []

    def start(module: str) -> Any:
        if module not in parsers.FORKS:
            return real(module)
        if not forks:
            forks.append(parsers.Parsers())
        return forks[0].start(module, sandbox.environment())

    real, sandbox._start = sandbox._start, start
    yield real
    sandbox._start = real
    for one in forks:
        one.close()


@pytest.fixture
def real_children(forked_parsers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children start as the product starts them."""
    from engine import sandbox

    monkeypatch.setattr(sandbox, "_start", forked_parsers)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery | None]:
    """Starts the program within a second; None where processes do not fork."""
    if os.name == "nt":
        yield None
        return
    from tests.nursery import Nursery

    made = Nursery()
    yield made
    made.close()


@pytest.fixture(scope="session")
def endless_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Options that name a pair of models whose answers have no end."""
    from tests.endless import endless_demo

    return endless_demo(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def endless_app(
    tmp_path_factory: pytest.TempPathFactory, endless_pair: tuple[str, ...], nursery: Nursery | None
) -> Iterator[Running]:
    """The running program with that pair: one for all tests of protocols and of stopping."""
    from tests.app.running import running

    with running(tmp_path_factory.mktemp("endless"), *endless_pair, nursery=nursery) as started:
        yield started


def pytest_sessionstart(session: pytest.Session) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests import spreading

        spreading.import_share(session.config.args)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        from tests import spreading

        items.sort(key=lambda item: spreading.rank(item.nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests import spreading

    return spreading.scheduler(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """All tests and modules stay to the end: whoever looks for garbage need not look through them. A second otherwise,
    each time that a session or a probe collects."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes hands over what it has counted."""
    from tests import tally

    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tried"] = tally.counts()
    else:
        gc.unfreeze()  # libraries look at their end for what was not given back


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    from tests import tally

    tally.add(getattr(node, "workeroutput", {}).get("tried", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    from tests import tally

    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed at first: {report.nodeid}")
        terminalreporter.write(f"{report.longreprtext}\n")
    if tally.lines():
        terminalreporter.section("tried and survived")
        terminalreporter.write("\n".join(tally.lines()) + "\n")
