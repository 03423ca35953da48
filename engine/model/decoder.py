"""Defines a loaded model: its pieces, the backend that runs its passes, and its properties for other modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from engine.config import GREEDY, SamplingParams, own_sampling
from engine.devices import KINDS, empty_caches, trim_heap
from engine.errors import ModelError
from engine.model import experts
from engine.model.architectures import experts_of, parameters_asked
from engine.model.backends.joint import JointBackend, joint_blocks
from engine.model.backends.program import ProgramBackend, fuse
from engine.model.backends.tiled import TiledBackend, tiled_blocks
from engine.model.backends.walk import Walk
from engine.model.expected import can_round, kv_shape_of
from engine.model.families import FAMILIES
from engine.model.kv_shape import KvShape, Split
from engine.model.pieces import Pieces
from engine.model.products.packed import PackedBlocks, PackedLinear, count_parameters, rounded
from engine.passages import MOST_PASSAGES, POINTED_PARAMETERS
from engine.quantization import BITS

if TYPE_CHECKING:
    from engine.model.backends import Backend
    from engine.model.pieces import Rope
    from engine.model.view import View
    from engine.thinking import ThinkingForm


class Decoder(Pieces):
    """One loaded causal language model.

    Args:
        model: a transformers causal LM with the attention implementation of ``engine.model.attention``.
        name: the model's name for people.
        window: maximum tokens of a context; some kinds of RoPE depend on it.
        dtype: dtype of the activations; None takes the dtype of the weights. Packed weights may have a different dtype.
        split: the device of each layer; None puts all layers on the model's device.
        host_weights: weights that wait in host memory, keyed by parameter name. They are copied to the device while
            their layer computes.
    """

    reads_states = False
    """Whether the model reads another model's hidden states (``engine.model.own_head``)."""

    def __init__(
        self,
        model: Any,
        name: str,
        window: int,
        dtype: torch.dtype | None = None,
        split: Split | None = None,
        host_weights: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        super().__init__(model, window, dtype, split)
        self.name = name
        self._host_weights = host_weights or {}
        self.backend: Backend = self._fused_backend() or Walk(self)

    def _fused_backend(self) -> Backend | None:
        """Make the backend that computes several operations of a layer at once; None if the layers are not like
        Llama's.
        """
        if not FAMILIES[self.config.model_type].plain:
            return None
        program = fuse(self.model, self.dtype)
        return self._joint_backend(self.blocks) if program is None else ProgramBackend(program, self)

    @cached_property
    def kv_shape(self) -> KvShape:
        return replace(kv_shape_of(self.config, self.dtype, self.device), split=self.split)

    @property
    def layers_in_host(self) -> int:
        """Number of layers whose weights wait in host memory."""
        return len({name.split(".")[2] for name in self._host_weights})

    @property
    def bytes_in_host(self) -> int:
        """Bytes of the weights that wait in host memory."""
        return sum(held.nbytes for held in self._host_weights.values())

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every weight tensor with its name, sorted by name. Of a weight that waits in host memory, yield the
        tensor in host memory.
        """
        for name, held in sorted(self.model.named_parameters()):
            yield name, self._host_weights.get(name, held)

    @property
    def parameters(self) -> int:
        return count_parameters(self.model)

    @cached_property
    def keeps_blocks(self) -> bool:
        """Whether weights are kept in the format of a GGUF file."""
        return any(isinstance(part, PackedBlocks) for part in self.model.modules())

    @cached_property
    def longest_block(self) -> int | None:
        """Maximum tokens of a block of prefill, if longer blocks would be slower; None if longer blocks are faster.

        They are slower if our own kernels compute the products of any number of rows. Then the program of kernels,
        which takes up to ``most_rows``, computes everything else faster than torch does. Measured with 1.5 billion
        parameters in 4 bits on two cores with AVX2, in blocks of 72 and of 128: 61 and 49 tokens/s at the beginning of
        a book, 41 and 32 after 8,192 tokens. After 30,000 tokens the speed is the same.
        """
        products = [part for block in self.blocks for part in block.modules() if isinstance(part, PackedLinear)]
        own = isinstance(self.backend, ProgramBackend) and all(product.multiplies_all for product in products)
        return self.most_rows if own else None

    def end_prefill(self) -> None:
        """Free the memory that only a prefill uses: unpacked weights and, on a processor, the memory of activations.
        Call this method after every prefill, unless another prefill follows immediately.
        """
        for part in self.model.modules():
            if isinstance(part, PackedLinear):
                part.unpacked_last.forget()
        if self.device.type == "cpu":
            trim_heap()

    @property
    def bytes_read_by_step(self) -> int:
        """Bytes of weights that a pass over one token reads. Experts that are not chosen are not included. An embedding
        that is separate from the head is not included either, because a pass reads only one row of the embedding.
        """
        head = {id(weight) for weight in self.model.lm_head.parameters()}
        names = ("embed_tokens", "embed_tokens_per_layer")
        tables = [table for name in names if (table := getattr(self.model.model, name, None)) is not None]
        left_out = {id(weight) for table in tables for weight in table.parameters()} - head
        whole = sum(weight.nbytes for weight in self.model.parameters() if id(weight) not in left_out)
        return whole - experts.nbytes(self.model) + self.expert_bytes_read_by_step

    @property
    def expert_bytes_read_by_step(self) -> int:
        """Bytes of experts that a pass over one token reads; 0 if the model has no experts."""
        mixture = experts_of(self.config)
        return experts.nbytes(self.model) * mixture.chosen // mixture.count if mixture else 0

    @property
    def waits_for_experts(self) -> bool:
        """Whether the host waits in every pass for a GPU to tell which experts the pass uses."""
        return experts.waits_for_host(self.model)

    @cached_property
    def block_parameters(self) -> int:
        """Number of parameters of one layer that are active for a token. The work of prefill, apart from attention, is
        proportional to this number.
        """
        return parameters_asked(self.config)

    @property
    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that end a text, according to the model's own settings."""
        ends: list[int] = []
        for source in (self.config, getattr(self.model, "generation_config", None)):
            value = getattr(source, "eos_token_id", None)
            ends += [end for end in (value if isinstance(value, list) else [value]) if type(end) is int]
        return tuple(dict.fromkeys(ends))

    @cached_property
    def sampling(self) -> SamplingParams:
        """The sampling settings in the model's own files (``generation_config.json``)."""
        own = getattr(self.model, "generation_config", None)
        return own_sampling({} if own is None else own.to_dict())

    def advised(self, form: ThinkingForm | None, think: bool) -> SamplingParams:
        """The sampling settings that the model's maker recommends: those in the model's files, or of its card where it
        has others for answers with or without a thought (``Family.card``).

        Args:
            form: how the model is told to think; None if it knows no thoughts.
            think: whether a thought is wanted.
        """
        if form is None or not form.can_think:
            return self.sampling
        thinks = think or not form.can_stop
        if thinks and self.sampling.temperature is not None:
            return self.sampling
        card = FAMILIES[self.config.model_type].card.get(thinks, {})
        return own_sampling({"do_sample": True, **card}).over(self.sampling) if card else self.sampling

    def sampling_of(self, asked: SamplingParams, form: ThinkingForm | None) -> SamplingParams:
        """Every sampling option of an answer: as it is asked for, or as the maker recommends, or greedy."""
        think = form is not None and form.wants(asked.think, asked.think_tokens)
        return asked.over(self.advised(form, think)).over(GREEDY)

    @property
    def num_passages(self) -> int:
        """Number of passages of the book that are put into the prompt with a question, according to the model's own
        settings (``engine.passages``).
        """
        number = getattr(getattr(self.model, "generation_config", None), "passages", 0)
        return min(number, MOST_PASSAGES) if type(number) is int and number > 0 else 0

    @property
    def wants_pointing(self) -> bool:
        """Whether the prompt repeats, before each question, the passage that the question is likely about
        (``engine.passages``). True for sizes of models to which this helped in measurements, unless the model has its
        own settings for passages or quotations.
        """
        own = getattr(self.model, "generation_config", None)
        settled = any(getattr(own, name, None) is not None for name in ("passages", "exact_quotes"))
        return not settled and self.parameters in POINTED_PARAMETERS

    def not_finite(self) -> ModelError:
        """Make the error for a pass whose results contain infinities or NaN."""
        if self.dtype is torch.float16:
            return ModelError(
                f"{self.name} computes numbers that float16 does not hold.", "Use --dtype bfloat16: slower, and right."
            )
        return ModelError(
            f"{self.name} computes values that are not numbers, because its weights are damaged.", "Download it again."
        )

    def not_telling(self) -> ModelError:
        """Make the error for a first pass after which all tokens have the same probability."""
        return ModelError(
            f"{self.name} gives every word the same probability, because its weights are damaged.", "Download it again."
        )

    # Passes, run by the backend --------------------------------------------------------------------------

    @property
    def bits(self) -> int:
        return self.backend.bits

    @property
    def most_rows(self) -> int:
        return self.backend.most_rows

    def decoding(self) -> AbstractContextManager[object]:
        return self.backend.decoding()

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        return self.backend.layer(index, hidden, rope, view)

    def forward(self, input_ids: torch.Tensor, view: View, rows: int | None = None) -> torch.Tensor:
        return self.backend.forward(input_ids, view, rows)

    def narrow(self, tokens: int) -> None:
        """From now on, compute logits of only the first tokens of the vocabulary, at least ``tokens``, if the model has
        packed weights. So a step reads fewer bytes of the head.
        """
        if isinstance(self.backend, Walk):
            self.backend.narrow(tokens)

    def rounded(self, weights: str) -> Backend | None:
        """Make a second backend of this model, which rounds the weights to ``weights`` ("8bit" or "4bit") for products
        over a few tokens. Everything else is shared with the first backend.

        On a processor the head is always rounded to 8 bits. Return None if our own kernels cannot compute the layers.
        On a GPU the head is not rounded. Return None if ``can_round`` forbids rounding, or if torch's product with
        4-bit weights cannot be used.
        """
        if KINDS[self.device.type].gpu:
            return self._tiled(weights) if can_round(self.config, weights, self.dtype, self.device) else None
        plain = FAMILIES[self.config.model_type].plain and isinstance(self.last_product, PackedLinear)
        program = fuse(self.model, self.dtype, weights) if plain else None
        if program is None:
            return None
        return ProgramBackend(program, self, rounded(self.last_product, "8bit"), BITS[weights])

    def _tiled(self, weights: str) -> Backend | None:
        parts = self.split.devices if self.split else (self.device,)
        devices = [parts[self.part_of(layer)] for layer in range(self.num_layers)]
        blocks = tiled_blocks(self.model, devices, self._host_weights.values())
        if not blocks:
            return None
        few = self._joint_backend(blocks) or Walk(self, blocks=blocks)
        return TiledBackend(few, self.backend, self, BITS[weights])

    def _joint_backend(self, blocks: Sequence[Any]) -> Backend | None:
        joint = joint_blocks(blocks)
        if joint is None:
            return None
        empty_caches()  # frees the memory of the separate weights that were joined
        return JointBackend(joint, self)
