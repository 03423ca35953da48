"""Which build of torch is chosen, as a table of drivers and GPUs."""

from __future__ import annotations

import subprocess

import pytest

from app.launcher.torch_build import CPU, CUDA_12, CUDA_13, PLAIN, Gpu, TorchBuild, choose_build, find_gpus


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
