"""Chooses the build of torch for this machine, from the builds of the pinned version. Installs nothing.

torch 2.13 has these builds for GPUs:

- CUDA 12.6: for compute capability 5.0 to 9.0 and driver 525 or later.
- CUDA 13.0: for compute capability 7.5 and higher and driver 580 or later.
- ROCm 7.2: for AMD GPUs, on Linux only. It is used through ``torch.cuda``.
- xpu: for Intel GPUs. They are detected only on Linux, and only if they are not part of a processor. In other cases the
  user has to name the build (``TRIFOLD_TORCH=xpu``).
- The usual build for macOS supports Apple's GPU.

Trifold has not been tested on GPUs of AMD, Intel or Apple. Sources: the CUDA support matrix in PyTorch's RELEASE.md,
and NVIDIA, "CUDA Compatibility", minor version compatibility.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

INDEX_URL = "https://download.pytorch.org/whl"
PLAIN = "plain"  # name of the usual build: the one that pip's default package index offers for the pinned version
CPU = "cpu"
CUDA_12 = "cu126"
CUDA_13 = "cu130"
ROCM = "rocm7.2"
XPU = "xpu"
FOR_GPUS = (CUDA_12, CUDA_13, ROCM, XPU)

MIN_DRIVER_CUDA_12 = 525
MIN_DRIVER_CUDA_13 = 580
MIN_CAPABILITY_CUDA_12 = 5.0
MIN_CAPABILITY_CUDA_13 = 7.5
MAX_CAPABILITY_CUDA_12 = 9.0
MIN_MACOS = 14
_LARGEST_32_BIT = 2**31 - 1
_PYTHON = "https://www.python.org"

AMD_TARGETS = (
    "gfx900",
    "gfx906",
    "gfx908",
    "gfx90a",
    "gfx942",
    "gfx950",
    "gfx1030",
    "gfx1100",
    "gfx1101",
    "gfx1102",
    "gfx1150",
    "gfx1151",
    "gfx1200",
    "gfx1201",
)
"""The AMD GPU architectures for which the ROCm build has kernels. Most GPUs that are part of a processor are not
supported.
"""

AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
"""The folder in which Linux lists the devices of AMD's kernel driver. It exists even if ROCm is not installed."""

PCI_DEVICES = Path("/sys/bus/pci/devices")
"""The folder in which Linux lists all PCI devices, even those without a driver."""

_INTEL, _DISPLAY = "0x8086", "0x03"  # PCI vendor id of Intel, and first digits of the PCI class of display controllers
# Matches PCI device numbers of Intel GPUs with their own memory: Arc A, Flex, Arc B and Max, as listed in torch's
# "Getting Started on Intel GPU".
_INTEL_TARGETS = re.compile("0x(56[9abc]|e2|0bd)")

_GB = 1_000_000_000
_DISK_BYTES = {CPU: 4 * _GB, CUDA_12: 12 * _GB, CUDA_13: 12 * _GB, ROCM: 25 * _GB, XPU: 12 * _GB}
"""Bytes of disk that the environment needs, keyed by the build of torch. The downloads that pip keeps are included.

- CPU: measured on Linux, 1.8 GB installed and as much for downloads.
- CUDA: 6 GB installed and 3 GB of downloads for torch's libraries.
- ROCm: up to 19 GB installed, because it has kernels for every architecture.
- Intel: assumed to equal CUDA.

The figures for GPUs are reports of others, not measurements.
"""

_NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader")
_NVIDIA_SMI_TIMEOUT_S = 20


class Gpu(NamedTuple):
    """An NVIDIA GPU. ``driver`` is the driver's major version, ``capability`` the compute capability, such as 8.9."""

    name: str
    driver: int
    capability: float


class TorchBuild(NamedTuple):
    """A build of torch. ``name`` is ``PLAIN`` or the name of an index under ``INDEX_URL``. ``reason`` explains the
    choice to the user.
    """

    name: str
    reason: str

    @property
    def index_url(self) -> str | None:
        return None if self.name == PLAIN else f"{INDEX_URL}/{self.name}"

    def pip_arguments(self, pinned: str) -> list[str]:
        """pip's arguments to install ``pinned``, such as ``torch==2.13.0``, from the build's index."""
        return [pinned] if self.index_url is None else [pinned, "--index-url", self.index_url]


