"""A GGUF file becomes a folder that the engine loads: its rounded weights are expanded, tensor by tensor.

``transformers`` knows which tensor is which and what its vocabulary says; ``gguf`` expands the blocks. What is written
is safetensors in bfloat16, so nothing else here knows of GGUF. Whether the file is whole and of a kind that can be read
is judged beforehand, by who has looked at its header (``app.models.gguf``). Needs memory for a part of the weights.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine import foreign
from engine.errors import ModelError
from engine.model import weights
from engine.model.real_model import write_settings
from engine.model_files import INDEX

SHARD_BYTES = 2_000_000_000
"""Of weights in one file, and in memory at a time."""

ROPE_FACTORS = "rope_freqs.weight"
"""The tensor in which the stretching of Llama 3 lies, which its settings leave out."""

_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_LLAMA_3_FACTORS = (8.0, 32.0)  # of 3.1 and 3.3, and of 3.2
_CLOSE = 1e-3  # of factors that were rounded to 32 bits
_TIED = "lm_head.weight"


def convert(gguf: Path, out: Path, changes: Mapping[str, Any], readme: str, show: Callable[[int, int], None]) -> None:
    """Write the model of a file into an empty folder.

    Args:
        changes: settings that the file's header has and transformers leaves out.
        show: called with the bytes of the file that have been expanded, of all.

    Raises:
        ModelError: its weights are not those of its kind, or its vocabulary cannot be read.
    """
    import torch
    from gguf import GGUFReader, dequantize
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    with tempfile.TemporaryDirectory(dir=out) as alone:  # beside it may lie files that mean other things
        weights.link(gguf, Path(alone) / "model.gguf")
        foreign.save_gguf_tokenizer(Path(alone) / "model.gguf", out)
        config = AutoConfig.from_pretrained(alone, gguf_file="model.gguf")
    config.update(dict(changes))
    reader = GGUFReader(gguf)
    for tensor in reader.tensors:
        if tensor.name == ROPE_FACTORS:
            config.rope_parameters = {**config.rope_parameters, **llama_3_rope(config, tensor.data.tolist())}
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    processor = TENSOR_PROCESSORS.get(_architecture(reader), TensorProcessor)(config=config.to_dict())
    names = get_gguf_hf_weights_map(model, processor)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        wanted.pop(_TIED, None)
    shards = _Shards(out)
    done, total = 0, sum(int(tensor.n_bytes) for tensor in reader.tensors)
    for tensor in reader.tensors:
        done += int(tensor.n_bytes)
        if tensor.name == ROPE_FACTORS:
            continue
        values = dequantize(tensor.data, tensor.tensor_type)
        found = processor.process(values, tensor.name, tensor_key_mapping=names, parsed_parameters={})
        name = names.get(found.name, found.name)
        if wanted.pop(name, None) != tuple(found.weights.shape):
            raise ModelError(
                f"{gguf.name} holds {tensor.name}, which its kind of model has not.", "Choose another file."
            )
        shards.add(name, torch.from_numpy(found.weights.copy()).to(torch.bfloat16))
        show(done, total)
    if wanted:
        raise ModelError(f"{gguf.name} lacks {min(wanted)}.", "Choose another file.")
    shards.finish()
    write_settings(model, out, readme)


def llama_3_rope(config: Any, factors: list[float]) -> dict[str, Any]:
    """The settings that stretch RoPE by these factors, one for each pair of a head's values.

    Raises:
        ModelError: they are not those of Llama 3.
    """
    theta, pairs = float(config.rope_parameters["rope_theta"]), len(factors)
    for factor in _LLAMA_3_FACTORS:
        usual = [_llama_3_factor(theta ** (pair / pairs), factor) for pair in range(pairs)]
        if all(math.isclose(one, other, rel_tol=_CLOSE) for one, other in zip(factors, usual, strict=True)):
            return {"rope_type": "llama3", "factor": factor, **_LLAMA_3}
    raise ModelError("Its positions are stretched in a way that is not known here.", "Choose it as safetensors.")


def _llama_3_factor(inverse: float, factor: float) -> float:
    """By what a wave of ``2 pi inverse`` tokens is stretched (transformers' ``_compute_llama3_parameters``)."""
    original, low, high = _LLAMA_3["original_max_position_embeddings"], 1.0, _LLAMA_3["high_freq_factor"]
    length = 2 * math.pi * inverse
    if length < original / high:
        return 1.0
    if length > original / low:
        return factor
    smooth = (original / length - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)


def _architecture(reader: Any) -> str:
    return bytes(reader.fields["general.architecture"].parts[-1]).decode("utf-8")


class _Shards:
    """Files of weights in a folder, each written when it is full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, Any] = {}
        self._bytes = self._total = 0
        self._files: list[tuple[Path, list[str]]] = []

    def add(self, name: str, tensor: Any) -> None:
        size = tensor.numel() * tensor.element_size()
        if self._held and self._bytes + size > SHARD_BYTES:
            self._write()
        self._held[name] = tensor
        self._bytes += size
        self._total += size

    def finish(self) -> None:
        """The last file, their usual names, and where each tensor lies."""
        self._write()
        if len(self._files) == 1:
            self._files[0][0].rename(self._folder / weights.SINGLE)
            return
        places: dict[str, str] = {}
        for number, (file, names) in enumerate(self._files, 1):
            name = f"model-{number:05}-of-{len(self._files):05}.safetensors"
            file.rename(self._folder / name)
            places |= dict.fromkeys(names, name)
        index = {"metadata": {"total_size": self._total}, "weight_map": places}
        (self._folder / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")

    def _write(self) -> None:
        from safetensors.torch import save_file

        file = self._folder / f"part-{len(self._files)}.safetensors"
        save_file(self._held, file, metadata={"format": "pt"})
        self._files.append((file, list(self._held)))
        self._held, self._bytes = {}, 0
