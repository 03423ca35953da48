"""Loads and runs a model's own draft head, which predicts the token after the next one (multi-token prediction, MTP).

The head is one decoder layer. Its input at position t is the target's hidden state of token t, after the target's last
norm, and the embedding of token t + 1:

    x = projection([norm(embedding of token t + 1); norm(hidden state t)])
    logits of token t + 2 = target's head(norm(layer(x)))

The normed output takes the place of the next hidden state if the head proposes further tokens (DeepSeek-V3, arXiv
2412.19437, section 2.2; the order of the two halves, and the norms before and after, as in the published weights of
Qwen3-Next and Qwen 3.5). Embedding and output head are the target's.

The head is a ``Decoder`` whose only layer is of the target's family, so that it has the target's attention, experts and
kernels. Published heads have not been run with this
module, because none can be obtained where it was written; its values are compared with the equations.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import nn

from engine.devices import multiplies_groups
from engine.errors import ModelError
from engine.model import beside, experts, gguf, weights
from engine.model.architectures import OWN_HEAD, inputs_of_layers, kv_sources, layer_kinds
from engine.model.backends.program import pack
from engine.model.decoder import Decoder
from engine.model.families import FAMILIES, FULL
from engine.model.products.norms import fuse_norms

if TYPE_CHECKING:
    from engine.model.view import View

# Prefixes of the head's weights in safetensors files, with our own. A layer's weights follow its prefix.
_NAMES = {
    "mtp.fc.": "model.fusion.projection.",
    "mtp.pre_fc_norm_embedding.": "model.fusion.embedding_norm.",
    "mtp.pre_fc_norm_hidden.": "model.fusion.hidden_norm.",
    "mtp.norm.": "model.norm.",
    "mtp.layers.0.": "model.layers.0.",
}
PROJECTION = "mtp.fc.weight"
"""The weight that every stored head has."""
# The parts of an expert whose matrices transformers joins.
_EXPERT, _GATES, _DOWN = ".mlp.experts.", ("gate_proj", "up_proj"), "down_proj"
_WITHOUT = "Name a draft model with --draft, or --gamma1 0 to draft no tokens."


class Fusion(nn.Module):
    """Joins the embedding of a token with the hidden state before it, and projects both to one hidden state.

    Args:
        norm: a norm of the family, whose kind and epsilon both norms have.
        width: size of a hidden state.
    """

    def __init__(self, norm: nn.Module, width: int) -> None:
        super().__init__()
        self.embedding_norm, self.hidden_norm = copy.deepcopy(norm), copy.deepcopy(norm)
        self.projection = nn.Linear(2 * width, width, bias=False, dtype=norm.weight.dtype, device=norm.weight.device)

    def forward(self, embedded: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Return hidden states (1, n, width) for the embeddings and the hidden states, both (1, n, width)."""
        out: torch.Tensor = self.projection(torch.cat([self.embedding_norm(embedded), self.hidden_norm(hidden)], -1))
        return out