def choose_build(gpus: Sequence[Gpu], system: str, amd: Sequence[str] = (), intel: Sequence[str] = ()) -> TorchBuild:
    """Choose the build of torch for this machine's most capable GPU.

    Args:
        gpus: result of ``find_gpus``.
        system: ``platform.system()``.
        amd: result of ``find_amd_gpus``; used on Linux if there is no NVIDIA GPU.
        intel: result of ``find_intel_gpus``; used on Linux if there is neither an NVIDIA GPU nor an AMD GPU that torch
            has a build for.
    """
    fitting = next((target for target in amd if target in AMD_TARGETS), None)
    if not gpus and fitting and system == "Linux":
        return TorchBuild(ROCM, f"An AMD GPU ({fitting}) is here: the ROCm 7.2 build of torch, untested with Trifold.")
    if not gpus and intel and system == "Linux":
        return TorchBuild(XPU, f"An Intel GPU ({intel[0]}) is here: torch's build for those, untested with Trifold.")
    if not gpus:
        # the usual build for Linux contains gigabytes of CUDA libraries, which are useless without an NVIDIA GPU
        if system == "Linux":
            return TorchBuild(
                CPU, "No GPU is seen that torch has a build for, so the build of torch for processors is enough."
            )
        return TorchBuild(PLAIN, "No NVIDIA GPU answers here, so the usual build of torch is right.")
    gpu = max(gpus, key=lambda each: each.capability)
    what = f"{gpu.name} (compute capability {gpu.capability}) with driver {gpu.driver}"
    if gpu.driver < MIN_DRIVER_CUDA_12 or gpu.capability < MIN_CAPABILITY_CUDA_12:
        need = f"capability {MIN_CAPABILITY_CUDA_12} and driver {MIN_DRIVER_CUDA_12}"
        return TorchBuild(PLAIN, f"{what} is too old for this torch, which needs {need}: the processor does the work.")
    if gpu.capability >= MIN_CAPABILITY_CUDA_13 and gpu.driver >= MIN_DRIVER_CUDA_13:
        return TorchBuild(CUDA_13, f"{what} runs the CUDA 13.0 build of torch.")
    if gpu.capability <= MAX_CAPABILITY_CUDA_12:
        return TorchBuild(CUDA_12, f"{what} runs the CUDA 12.6 build of torch.")
    return TorchBuild(
        PLAIN, f"{what}: this GPU needs driver {MIN_DRIVER_CUDA_13} or later. Update the driver, then run --repair."
    )


class Missing(NamedTuple):
    """Why no build of torch fits a machine. ``cause`` and ``remedy`` are sentences for the user."""

    cause: str
    remedy: str


def why_missing(system: str, machine: str, macos: str, largest: int) -> Missing | None:
    """Say why torch has no build for this machine or its Python; None if torch has one.

    Args:
        system: ``platform.system()``.
        machine: what this Python was built for, such as "x86_64" or "arm64".
        macos: ``platform.mac_ver()[0]``.
        largest: ``sys.maxsize``.
    """
    if largest <= _LARGEST_32_BIT:
        return Missing("This is a 32-bit Python, and torch needs a 64-bit one.", f"Install that from {_PYTHON}.")
    if system == "Darwin" and machine == "x86_64":
        return Missing(
            "torch has no builds for Macs with an Intel processor any more.",
            f"If this Mac has an Apple processor, its Python is one for Intel: install Python 3.13 from {_PYTHON}.",
        )
    if system == "Darwin" and macos.partition(".")[0].isdecimal() and int(macos.partition(".")[0]) < MIN_MACOS:
        return Missing(f"torch needs macOS {MIN_MACOS} or later, and this is macOS {macos}.", "Update macOS.")
    if system == "Windows" and machine == "arm64":
        return Missing(
            "torch has no build for this Python, which is one for ARM processors.",
            f"Install Python 3.13 for 64-bit Intel and AMD processors from {_PYTHON}; Windows runs it here too.",
        )
    return None


def disk_bytes(build: str, system: str) -> int:
    """Bytes of disk that a new environment with this build of torch needs.

    Args:
        build: the build's name.
        system: ``platform.system()``. On Linux the usual build is for CUDA, elsewhere for CPUs.
    """
    usual = CUDA_13 if system == "Linux" else CPU
    return _DISK_BYTES.get(usual if build == PLAIN else build, _DISK_BYTES[CUDA_13])


def find_gpus(run: Callable[[Sequence[str]], str] | None = None) -> list[Gpu]:
    """Find the NVIDIA GPUs of this machine with ``nvidia-smi``. Return an empty list if that program is missing or
    fails.
    """
    try:
        answer = (run or _run)(_NVIDIA_SMI)
    except (OSError, subprocess.SubprocessError):
        return []
    return [gpu for gpu in map(_parse_gpu, answer.splitlines()) if gpu]


def find_amd_gpus(nodes: Path = AMD_NODES) -> list[str]:
    """Find the AMD GPUs that can compute under Linux. Return their architectures, such as "gfx1100"."""
    return [target for node in sorted(nodes.glob("*/properties")) for target in _amd_target(node)]


def _amd_target(properties: Path) -> Iterator[str]:
    with suppress(OSError, ValueError):
        for line in properties.read_text(encoding="ascii").splitlines():
            name, _, value = line.partition(" ")
            if name == "gfx_target_version" and int(value):  # the kernel also lists CPUs, with the value 0
                major, minor, step = int(value) // 10000, int(value) // 100 % 100, int(value) % 100
                yield f"gfx{major}{minor:x}{step:x}"


def find_intel_gpus(devices: Path = PCI_DEVICES) -> list[str]:
    """Find the Intel GPUs that torch has a build for and that have their own memory. Return their PCI device numbers,
    such as "0x56a0".
    """
    return [number for device in sorted(devices.glob("*")) for number in _intel_number(device)]


def _intel_number(device: Path) -> Iterator[str]:
    with suppress(OSError, ValueError):
        of, kind, number = (
            (device / name).read_text(encoding="ascii").strip() for name in ("vendor", "class", "device")
        )
        if of == _INTEL and kind.startswith(_DISPLAY) and _INTEL_TARGETS.match(number):
            yield number


def _parse_gpu(line: str) -> Gpu | None:
    fields = [field.strip() for field in line.rsplit(",", 2)]
    try:
        name, driver, capability = fields
        return Gpu(name, int(driver.split(".")[0]), float(capability))
    except ValueError:
        return None


def _run(command: Sequence[str]) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", timeout=_NVIDIA_SMI_TIMEOUT_S, check=True
    ).stdout
