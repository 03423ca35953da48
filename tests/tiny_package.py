"""A package of one line that can be installed without a network, for tests of the launcher."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_wheel(folder: Path, name: str, version: str = "1.0", code: str = "") -> None:
    """Write a wheel of a package that holds its ``VERSION`` and perhaps a line of code."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", f"VERSION = {version!r}\n{code}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def write_requirements(path: Path, wheels: Path, *lines: str) -> None:
    """A requirements file that looks into ``wheels`` and nowhere else."""
    head = f'--no-index\n--find-links "{wheels.as_posix()}"\n'
    path.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
