"""Which build of torch is chosen, as a table of drivers and GPUs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.launcher import install, torch_build
from app.launcher.torch_build import (
    CPU,
    CUDA_12,
    CUDA_13,
    PLAIN,
    ROCM,
    XPU,
    Gpu,
    TorchBuild,
    choose_build,
    find_amd_gpus,
    find_gpus,
    find_intel_gpus,
)


@pytest.mark.parametrize(
    ("driver", "capability", "build"),
    [
        (470, 8.6, PLAIN),  # before CUDA 12
        (525, 8.6, CUDA_12),
        (535, 9.0, CUDA_12),
        (535, 5.2, CUDA_12),
        (575, 8.9, CUDA_12),
        (579, 12.0, PLAIN),  # Blackwell needs a CUDA 13 driver here
        (580, 12.0, CUDA_13),
        (580, 9.0, CUDA_13),
        (580, 7.5, CUDA_13),
        (580, 7.0, CUDA_12),  # Volta and Pascal are in the CUDA 12 build only
        (580, 6.1, CUDA_12),
        (595, 10.0, CUDA_13),
        (580, 3.7, PLAIN),  # Kepler is in no build
    ],
)
@pytest.mark.parametrize("system", ["Linux", "Windows"])
def test_build_fits_driver_and_gpu(driver: int, capability: float, build: str, system: str) -> None:
    chosen = choose_build([Gpu("NVIDIA Test", driver, capability)], system)
    assert chosen.name == build
    assert "NVIDIA Test" in chosen.reason
    assert str(driver) in chosen.reason


@pytest.mark.parametrize(("system", "build"), [("Linux", CPU), ("Windows", PLAIN), ("Darwin", PLAIN)])
def test_without_gpu_the_small_build_is_enough(system: str, build: str) -> None:
    assert choose_build([], system).name == build


@pytest.mark.parametrize(
    ("gpus", "amd", "system", "build"),
    [
        ([], ["gfx1100"], "Linux", ROCM),
        ([], ["gfx1036", "gfx90a"], "Linux", ROCM),  # the one inside of the processor comes first
        ([], ["gfx1036"], "Linux", CPU),
        ([], ["gfx1100"], "Windows", PLAIN),
        ([Gpu("NVIDIA Test", 580, 8.9)], ["gfx1100"], "Linux", CUDA_13),
    ],
)
def test_an_amd_gpu_gets_the_build_for_rocm(gpus: list[Gpu], amd: list[str], system: str, build: str) -> None:
    chosen = choose_build(gpus, system, amd)
    assert chosen.name == build
    assert ("untested" in chosen.reason) == (build == ROCM)


@pytest.mark.parametrize(
    ("gpus", "amd", "system", "build"),
    [
        ([], [], "Linux", XPU),
        ([], ["gfx1100"], "Linux", ROCM),
        ([Gpu("NVIDIA Test", 580, 8.9)], [], "Linux", CUDA_13),
        ([], [], "Darwin", PLAIN),
    ],
)
def test_an_intel_gpu_gets_its_own_build(gpus: list[Gpu], amd: list[str], system: str, build: str) -> None:
    chosen = choose_build(gpus, system, amd, ["0x56a0"])
    assert chosen.name == build
    if build == XPU:
        assert chosen.reason == "An Intel GPU (0x56a0) is here: torch's build for those, untested with Trifold."
        assert chosen.pip_arguments("torch==2.13.0")[1:] == ["--index-url", "https://download.pytorch.org/whl/xpu"]


def test_what_is_seen_becomes_what_pip_is_told() -> None:
    told = {
        name: choose_build(gpus, "Linux", amd).pip_arguments("torch==2.13.0")
        for name, gpus, amd in (
            ("NVIDIA", [Gpu("NVIDIA Test", 580, 8.9)], []),
            ("AMD", [], ["gfx1201"]),
            ("none", [], []),
            ("too old", [Gpu("NVIDIA Test", 470, 8.6)], []),
        )
    }
    index = "https://download.pytorch.org/whl"
    assert told == {
        "NVIDIA": ["torch==2.13.0", "--index-url", f"{index}/cu130"],
        "AMD": ["torch==2.13.0", "--index-url", f"{index}/rocm7.2"],
        "none": ["torch==2.13.0", "--index-url", f"{index}/cpu"],
        "too old": ["torch==2.13.0"],
    }


def test_amd_gpus_are_read_from_the_driver(tmp_path: Path) -> None:
    """A processor, three cards, and a node that cannot be read."""
    for node, version in enumerate((0, 110000, 90010, 100306)):
        (tmp_path / str(node)).mkdir()
        text = f"cpu_cores_count {16 * (version == 0)}\ngfx_target_version {version}\nvendor_id 4098\n"
        (tmp_path / str(node) / "properties").write_text(text, encoding="ascii")
    (tmp_path / "4" / "properties").mkdir(parents=True)
    assert find_amd_gpus(tmp_path) == ["gfx1100", "gfx90a", "gfx1036"]
    assert find_amd_gpus(tmp_path / "nothing") == []


def test_intel_gpus_are_read_from_the_bus(tmp_path: Path) -> None:
    """Arc A770 and B580; one inside of a processor, a network card, another maker's GPU, and a folder without files."""
    devices = (
        *(("0x8086", "0x030000", "0x56a0"), ("0x8086", "0x030000", "0xe20b"), ("0x8086", "0x030000", "0x7d55")),
        *(("0x8086", "0x020000", "0x56a0"), ("0x10de", "0x030000", "0xe20b")),
    )
    for place, (maker, kind, number) in enumerate(devices):
        folder = tmp_path / f"0000:0{place}:00.0"
        folder.mkdir()
        for name, text in (("vendor", maker), ("class", kind), ("device", number)):
            (folder / name).write_text(f"{text}\n", encoding="ascii")
    (tmp_path / "0000:09:00.0").mkdir()
    assert find_intel_gpus(tmp_path) == ["0x56a0", "0xe20b"]
    assert find_intel_gpus(tmp_path / "nothing") == []


