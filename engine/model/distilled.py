"""Loads and saves distilled drafts. A draft has a few layers of its own, and uses the target's embedding and some rows
of the target's head.

The folder of a draft holds ``config.json`` (the target's, with fewer layers) and ``model.safetensors``. The latter
holds the layers, the last norm, the ids of the tokens that the draft can produce, and a few rows of the target's
embedding, by which ``load`` recognises the target. Tokenizer, embedding and head are the target's. Tokens that the
draft cannot produce have probability 0 in its distribution. The answer still follows the target's distribution, because
rejection sampling makes up for tokens that are never proposed.

``engine.distill`` trains drafts and makes such folders.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from engine.errors import ModelError
from engine.model import beside, loading, weights
from engine.model.architectures import DRAFT_HEAD, display_name, is_distilled, is_own_head, parameters_of_block
from engine.model.backends.program import pack
from engine.model.decoder import Decoder
from engine.model.families import FAMILIES
from engine.model.products.card_blocks import CardLinear
from engine.model.products.norms import fuse_norms
from engine.model.products.packed import PackedLinear

_TOKEN_IDS = "head.token_ids"
# A draft is refused if the parameters that its configuration describes are more than this multiple of the parameters in
# its file.
_MAX_DESCRIBED = 2
_REMEDY = "Distil it again: python -m engine.distill."


class PartialHead(nn.Module):
    """A head that computes logits of only some of the tokens of a vocabulary. All other tokens get probability 0.

    Args:
        linear: maps hidden states to logits of these tokens.
        token_ids: (tokens,), the ids of these tokens.
        vocabulary: number of tokens of the whole vocabulary.
    """

    def __init__(self, linear: nn.Module, token_ids: torch.Tensor, vocabulary: int) -> None:
        super().__init__()
        self.linear = linear
        self.register_buffer("token_ids", token_ids, persistent=False)
        self._vocabulary = vocabulary

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        some = self.linear(hidden)
        logits = some.new_full((*some.shape[:-1], self._vocabulary), float("-inf"))
        return logits.index_copy_(-1, self.token_ids, some)


def draft_config(target: Any, layer_indices: Sequence[int], head_tokens: int) -> Any:
    """Make the configuration of a draft whose layers are copied from a target.

    Args:
        target: the target's configuration.
        layer_indices: indices of the copied layers, in order.
        head_tokens: number of tokens that the draft can produce.
    """
    said = target.to_dict()
    count = said["num_hidden_layers"]
    for key, value in said.items():
        if isinstance(value, list) and len(value) == count:
            said[key] = [value[layer] for layer in layer_indices]
    return type(target)(**{**said, "num_hidden_layers": len(layer_indices), DRAFT_HEAD: head_tokens})


def partial_head(target: Any, token_ids: torch.Tensor) -> PartialHead:
    """Make a head for the tokens ``token_ids`` (n,) from a copy of their rows in a target's head. ``target`` is a
    transformers causal LM, whose weights may be packed.
    """
    ids = token_ids.to(target.device)
    head = target.lm_head
    rows = head.rows(ids) if isinstance(head, PackedLinear | CardLinear) else head.weight[ids]
    linear = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(rows.detach().clone(), requires_grad=False)
    return PartialHead(linear, ids, int(target.config.vocab_size))


def save(draft: Any, config: Any, token_ids: torch.Tensor, target: Any, folder: Path) -> None:
    """Write a draft's folder: the draft's own weights in bfloat16, and the rows that identify its target.

    Args:
        draft: the trained model.
        config: the configuration from ``draft_config``.
        token_ids: (tokens,), the tokens that the draft can produce.
        target: the model whose embedding and head the draft shares.
    """
    own = {name: tensor for name, tensor in draft.state_dict().items() if not name.startswith(beside.SHARED)}
    beside.write(folder, config, own, target, {_TOKEN_IDS: token_ids.to("cpu", torch.int32)})


def load(name: str, target: Decoder) -> Decoder:
    """Load a draft that shares its target's embedding and head, with the target's dtype and on its device.

    Raises:
        ModelNotFound, UnsupportedModel: as ``loading.settings_of``.
        ModelError: the weights are missing or damaged, or do not fit the settings.
        VocabularyMismatch: the draft was distilled from another model.
    """
    config, title = loading.settings_of(name, None), display_name(name)
    stored = weights.check_folder(Path(name))
    if config.num_hidden_layers * parameters_of_block(config) > _MAX_DESCRIBED * stored:
        raise ModelError(f"config.json of {title} describes more than its weights hold.", _REMEDY)
    tensors = load_file(Path(name) / weights.SINGLE)
    token_ids, sample = tensors.pop(_TOKEN_IDS, None), tensors.pop(beside.SAMPLE, None)
    if token_ids is None or sample is None or token_ids.shape != (getattr(config, DRAFT_HEAD),):
        raise ModelError(f"The weights of {title} do not say which tokens it knows.", _REMEDY)
    _check_target(title, config, token_ids, sample, target)
    model = beside.skeleton(config, target.dtype, target.device)
    try:
        missing, odd = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:  # the shapes of the stored weights differ from those that the configuration describes
        raise ModelError(f"The weights of {title} are not of the sizes that its config.json says.", _REMEDY) from error
    if wrong := sorted(part for part in (*missing, *odd) if not part.startswith(beside.SHARED)):
        raise ModelError(f"The weights of {title} lack {wrong[0]}, or should not have it.", _REMEDY)
    model.requires_grad_(False)
    model.lm_head = partial_head(target.model, token_ids.long())
    family = FAMILIES[config.model_type]
    if target.device.type == "cuda":
        fuse_norms(model, family)
    model.eval()
    pack(model, family)
    # The target's embedding is set after ``pack``, because it may be packed already.
    model.set_input_embeddings(target.model.get_input_embeddings())
    return Decoder(model, title, int(config.max_position_embeddings), target.dtype)


def check_alone(name: str, config: Any) -> None:
    """Refuse to load a distilled draft as a target.

    Raises:
        ModelError: the model is a distilled draft.
    """
    if is_distilled(config) or is_own_head(config):
        raise ModelError(
            f"{display_name(name)} is a draft without an embedding of its own, and cannot answer by itself.",
            "Name it with --draft, beside the model that it was distilled from.",
        )


def _check_target(title: str, config: Any, token_ids: torch.Tensor, sample: torch.Tensor, target: Decoder) -> None:
    beside.check_beside(title, config, sample, target)
    if not 0 <= int(token_ids.min()) <= int(token_ids.max()) < config.vocab_size:
        raise ModelError(f"The weights of {title} name tokens that {target.name} does not have.", _REMEDY)