class DraftHead(Decoder):
    """A loaded draft head.

    Args:
        model: a transformers causal LM of one layer, with a ``Fusion`` as ``model.fusion``, and the target's embedding
            and head.
        name: the head's name for people.
        target: the model whose hidden states the head reads.
    """

    reads_states = True

    def __init__(self, model: Any, name: str, target: Decoder) -> None:
        super().__init__(model, name, target.window, target.dtype)
        self._before: torch.Tensor | None = None

    @property
    def parameters(self) -> int:
        shared = {
            id(part) for module in (self.model.lm_head, self.model.model.embed_tokens) for part in module.modules()
        }
        return sum(
            weight.numel()
            for part in self.model.modules()
            if id(part) not in shared
            for weight in part.parameters(recurse=False)
        )

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        assert self._before is not None
        fused: torch.Tensor = self.model.model.fusion(super().embed(input_ids), self._before)
        return fused

    def read(
        self, input_ids: torch.Tensor, before: torch.Tensor, view: View, rows: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Read n tokens.

        Args:
            input_ids: (n,) the tokens.
            before: (1, n, hidden) the hidden state of the token before each of them.
            view: access to the head's own cache.

        Returns:
            The logits (rows, vocabulary) of the token after each of the last ``rows`` tokens, and the hidden states
                (1, rows, hidden) that stand for those of these tokens.
        """
        self._before = before
        try:
            logits = self.backend.forward(input_ids, view, rows)
        finally:
            self._before = None
        return logits, self.states


# Loading -------------------------------------------------------------------------------------------------------------


def settings_in(name: str, config: Any) -> Any | None:
    """Make the configuration of the draft head in the files of a model; None if they have none, or if no head can read
    this kind of model.

    Args:
        name: folder of the model.
        config: the model's configuration.
    """
    folder = Path(name)
    if not folder.is_dir() or inputs_of_layers(config) or kv_sources(config):
        return None
    if not (gguf.holds_head(folder) if gguf.is_described(folder) else PROJECTION in weights.files_by_tensor(folder)):
        return None
    return config_of(config)


def layer_of(config: Any) -> int:
    """The index of the target's layer that a head's layer is like: the last that keeps the whole context."""
    kinds = layer_kinds(config)
    return max((layer for layer, kind in enumerate(kinds) if kind == FULL), default=config.num_hidden_layers - 1)


def config_of(config: Any) -> Any:
    """Make the configuration of a head from the target's."""
    said, layer = config.to_dict(), layer_of(config)
    count = said["num_hidden_layers"]
    for key, value in said.items():
        if isinstance(value, list) and len(value) == count:
            said[key] = [value[layer]]
    said |= {"mlp_only_layers": []} if said.get("mlp_only_layers") else {}
    return type(config)(**{**said, "num_hidden_layers": 1, OWN_HEAD: True})


def load(name: str, config: Any, target: Decoder) -> DraftHead:
    """Load the draft head in a folder, with the target's dtype and on its device.

    Args:
        config: the head's configuration: what ``settings_in`` returned, or that of a head's own folder.

    Raises:
        ModelError: weights are missing or of other sizes than the target's.
        VocabularyMismatch: the head was made for another model.
    """
    title, folder, family = f"{target.name}, own draft head", Path(name), FAMILIES[config.model_type]
    _check_beside(title, folder, config, target)
    model = skeleton(config, target.dtype, target.device)
    if gguf.is_described(folder):
        gguf.fill_head(folder, model, config, target.dtype, keeps_blocks=target.keeps_blocks)
    else:
        _give(model, _stored(folder), title)
    model.requires_grad_(False)
    if not multiplies_groups(target.device, target.dtype):
        experts.install(model.model.layers, family)
    model.to(target.device)
    if target.device.type == "cuda":
        fuse_norms(model, family)
    model.eval()
    if target.device.type == "cpu":
        pack(model, family, target.dtype)
    # The target's embedding and head are set after ``pack``, because they may be packed already.
    model.set_input_embeddings(target.model.get_input_embeddings())
    model.lm_head = target.model.lm_head
    return DraftHead(model, title, target)


def _check_beside(title: str, folder: Path, config: Any, target: Decoder) -> None:
    """Refuse a head in a folder of its own that was made for another target."""
    if gguf.is_described(folder):
        return
    weights.check_folder(folder)
    if (file := weights.files_by_tensor(folder).get(beside.SAMPLE)) is not None:
        with safe_open(folder / file, "pt") as opened:
            beside.check_beside(title, config, opened.get_tensor(beside.SAMPLE), target)


def skeleton(config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """Make a head with placeholders for embedding and output head. The caller gives it its weights."""
    model = beside.skeleton(config, dtype, device)
    model.model.fusion = Fusion(getattr(model.model, FAMILIES[config.model_type].last_norm), config.hidden_size)
    return model


def save(head: Any, config: Any, target: Any, folder: Path) -> None:
    """Write a head's folder: its weights in bfloat16 under their published names, and the rows that identify its
    target.

    Args:
        head: the trained model.
        config: the configuration from ``config_of``.
        target: the model whose hidden states, embedding and head it uses.
    """
    tensors = {}
    for name, values in head.state_dict().items():
        if (prefix := next((own for own in _NAMES.values() if name.startswith(own)), None)) is not None:
            stored = next(stored for stored, own in _NAMES.items() if own == prefix)
            tensors[stored + name.removeprefix(prefix)] = values
    beside.write(folder, config, tensors, target)


def _stored(folder: Path) -> dict[str, torch.Tensor]:
    """Read the head's weights, keyed by our own names."""
    tensors: dict[str, torch.Tensor] = {}
    for name, file in weights.files_by_tensor(folder).items():
        prefix = next((prefix for prefix in _NAMES if name.startswith(prefix)), None)
        if prefix is not None:
            with safe_open(folder / file, "pt") as opened:
                tensors[_NAMES[prefix] + name.removeprefix(prefix)] = opened.get_tensor(name)
    return tensors


def _give(model: Any, found: Mapping[str, torch.Tensor], title: str) -> None:
    """Set the weights of a head.

    Raises:
        ModelError: they are not the weights of a head for this target.
    """
    try:
        missing, odd = model.load_state_dict(_joined(found), strict=False)
    except (RuntimeError, KeyError) as error:
        raise ModelError(f"The weights of {title} do not fit the model.", _WITHOUT) from error
    missing = [name for name in missing if not name.startswith(beside.SHARED)]
    if wrong := sorted((*missing, *odd)):
        raise ModelError(f"The weights of {title} lack {wrong[0]}, or should not have it.", _WITHOUT)


def _joined(found: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Join the matrices of experts that are stored one by one, as transformers holds them."""
    apart: dict[str, dict[int, torch.Tensor]] = {}
    whole = {}
    for name, values in found.items():
        before, _, own = name.partition(_EXPERT)
        number, _, part = own.removesuffix(".weight").partition(".")
        if own and number.isdigit():
            apart.setdefault(f"{before}{_EXPERT}{part}", {})[int(number)] = values
        else:
            whole[name] = values
    for name in {name.rpartition(".")[0] for name in apart}:
        gate, up, down = (_in_order(apart[f"{name}.{part}"].items()) for part in (*_GATES, _DOWN))
        whole |= {f"{name}.gate_up_proj": torch.cat([gate, up], dim=1), f"{name}.{_DOWN}": down}
    return whole


def _in_order(numbered: Iterable[tuple[int, torch.Tensor]]) -> torch.Tensor:
    return torch.stack([values for _, values in sorted(numbered, key=lambda one: one[0])])
