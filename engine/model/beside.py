"""Defines what drafts without an embedding of their own have in common: they use the target's, and recognise the target
by a few rows of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from engine.errors import VocabularyMismatch
from engine.model import attention, weights
from engine.model_files import SETTINGS

if TYPE_CHECKING:
    from engine.model.decoder import Decoder

SHARED = ("model.embed_tokens.", "lm_head.")
"""Prefixes of the names of weights that a draft shares with its target."""
SAMPLE = "target.embedding_rows"
"""Name of the rows of the target's embedding in a draft's weights."""
# Number of rows of the target's embedding that a draft stores, evenly spaced over the vocabulary.
_SAMPLED_ROWS = 16
# Maximum difference between the stored rows and the loaded target's rows, as a share of the largest value. Beyond it
# the draft is refused, because it was distilled from another model. Rows of the same model can differ by rounding,
# because weights are stored and loaded in several dtypes.
_TOLERANCE = 0.01
_READABLE = 0o644


def skeleton(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """Make a transformers causal LM with a draft's configuration. The caller then loads or copies the weights, and
    replaces embedding and head, which are placeholders.
    """
    from transformers import AutoModelForCausalLM

    attention.register()
    nobody: dict[str, Any] = {"vocab_size": 1, "tie_word_embeddings": False}
    nobody |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(
            type(config)(**{**config.to_dict(), **nobody}),
            dtype=dtype,
            attn_implementation=attention.IMPLEMENTATION,
        )
    model.config.vocab_size = config.vocab_size
    return model


def check_beside(title: str, config: Any, sample: torch.Tensor, target: Decoder) -> None:
    """Refuse a draft of another target.

    Args:
        sample: the rows of the target's embedding that the draft stores (``sample_of``).

    Raises:
        VocabularyMismatch: the draft was made beside another model.
    """
    same = config.vocab_size == target.vocabulary and config.hidden_size == target.config.hidden_size
    if same:
        own = sample_of(target.model).float().cpu()
        same = own.shape == sample.shape and bool((own - sample.float()).abs().max() <= _TOLERANCE * own.abs().max())
    if not same:
        raise VocabularyMismatch(
            f"The draft {title} was distilled beside another model than {target.name}.",
            "Distil one from this model (python -m engine.distill), or --draft none.",
        )


def sample_of(target: Any) -> torch.Tensor:
    """Look up a few evenly spaced rows of a target's embedding. Its embedding module dequantizes them if necessary."""
    ids = torch.linspace(0, target.config.vocab_size - 1, _SAMPLED_ROWS, device=target.device).long()
    with torch.inference_mode():
        rows: torch.Tensor = target.get_input_embeddings()(ids)
    return rows


def write(
    folder: Path,
    config: Any,
    own: Mapping[str, torch.Tensor],
    target: Any,
    told: Mapping[str, torch.Tensor] | None = None,
) -> None:
    """Write the folder of a draft of the model ``target``: its settings, its own weights in bfloat16, and other tensors
    as they are (``told``).
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = {**own, SAMPLE: sample_of(target)}
    halves = {name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in stored.items()}
    save_file({**halves, **(told or {})}, folder / weights.SINGLE, metadata={"format": "pt"})
    (folder / weights.SINGLE).chmod(_READABLE)
    settings = json.dumps(config.to_dict(), indent=1, sort_keys=True)
    (folder / SETTINGS).write_text(settings + "\n", encoding="utf-8")
