"""Loads target and draft with unmodified transformers code. Weights are read only from safetensors and GGUF files, no
remote code is run, and every model is checked before it is loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import psutil
import torch

from engine.devices import KINDS, multiplies_groups
from engine.errors import ModelError, OptionError, ResourceError, UnsupportedModel, VocabularyMismatch
from engine.model import attention, experts, gguf, recurrent, weights
from engine.model.architectures import (
    SHARED_VOCABULARY,
    TEXT_WEIGHTS,
    check_architecture,
    check_numbers,
    display_name,
    embedding_parameters,
    estimate_parameters,
    is_expanded,
    load_config,
    parameters_of_block,
    pick_dtype,
    stored_bytes_per_weight,
)
from engine.model.backends.program import pack
from engine.model.decoder import Decoder
from engine.model.families import FAMILIES, MAMBA, RECURRENT
from engine.model.host_weights import wait_in_host
from engine.model.kv_shape import Split
from engine.model.mxfp4 import holding_stored
from engine.model.products.card_blocks import to_card
from engine.model.products.norms import fuse_norms
from engine.model.products.quantized import Linear4, Linear8, quantize
from engine.model.products.reduced import reduce
from engine.model.products.tiled import multiplies_tiles, tile
from engine.quantization import BITS, FITTED, FLOAT_BYTES, bytes_per_weight

# Maximum ratio of the number of parameters that config.json describes to the number of stored parameters. A model with
# a larger ratio is refused. The maximum is far above 1, because the described number is an estimate, and because a tied
# head is stored only once.
_MAX_DESCRIBED = 3
# Weights may be rounded only if the rounded weights take at most this share of the bytes of the stored weights.
_WORTH_ROUNDING = 0.75


def load(
    name: str,
    *,
    window: int | None,
    device: torch.device,
    dtype: str = "auto",
    weights: str = "stored",
    packed: bool = True,
    split: Split | None = None,
    in_host: Collection[int] = (),
) -> Decoder:
    """Load a model from a folder, or from the hub if ``name`` is no folder.

    Args:
        window: maximum tokens of a context; None takes the model's own limit.
        dtype: name of the dtype of activations; "auto" as in ``architectures.pick_dtype``.
        weights: "stored", or "8bit", "4bit" or ``FITTED`` to quantize the weights. The decoder's name then states the
            format.
        packed: whether to pack weights for our own kernels on a processor, and to fuse norms on a GPU. If false, the
            layers stay as in transformers.
        split: the device of each layer, with ``device`` as the first device; None puts all layers on ``device``.
        in_host: indices of layers whose weights stay in host memory. Every pass copies the weights that it needs to the
            GPU.

    Raises:
        ModelNotFound: there is no such folder or hub model.
        UnsupportedModel: ``architectures.check_architecture`` refuses the architecture, or this device cannot compute
            it.
        ModelError: weights are missing, damaged, or not safetensors.
        ResourceError: memory is too small for weights that have to be expanded.
    """
    config = settings_of(name, window)
    family, title = FAMILIES[config.model_type], display_name(name)
    if family.others in (RECURRENT, MAMBA) and not KINDS[device.type].has_64_bits:
        raise UnsupportedModel(
            f"{title} has layers that sum in float64, which devices of the kind {device.type} do not have.",
            "Use --device cpu.",
        )
    _check_weights(name, config)
    attention.register()
    picked, devices = pick_dtype(config, dtype, device), split.devices if split else (device,)
    on_card = packed and gguf.keeps_on_card(name, weights, picked, devices)
    keeps_blocks = on_card or (packed and gguf.keeps_blocks(weights, device))
    model, used = _as_stored(name, config, picked, weights, device, keeps_blocks, len(in_host))
    recurrent.install(model)
    # Experts stay in transformers' own code if every device has a kernel for grouped products.
    grouped = all(multiplies_groups(each, used) for each in devices)
    own_experts = (packed and not grouped) or weights != "stored"
    fused = packed and device.type == "cuda"

    def convert(number: int, block: torch.nn.Module) -> None:
        if own_experts or on_card or number in in_host:
            experts.install([block], family)
        if on_card:
            here = split.devices[split.part_of[number]] if split else device
            to_card(block, here, stays=number not in in_host)
        if not keeps_blocks:
            reduce(block, weights)
        if weights in BITS:
            quantize([block], weights, title)
        if fused:
            fuse_norms(block, family)

    host_weights = place(model, device, split, in_host, convert)
    if fused:
        fuse_norms(model, family)
    model.eval()
    if packed and device.type == "cpu":
        pack(model, family, used)
    if weights != "stored":
        title += f" ({BITS[weights]}-bit weights)" if weights in BITS else " (weights rounded to fit)"
    return Decoder(model, title, window or int(config.max_position_embeddings), used, split, host_weights)


def _as_stored(
    name: str,
    config: Any,
    dtype: torch.dtype,
    rounded_to: str,
    device: torch.device,
    keeps_blocks: bool,
    waiting: int,
) -> tuple[Any, torch.dtype]:
    """Build a model with the weights as they are in its folder, before the caller expands, rounds or packs them. Return
    the model and the dtype of its activations.

    Args:
        dtype: dtype of the activations and of expanded weights. Without a GGUF file, transformers may choose another
            dtype.
        rounded_to: format to which the caller will round the weights. Experts that will be rounded to 8 or 4 bits are
            not expanded here.
        keeps_blocks: whether all weights of a GGUF file stay quantized, in the blocks of the file. If false, only
            weights of decoder blocks keep the file's blocks, until the caller expands or rounds them.
        waiting: number of layers whose weights stay in host memory.

    Raises:
        ModelError: weights are missing, damaged, or not safetensors.
        ResourceError: memory is too small for weights that have to be expanded.
    """
    described = gguf.is_described(Path(name))
    if not (described and keeps_blocks):
        _check_memory(name, config, dtype, rounded_to, device, waiting)
    if described:
        blocks: gguf.Blocks = "decoder" if not keeps_blocks else "card" if KINDS[device.type].gpu else "all"
        model = gguf.build(Path(name), config, dtype, attention.IMPLEMENTATION, blocks, device)
    else:
        model = _from_pretrained(name, config, dtype, rounded_to)
        dtype = model.dtype
    model.requires_grad_(False)
    return model, dtype


def _leave(_: int, __: torch.nn.Module) -> None:
    """Convert a layer to nothing else, for ``place``."""


def place(
    model: Any,
    device: torch.device,
    split: Split | None = None,
    in_host: Collection[int] = (),
    convert: Callable[[int, torch.nn.Module], None] = _leave,
) -> Mapping[str, torch.Tensor]:
    """Move a model's weights to the compute devices. Return the weights that wait in host memory, keyed by name.

    If torch's product with 4-bit weights gives right results on the GPUs, quantized layers are replaced by tiled layers
    (``engine.model.products.tiled``).

    Args:
        convert: called with the index of each layer and with the layer, before the layer is moved. Layers are converted
            and moved one by one, so that host memory holds one expanded layer, and those that wait there.
    """
    blocks, model.model.layers = model.model.layers, torch.nn.ModuleList()
    if KINDS[device.type].own_memory:  # an embedding and a head that keep the blocks of a file
        to_card(model, device)
    model.to(device)  # a single call, so that tied weights stay one tensor
    model.model.layers = blocks
    tiles: bool | None = None  # None until a layer is quantized
    waiting: dict[torch.device, dict[int, torch.nn.Module]] = {}
    for index, layer in enumerate(blocks):
        here = split.devices[split.part_of[index]] if split else device
        convert(index, layer)
        if tiles is None and any(isinstance(part, Linear4 | Linear8) for part in layer.modules()):
            tiles = all(map(multiplies_tiles, split.devices if split else (device,)))
        if tiles:
            tile(layer, here)
        if index in in_host:
            waiting.setdefault(here, {})[index] = layer
        else:
            layer.to(here)
    held: dict[str, torch.Tensor] = {}
    for here, layers in waiting.items():
        held |= wait_in_host(layers, here)
    return held


def settings_of(name: str, window: int | None) -> Any:
    """Read a model's configuration and check that it can be loaded, without reading weights.

    Args:
        window: maximum tokens of a context; None takes the model's own limit.

    Raises:
        ModelNotFound: there is no such folder or hub model.
        UnsupportedModel: ``architectures.check_architecture`` refuses the architecture.
        ModelError: the settings are impossible, or the window is larger than the model's limit.
    """
    config = load_config(name)
    check_numbers(config, name)
    # Models of unsupported families may lack this setting.
    limit = int(getattr(config, "max_position_embeddings", None) or 0)
    check_architecture(config, name, window or limit)
    if window is not None and window > limit:
        raise ModelError(
            f"{display_name(name)} reads at most {limit:,} tokens, and a window of {window:,} was asked for.",
            f"Use --context {limit} or less.",
        )
    return config


def check_embedding(name: str, config: Any, largest_id: int) -> None:
    """Refuse a model whose embedding has no row for ``largest_id``, the largest id of its tokenizer.

    Raises:
        ModelError: the embedding is too small; the message has both numbers.
    """
    if largest_id >= config.vocab_size:
        raise ModelError(
            f"The tokenizer of {display_name(name)} gives token ids up to {largest_id:,}, and its config.json says "
            f"that the model knows {config.vocab_size:,} tokens.",
            "The two files are not of one model; download it again.",
        )


def check_vocabulary(draft: str, draft_tokens: Mapping[str, int], target_tokens: Mapping[str, int]) -> None:
    """Refuse a draft whose tokens differ from the target's.

    Tokens are compared instead of the sizes of the vocabularies, because models of one family pad their vocabularies
    differently and add a few special tokens. Tokens that only the draft has are harmless, because the target rejects
    them.

    Raises:
        VocabularyMismatch: the vocabularies differ; the message has both sizes and a token that differs.
    """
    shared = draft_tokens.keys() & target_tokens.keys()
    odd = sorted(token for token in shared if draft_tokens[token] != target_tokens[token])
    if not odd and len(shared) >= SHARED_VOCABULARY * max(len(draft_tokens), len(target_tokens)):
        return
    example = f", and differ, for example, at {odd[0]!r}" if odd else ""
    raise VocabularyMismatch(
        f"The draft model {display_name(draft)} has {len(draft_tokens):,} tokens and the target has "
        f"{len(target_tokens):,}; they share {len(shared) - len(odd):,}{example}.",
        "Both must speak one vocabulary: choose a draft of the same family, or --draft none.",
    )


def _check_weights(name: str, config: Any) -> None:
    folder = Path(name)
    if not folder.is_dir():
        return
    stored, described = weights.check_folder(folder), estimate_parameters(config)
    # Without this check, memory would be allocated for weights that do not exist.
    if described > _MAX_DESCRIBED * stored:
        raise ModelError(
            f"config.json of {display_name(name)} describes about {described:,} parameters, and its weights hold "
            f"{stored:,}.",
            "They do not belong together; download the model again.",
        )


def check_rounding(name: str, config: Any, rounded_to: str, device: torch.device) -> None:
    """Refuse to round the weights of a GGUF file that a processor already reads in few bits.

    Raises:
        OptionError: rounding would save little or nothing.
    """
    stored = stored_bytes_per_weight(config)
    if rounded_to not in BITS or not stored or KINDS[device.type].gpu:
        return
    if bytes_per_weight(rounded_to, FLOAT_BYTES) > _WORTH_ROUNDING * stored:
        raise OptionError(
            f"{display_name(name)} is stored in {8 * stored:.1f} bits a weight, which are read as they are: --weights "
            f"{rounded_to} would round them a second time and save little.",
            "Leave --weights out.",
        )


def _check_memory(
    name: str, config: Any, dtype: torch.dtype, rounded_to: str, device: torch.device, waiting: int
) -> None:
    """Refuse weights that are too large for the free memory after they were expanded, or rounded. Weights that are
    already stored in the model's dtype are not checked.

    If a device has its own memory, the layers of a GGUF file are expanded one by one and sent there, so that host
    memory needs room for the ``waiting`` layers and for one more. Rounding needs additional memory for one expanded
    layer too.
    """
    free = psutil.virtual_memory().available
    block, rest = parameters_of_block(config), embedding_parameters(config) * dtype.itemsize
    count, from_file = int(config.num_hidden_layers), stored_bytes_per_weight(config)
    rounds, sent = rounded_to != "stored", bool(from_file) and KINDS[device.type].own_memory
    if rounded_to == FITTED:
        each: float = gguf.fitted_bytes(Path(name)) / count
    else:
        each = block * bytes_per_weight(rounded_to, dtype.itemsize)
    needed = waiting * each if sent else rest + count * each
    needed += block * dtype.itemsize if rounds or sent else 0
    if needed <= free or not (from_file or is_expanded(config)):
        return
    if from_file and KINDS[device.type].gpu:
        remedy = (
            "Close other programs, choose a smaller model, or use --device cpu, which reads a file as it is stored."
        )
    elif from_file or rounded_to == "4bit":
        remedy = "Close other programs, or choose a smaller model."
    else:
        remedy = "Close other programs, choose a smaller model, or use --weights 4bit."
    raise ResourceError(
        f"The weights of {display_name(name)} are stored in {8 * from_file or 4:.2g} bits and take {needed / 1e9:.0f} "
        f"GB when they are {'rounded' if rounds else 'expanded'}, and {free / 1e9:.0f} GB of memory are free.",
        remedy,
    )


def _from_pretrained(name: str, config: Any, dtype: torch.dtype, rounded_to: str) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    # ``Any`` is needed because the library's type annotations do not know that ``from_pretrained`` can return two
    # values.
    library: Any = AutoModelForCausalLM
    expanding = _expanding(config)
    # If the weights will be rounded, experts are loaded in the 4 bits of the file. ``experts.install`` later
    # dequantizes and rounds them, one matrix at a time.
    if is_expanded(config) and rounded_to in BITS:
        library, expanding = holding_stored(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]), {}
        config = copy.deepcopy(config)
        del config.quantization_config
    folder = Path(name)
    try:
        with weights.with_whole_index(folder) if folder.is_dir() else nullcontext(name) as place, _without_output():
            model, info = library.from_pretrained(
                place,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                attn_implementation=attention.IMPLEMENTATION,
                output_loading_info=True,
                key_mapping=TEXT_WEIGHTS if getattr(config, "wrapper", None) else None,
                **expanding,
            )
    except Exception as error:
        raise _refused(name, config, error) from error
    if missing := sorted(info["missing_keys"]):  # transformers would fill missing weights with random numbers
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise ModelError(
            f"The weights of {display_name(name)} lack {missing[0]}{more}.",
            "The files may be incomplete or altered; download them again.",
        )
    return model


def _refused(name: str, config: Any, error: Exception) -> ModelError:
    """Make an error for the person from an exception that transformers raised while it loaded weights."""
    # The missing key is a word of config.json, so transformers does not know this activation function or kind of RoPE.
    if isinstance(error, KeyError) and error.args[0] in _words(config.to_dict()):
        return UnsupportedModel(
            f"config.json of {display_name(name)} asks for {error}, which is not known.", "Choose another model."
        )
    cause = f"{error} is not described" if isinstance(error, KeyError) else _first_line(error)
    return ModelError(
        f"The weights of {display_name(name)} could not be loaded: {cause}.",
        "The files may be incomplete or damaged; download them again.",
    )


@contextmanager
def _without_output() -> Iterator[None]:
    """Make a context in which transformers shows no progress bar and no warning. This module raises errors instead, and
    the program that uses the engine decides what is printed.
    """
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(max(level, logging.ERROR))
    if bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _expanding(config: Any) -> dict[str, Any]:
    """The arguments for ``from_pretrained`` that make transformers expand 4-bit weights, which it would otherwise keep
    packed; empty if the weights are not in 4 bits.
    """
    if not is_expanded(config):
        return {}
    from transformers.utils.quantization_config import Mxfp4Config

    return {"quantization_config": Mxfp4Config(dequantize=True)}


def _words(settings: Any) -> set[str]:
    """Collect all strings among the values of ``settings``, including the values of nested settings."""
    if isinstance(settings, str):
        return {settings}
    values = settings.values() if isinstance(settings, Mapping) else settings if isinstance(settings, list) else ()
    strings: set[str] = set()
    return strings.union(*map(_words, values))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(".!") if lines else type(error).__name__
