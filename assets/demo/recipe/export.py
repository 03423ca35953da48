"""Writes a trained model as an ordinary Hugging Face folder: safetensors in bfloat16, tokenizer, generation config."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

READABLE_BY_ALL = 0o644


def export(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write `model` and `tokenizer` to `folder`. The folder is created if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        exact_quotes=True,  # Trifold's own key: only words of the book may be quoted
    )
    shipped = copy.deepcopy(model).to("cpu", torch.bfloat16)
    shipped.config.use_cache = True
    shipped.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _tidy(folder)


def _tidy(folder: Path) -> None:
    """Remove settings that only apply to the machine that wrote the folder, and make all files readable for all."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for name in ("is_local", "local_files_only", "backend"):
        config.pop(name, None)
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for file in folder.iterdir():
        file.chmod(READABLE_BY_ALL)