def test_most_capable_gpu_decides() -> None:
    assert choose_build([Gpu("old", 580, 6.1), Gpu("new", 580, 8.9)], "Linux").name == CUDA_13


def test_too_old_driver_for_a_new_gpu_says_which_driver() -> None:
    assert "driver 580 or later" in choose_build([Gpu("RTX", 570, 12.0)], "Windows").reason


def test_plain_build_has_no_index_of_its_own() -> None:
    assert TorchBuild(PLAIN, "").index_url is None
    assert TorchBuild(CUDA_13, "").index_url == "https://download.pytorch.org/whl/cu130"


def test_nvidia_smi_output_is_read() -> None:
    output = "NVIDIA H200, 580.159.04, 9.0\nNVIDIA GeForce GTX 1080, with comma, 580.1, 6.1\n"
    assert find_gpus(lambda _: output) == [
        Gpu("NVIDIA H200", 580, 9.0),
        Gpu("NVIDIA GeForce GTX 1080, with comma", 580, 6.1),
    ]


@pytest.mark.parametrize("output", ["", "No devices were found\n", "[Unknown Error], , \n"])
def test_unusable_output_is_no_gpu(output: str) -> None:
    assert find_gpus(lambda _: output) == []


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 20)])
def test_missing_or_hanging_nvidia_smi_is_no_gpu(error: Exception) -> None:
    def fail(_: object) -> str:
        raise error

    assert find_gpus(fail) == []


@pytest.mark.parametrize(
    ("system", "machine", "macos", "largest", "words"),
    [
        ("Darwin", "x86_64", "14.6", sys.maxsize, "Intel processor"),
        ("Darwin", "arm64", "13.7", sys.maxsize, "needs macOS 14"),
        ("Windows", "arm64", "", sys.maxsize, "64-bit Intel and AMD"),
        ("Windows", "win32", "", 2**31 - 1, "32-bit Python"),
        ("Darwin", "arm64", "14.0", sys.maxsize, None),
        ("Windows", "amd64", "", sys.maxsize, None),
        ("Linux", "x86_64", "", sys.maxsize, None),
    ],
)
def test_a_machine_without_torch_is_told_why(
    system: str, machine: str, macos: str, largest: int, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another Python version, as pip's message suggests, would not help."""
    missing = torch_build.why_missing(system, machine, macos, largest)
    assert (missing is None) == (words is None)
    monkeypatch.setattr(torch_build, "why_missing", lambda *_: missing)
    for said in (
        "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: 2.2.2)\n"
        "ERROR: No matching distribution found for torch==2.13.0",
        "ERROR: Cannot install torch==2.13.0 because these package versions have conflicting dependencies.\n"
        "ERROR: ResolutionImpossible: for help visit https://pip.pypa.io",
    ):
        assert (words or "another supported Python") in str(install.diagnose(said, Path("the.log")))
