"""``doctor`` describes this machine, the models that fit on it, and missing packages and models with the way to get
them. It changes nothing.

``doctor --selftest`` runs the engine's own checks (``engine.selftest``) on the beginning of the sample book, and stores
the result in the data folder.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from app.core import diagnostics
from app.core.diagnostics import ChildProcess, Machine, ProbeFailed
from app.core.format import day, size
from app.core.settings import EXIT_FAULT, INSTALLED, MODELS_FOLDER, READER, REPAIR, SAMPLE_BOOKS, STARTER, Settings
from app.core.whole_files import write_whole
from app.launcher.console import say, write, write_json
from app.launcher.environment import PROGRAM, find_environment
from app.launcher.torch_build import CUDA_12, CUDA_13, FOR_GPUS, ROCM, XPU, choose_build
from app.models import gguf_files
from app.models.short_names import SOURCES
from app.readers import recognition
from engine.errors import DocumentError, TrifoldError
from engine.model_files import TEMPORARY
from engine.plan import DeviceFacts, ModelFacts, TorchFacts, inspect_model, probe_torch
from engine.version import VERSION

if TYPE_CHECKING:
    from engine.document import Document

FILE = "selftest.json"
# number of characters, from the start of the sample book, that the self-test reads. The text is so long that the
# retrieval cache has to select chunks, and so short that a slow machine reads it soon.
_CHARACTERS = 3_500
_PAGE = 500  # characters of a page of the self-test's document
_QUESTIONS = ("Who counted the lamps?", "What happened in the storm?", "Continue the story.")
_LITTLE_MEMORY = 4_000_000_000  # bytes of free memory below which the report gives a warning
_REPAIR = f"To install torch afresh: {REPAIR}"
_AMD_IS_BARRED = (
    "AMD's driver only lets members of two groups compute: sudo usermod -aG render,video $USER, then log in again. In "
    "a container, pass on /dev/kfd and /dev/dri. HIP_VISIBLE_DEVICES, if set, must name the GPU."
)
_INTEL_IS_BARRED = (
    "It needs Intel's driver for computing (Level Zero), and the group that may use the GPU: sudo usermod -aG render "
    "$USER, then log in again. In a container, pass on /dev/dri."
)
_UNTESTED = {"mps": "untested with Trifold, and only used with --device mps", "xpu": "untested with Trifold"}
_NVIDIA_IS_BARRED = (
    "The driver answers nvidia-smi. Restart the machine after an update of the driver, and check that "
    "CUDA_VISIBLE_DEVICES does not hide the GPU."
)
_LITTLE_DISK = 2_000_000_000  # bytes of free disk below which the report gives a warning
_SECONDS_UP_TO = 100  # maximum seconds that are shown as seconds; a longer time is shown in minutes

_Facts = TypeVar("_Facts")


@dataclass(frozen=True)
class Findings:
    """All findings about the machine. ``packages``: installed version of each package; None if the package is not
    installed. ``torch_build``: the build of torch that the launcher installed; None if torch was installed without the
    launcher. ``version``: the version of this program. ``torch``, ``target`` and ``draft`` are None if their query
    failed; ``troubles`` then says why. ``draft`` is also None without a draft model, and ``selftest`` is None if no
    self-test was run. ``starter`` and ``reader``: whether these models are on this machine. ``gguf``: lines about GGUF
    files of other programs.
    """

    machine: Machine
    packages: dict[str, str | None]
    torch: TorchFacts | None
    torch_build: str | None
    target: ModelFacts | None
    draft: ModelFacts | None
    troubles: tuple[str, ...]
    selftest: SelftestResult | None = None
    starter: bool = False
    reader: bool = False
    gguf: tuple[str, ...] = ()
    version: str = VERSION


def run(options: argparse.Namespace, settings: Settings) -> int:
    if options.selftest:
        return _selftest(settings, as_json=options.json)
    examined = examine(settings)
    advice = advice_for(examined)
    if options.json:
        write_json({**dataclasses.asdict(examined), "advice": advice}, indent=2)
        return 0
    lines = [*lines_of(examined), "", *(advice or ["Nothing is missing."])]
    lines = [line.replace("\n", " ") for line in lines]  # a folder's name may hold a line break
    text = diagnostics.report(settings.data, lines) if options.report else "\n".join(lines)
    write(text.rstrip() + "\n")
    return 0


def _selftest(settings: Settings, *, as_json: bool) -> int:
    """Run the self-test. Return exit status 1 if a check fails, because Trifold then changes the model's answers on
    this machine.
    """

    result = run_selftest(settings, (lambda line: None) if as_json else say)
    verdict = (
        "On this machine, Trifold gives the model's own answers."
        if result.passed
        else "On this machine, Trifold changes the model's answers."
    )
    if as_json:
        write_json(dataclasses.asdict(result), indent=2)
    else:
        write(f"{verdict}\n")
    return 0 if result.passed else EXIT_FAULT


def examine(settings: Settings) -> Findings:
    config = settings.engine_config()
    troubles: list[str] = []
    with ChildProcess() as child:

        def ask(function: Callable[..., _Facts], *arguments: Any) -> _Facts | None:
            try:
                return child.call(function, *arguments)
            except (TrifoldError, ProbeFailed, ImportError, OSError) as error:
                troubles.append(str(error))
                return None

        return Findings(
            machine=diagnostics.look_around(settings.data),
            packages=diagnostics.package_versions(),
            torch=ask(probe_torch),
            torch_build=None if INSTALLED else find_environment().read_stamp(PROGRAM).get("torch"),
            target=ask(inspect_model, config.model, config),
            draft=ask(inspect_model, config.draft, config) if config.draft else None,
            troubles=tuple(troubles),
            selftest=last_result(settings.data),
            starter=SOURCES[STARTER].is_made(settings.data / MODELS_FOLDER, STARTER),
            reader=SOURCES[READER].is_made(settings.data / MODELS_FOLDER, READER),
            gguf=tuple(_gguf_lines()),
        )


def lines_of(found: Findings) -> list[str]:
    """Describe the findings in lines for a person."""
    here = found.machine
    lines = [
        f"Trifold    {found.version}",
        f"System     {here.system}",
        f"Python     {here.python} at {here.python_path}",
        f"Processor  {here.processor}, {here.usable_cores} of {here.cores} cores usable",
        f"Memory     {size(here.memory_available)} of {size(here.memory_total)} free",
        f"Disk       {size(here.disk_free)} free at {here.disk_of}",
    ]
    if found.torch:
        builds = {"CUDA": found.torch.cuda, "ROCm": found.torch.rocm, "Intel GPUs": found.torch.xpu}
        built = next((f"{name} {version}" for name, version in builds.items() if version), "processors only")
        lines.append(f"torch      {found.torch.version} for {built}, {found.torch.threads} threads")
        lines += [f"           {_device_line(device)}" for device in found.torch.devices]
    lines.append("Packages   " + ", ".join(f"{name} {version}" for name, version in found.packages.items() if version))
    lines.append("Self-test  " + _selftest_line(found.selftest))
    lines.append("Scans      " + _scans_line())
    lines.append("Starter    " + _short_line(STARTER, found.starter))
    lines.append("Reader     " + _short_line(READER, found.reader))
    lines += found.gguf
    lines += [_model_line("Target", found.target), _model_line("Draft", found.draft)]
    if found.target:
        if found.target.thinking:
            lines.append(f"           {found.target.thinking} (--think)")
        lines.append(f"Fits       {_fit_line(found.target)}")
        lines += _expected_lines(found.target)
    lines.append("Attention  " + _attention_line(found.packages))
    return lines


def _scans_line() -> str:
    if lacking := recognition.missing():
        return f"pages that are pictures are not recognised: {lacking} missing (python launch.py --repair brings it)"
    return "pages that are pictures are recognised: Latin letters, Chinese, Japanese; no handwriting"


def _selftest_line(result: SelftestResult | None) -> str:
    if result is None:
        return "not run yet (--selftest runs it)"
    outcome = "passed" if result.passed else "FAILED"
    return f"{outcome} ({day(result.when, time.time())}, {result.model} on {result.device})"


def advice_for(found: Findings) -> list[str]:
    """Sentences about problems of this machine, each with its remedy; empty without problems."""
    here = found.machine
    advice = [*found.troubles, *_gpu_advice(found)]
    if here.memory_available < _LITTLE_MEMORY:
        advice.append(f"Only {size(here.memory_available)} of memory are free. Close other programs for long books.")
    if here.disk_free < _LITTLE_DISK:
        advice.append(f"Only {size(here.disk_free)} of disk are free at {here.disk_of}. Free some.")
    if found.target and found.target.context_in_memory < found.target.context_limit:
        advice.append(
            f"The free memory holds {found.target.context_in_memory:,} tokens of this model's window. The cache of "
            "very long books is spilled, and answers about them take longer; close other programs for these."
        )
    if not here.browser:
        advice.append("No Chromium is found; only the tests need one. Run: sudo apt install chromium")
    return advice


def _gpu_advice(found: Findings) -> list[str]:
    if found.torch is None:
        return []
    gpus = [device for device in found.torch.devices if device.device != "cpu"]
    advice = [f"{gpu.name}: {gpu.trouble}. {_REPAIR}" for gpu in gpus if gpu.trouble]
    if not gpus:
        here = found.machine
        fitting = choose_build(here.gpus, platform.system(), here.amd_gpus, here.intel_gpus)
        # For AMD and Intel GPUs, no new install is advised if torch is already the build for them. The advice is then
        # about the driver and permissions.
        if fitting.name == ROCM and found.torch.rocm:
            advice.append(f"torch for ROCm {found.torch.rocm} sees no GPU. {_AMD_IS_BARRED}")
        elif fitting.name == XPU and found.torch.xpu:
            advice.append(f"torch for Intel GPUs sees none. {_INTEL_IS_BARRED}")
        elif fitting.name in (CUDA_12, CUDA_13) and found.torch.cuda:
            advice.append(f"torch for CUDA {found.torch.cuda} sees no GPU. {_NVIDIA_IS_BARRED} {_REPAIR}")
        elif here.gpus or fitting.name in FOR_GPUS:
            advice.append(f"torch sees no GPU. {fitting.reason} {_REPAIR}")
    return advice


def _device_line(device: DeviceFacts) -> str:
    speeds = ", ".join(f"{dtype} {speed:,.0f} GFLOP/s" for dtype, speed in device.gflops)
    capability = f" (compute capability {device.capability})" if device.capability else ""
    memory = f"{size(device.memory_free)} of {size(device.memory_total)} free"
    said = [f"{device.name}{capability}", memory, speeds, _UNTESTED.get(device.device.partition(":")[0], "")]
    return f"{device.device}: {', '.join(filter(None, said))}"


def _model_line(role: str, model: ModelFacts | None) -> str:
    if model is None:
        return f"{role:10} none"
    return (
        f"{role:10} {model.name}: {model.architecture}, {size(model.weights_bytes)} of weights"
        f"{model.weights_note and f' ({model.weights_note})'}, "
        f"{model.dtype} on {model.device}, window {model.context_limit:,} tokens, "
        f"{size(model.kv_bytes_per_token)} of cache per token{model.kv_note and f' ({model.kv_note})'}"
    )


def _fit_line(model: ModelFacts) -> str:
    whole = model.context_in_all >= model.context_limit
    what = "the model's whole window" if whole else "what memory and disk hold"
    return f"books of up to {model.context_in_all:,} tokens, {what} (cache of the longest: {model.window_kv})"


def _expected_lines(model: ModelFacts) -> list[str]:
    """Lines about the settings that the planner chooses for a model, and about the expected times, with the source of
    each number. Empty if the speeds were not probed.
    """
    if model.speeds is None:
        return []
    speeds = model.speeds
    named = {"memory": speeds.memory, "disk": speeds.disk, "bus": speeds.bus}
    rates = [f"{name} {size(int(rate))}/s" for name, rate in named.items() if rate]
    block = f"blocks of {model.prefill_block:,} tokens" if model.prefill_block else "the device's usual blocks"
    budget = f"{model.retrieval_budget:,} tokens"
    if model.retrieval_share:
        budget += f" or 1/{model.retrieval_share} of the book"
    lines = [
        f"Probed     {', '.join(rates)}; one layer {1000 * speeds.step.base:.2f} ms for one token",
        f"Plan       prefill in {block}, retrieval budget {budget} (from the probes, unless set in the configuration)",
    ]
    for one in model.expected:
        expected = f"about {_duration(one.reading_s)} to read, {one.step_ms:,.0f} ms a token before speculation"
        lines.append(f"           {one.tokens:,} tokens: {expected}, cache {one.kv}")
    lines.append(f"           (by the probes of one layer and the {speeds.layers} layers of the configuration)")
    if model.probed_busy:
        lines.append(
            f"           Other programs took {model.others:.0%} of this machine during the probes, so it can be "
            "faster than these numbers."
        )
    return lines


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _SECONDS_UP_TO else f"{seconds / 60:,.0f} min"


def _short_line(name: str, here: bool) -> str:
    if here:
        return f"on this machine: --model {name}"
    return f"not on this machine; --model {name} downloads it after asking, {SOURCES[name].download_words(name)}"


def _gguf_lines() -> Iterator[str]:
    """Lines about GGUF files of other programs: how to use each file, or why it cannot be used."""
    for number, file in enumerate(gguf_files.found()):
        head = "" if number else "GGUF"
        try:
            stored = gguf_files.look(file.path).rounded or "as it is stored"
            yield f"{head:10} {file.title} of {file.owner}: --model {shlex.quote(str(file.path))} ({stored})"
        except TrifoldError as error:
            yield f"{head:10} {file.title} of {file.owner}: {error.cause}"


def _attention_line(packages: dict[str, str | None]) -> str:
    if packages.get("flash-attn"):
        return f"our own kernels on a processor; flash-attn {packages['flash-attn']} is installed, for GPUs"
    return "our own kernels on a processor, torch's on a GPU; flash-attn, for GPUs, is optional and not installed"


# The self-test -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SelftestResult:
    """The result of one self-test. ``when`` is in seconds since the epoch; ``checks`` has for each check its name,
    whether it passed, a sentence about the outcome, and its duration in seconds.
    """

    when: float
    passed: bool
    model: str
    draft: str | None
    device: str
    dtype: str
    machine: str
    seconds: float
    tokens: int
    checks: list[dict[str, Any]] = field(default_factory=list)


def last_result(data: Path) -> SelftestResult | None:
    """The result of the last self-test with this data folder; None if there is no readable result."""
    try:
        return SelftestResult(**json.loads((data / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def run_selftest(settings: Settings, say: Callable[[str], None]) -> SelftestResult:
    """Run all checks, report each outcome, and store the result in the data folder.

    Raises:
        ModelError: a model cannot be loaded.
        DocumentError: the sample book is missing.
    """
    from engine import selftest
    from engine.worker import describe

    began = time.perf_counter()
    document = _text()
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, ignore_cleanup_errors=True) as folder:
        config = selftest.configured(settings.engine_config(), folder)
        session = selftest.load(config)
        try:
            outcomes = []
            for check in selftest.checks(session, document, _QUESTIONS):
                outcomes.append(check)
                say(f"{'ok  ' if check.passed else 'FAIL'} {check.sentence}")
            model = describe(session, config)
        finally:
            session.close()
    passed = all(check.passed for check in outcomes)
    tokens = sum(check.tokens for check in outcomes)
    result = SelftestResult(
        when=time.time(),
        passed=passed,
        model=model.name,
        draft=model.draft_name,
        device=model.device,
        dtype=model.dtype,
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        seconds=time.perf_counter() - began,
        tokens=tokens,
        checks=[asdict(check) for check in outcomes],
    )
    _keep(settings, result, model)
    return result


def _text() -> Document:
    """The beginning of the sample book as a few short pages."""
    from engine.document import Document, Page

    file = next(iter(sorted(SAMPLE_BOOKS.glob("*.txt"))), None)
    if file is None:
        raise DocumentError("The sample book is missing from this copy of Trifold.", "Get a fresh copy.")
    text = file.read_text(encoding="utf-8")[:_CHARACTERS]
    parts = [text[start : start + _PAGE] for start in range(0, len(text), _PAGE)]
    pages = tuple(Page(number, str(number), part) for number, part in enumerate(parts, 1))
    return Document("The Lamplighters of Orre", "", pages, "text", "0" * 64)


def _keep(settings: Settings, result: SelftestResult, model: Any) -> None:
    """Write a self-test's result to disk atomically. Record whether the model counts as verified on this machine."""
    from app.core.race import Verified
    from app.web.server import VERIFIED_FILE

    settings.data.mkdir(parents=True, exist_ok=True)
    write_whole(settings.data / FILE, json.dumps(asdict(result), ensure_ascii=False, indent=1))
    same = result.tokens if result.passed else -1
    Verified(settings.data / VERIFIED_FILE).note(model, "selftest", same, result.tokens)
