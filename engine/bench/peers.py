"""Runs other programs (peers) on the bench's book.

transformers' generate runs on a copy of the same KV: plain, with prompt lookup, and with the draft model as assistant.
llama.cpp runs on a GGUF file of the same model. The time per token leaves out a peer's first step, which includes
copying the KV or reading the whole context.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine.bench import llama_process
from engine.bench.report import Run
from engine.errors import OptionError

if TYPE_CHECKING:
    from transformers import DynamicCache

    from engine.kv.full import FullCache
    from engine.model.decoder import Decoder

PEERS = ("hf_generate", "hf_prompt_lookup", "hf_assisted")
LLAMA_CPP = "llama_cpp"
LLAMA_LOOKUP = "llama_cpp_lookup"
"""The name of the row in which llama.cpp uses its binding's prompt lookup. The row needs the Python binding and a GGUF
file.
"""
LLAMA_DRAFT = "llama_cpp_draft"
"""The name of the row in which a draft model proposes tokens to llama.cpp. Both models must be GGUF files."""
LLAMA_ROWS = (LLAMA_CPP, LLAMA_LOOKUP, LLAMA_DRAFT)
# Number of tokens that a draft model proposes to llama.cpp at once. The documentation of llama.cpp's Python binding
# recommends this number for machines without a GPU.
_DRAFTED_TOKENS = 2
# Maximum number of tokens that a peer's prompt lookup proposes at once, as in the example in transformers'
# documentation.
_LOOKUP_TOKENS = 10


def generate(
    peer: str,
    target: Decoder,
    draft: Decoder | None,
    full: FullCache,
    prompt: list[int],
    count: int,
    end_ids: list[int] | None,
    sampling: dict[str, Any],
) -> Run:
    """Generate at most ``count`` tokens after ``prompt``. ``full`` holds the KV of all prompt tokens except the last.

    Args:
        end_ids: tokens that end the text; None generates ``count`` tokens.
        sampling: temperature (0 is greedy), top_p, seed and, optionally, top_k.
    """
    from transformers import DynamicCache, StoppingCriteriaList

    model = target.model
    cache = _copied(full, DynamicCache(config=model.config, offloading=peer == "hf_offloaded"))
    ids = target.ids(prompt).unsqueeze(0)
    stamps: list[tuple[int, float]] = []
    spent: list[float] = []

    def stamp(seen: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        stamps.append((seen.shape[1], time.perf_counter()))
        spent.append(time.process_time())
        return torch.zeros(1, dtype=torch.bool, device=ids.device)

    with _own_attention(model), _own_attention(draft.model if draft else model), _only_what_is_new(model):
        torch.manual_seed(sampling["seed"])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            max_new_tokens=count,
            eos_token_id=end_ids,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([stamp]),
            **_options(peer, draft, sampling),
        )
    run = _run(out[0, len(prompt) :].tolist(), len(prompt), stamps)
    run.processor_s = spent[-1] - spent[0]
    return run


def _copied(full: FullCache, cache: DynamicCache) -> DynamicCache:
    """Copy the KV of all layers to ``cache``, an empty cache of the transformers library, and return it."""
    for layer in range(full.shape.model_layers):
        k, v = full.keys(layer, 0, full.length), full.values(layer, 0, full.length)
        cache.update(k.unsqueeze(0).clone(), v.unsqueeze(0).clone(), layer)
    return cache


def _options(peer: str, draft: Decoder | None, sampling: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with which transformers' generate decodes as the row ``peer`` and samples as ``sampling``
    says.
    """
    # Without these options generate would use the model's own sampling settings, which no other row uses.
    options: dict[str, Any] = {"do_sample": sampling["temperature"] > 0, "repetition_penalty": 1.0}
    if options["do_sample"]:
        options |= {"temperature": sampling["temperature"], "top_p": sampling["top_p"]}
        options["top_k"] = sampling.get("top_k") or 0
    if peer == "hf_prompt_lookup":
        options["prompt_lookup_num_tokens"] = _LOOKUP_TOKENS
    if peer == "hf_assisted":
        assert draft is not None
        options["assistant_model"] = draft.model
    return options


def has_llama_cpp() -> bool:
    """Whether llama.cpp's Python binding is installed."""
    return importlib.util.find_spec(LLAMA_CPP) is not None


def check_llama_cpp(rows: Sequence[str], gguf: Path | None) -> None:
    """Check, before a book is read, that llama.cpp can run if ``rows`` name it.

    Args:
        gguf: the model as a GGUF file.

    Raises:
        OptionError: no GGUF file was named, or the binding is not installed.
    """
    if not set(rows) & set(LLAMA_ROWS):
        return
    if gguf is None:
        raise OptionError("The row llama_cpp needs the model as a GGUF file.", "Name it: --gguf FILE.")
    if not has_llama_cpp():
        raise OptionError(
            "llama.cpp's Python binding is not installed.",
            f"{sys.executable} -m pip install llama-cpp-python (compiling takes minutes), or leave out the row.",
        )


class LlamaCpp:
    """Runs llama.cpp on a GGUF file, with the weights as stored in the file, and KV in float16 or 8 bits. llama.cpp has
    its own process (``llama_process``), apart from torch's threads. If llama.cpp was built for a different processor,
    only its own process crashes.

    Args:
        gguf: file of the same model as the target.
        target: the target. The file's model must have the same RoPE scaling and vocabulary size.
        window: context window, in tokens.
        half_kv: whether to keep KV in float16, otherwise in 8 bits.

    Raises:
        OptionError: the binding cannot load the file, or the file holds a different model.
    """

    def __init__(self, gguf: Path, target: Decoder, window: int, half_kv: bool = True) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(llama_process.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._how: dict[str, Any] = {"window": window, "threads": torch.get_num_threads(), "half_kv": half_kv}
        loaded = self._call(gguf=str(gguf), yarn=_stretching(target), **self._how)
        if loaded["vocabulary"] != target.vocabulary:
            self.close()
            raise OptionError(
                f"{gguf.name} and {target.name} have different vocabularies.", "Name a file of this model."
            )
        self._has_draft = False
        self._book: list[int] = []
        self.read_tokens_per_s: float | None = None

    def take_draft(self, gguf: Path) -> None:
        """Load a GGUF file as llama.cpp's draft model, unless a draft model has been loaded already."""
        if not self._has_draft:
            self._call(draft=str(gguf), yarn=None, **self._how)
            self._has_draft = True

    def close(self) -> None:
        """End llama.cpp's process."""
        self._process.communicate()

    def read(self, book: list[int]) -> None:
        """Read a book's tokens into llama.cpp's cache. Tokens that the cache holds already are not read again."""
        known = len(self._book) if book[: len(self._book)] == self._book else 0
        if len(book) > known:
            done = self._generate(book, 1, frozenset(), {"temperature": 0.0, "top_p": 1.0, "seed": 0})
            self.read_tokens_per_s = (len(book) - known) / (done["moments"][0] - done["began"])
        self._book = list(book)

    def generate(
        self, prompt: list[int], count: int, end_ids: frozenset[int], sampling: dict[str, Any], row: str = LLAMA_CPP
    ) -> Run:
        """Generate at most ``count`` tokens after ``prompt``; ``sampling`` is as in the module's ``generate``.

        Args:
            end_ids: ids of the tokens that end the answer.
            row: name of the row, which decides what proposes tokens: the binding's prompt lookup, the draft model
                (``take_draft``), or nothing.
        """
        proposed = {LLAMA_LOOKUP: {"lookup": _LOOKUP_TOKENS}, LLAMA_DRAFT: {"drafted": _DRAFTED_TOKENS}}
        done = self._generate(prompt, count, end_ids, {**sampling, **proposed.get(row, {})})
        run = _run(
            done["tokens"], len(prompt), [(len(prompt) + n, moment) for n, moment in enumerate(done["moments"], 1)]
        )
        run.processor_s = done["processor_s"]
        return run

    def _generate(
        self, prompt: list[int], count: int, end_ids: frozenset[int], sampling: dict[str, Any]
    ) -> dict[str, Any]:
        """Generate tokens with llama.cpp. Return the reply of its process (``llama_process.answered``)."""
        return self._call(prompt=prompt, count=count, ends=sorted(end_ids), **sampling)

    def _call(self, **request: Any) -> dict[str, Any]:
        """Send a request and return the reply.

        Raises:
            OptionError: the process has ended, or reports an error.
        """
        pipe, answer = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answer is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            pipe.write(json.dumps(request) + "\n")
            pipe.flush()
            line = answer.readline()
        said: dict[str, Any] = json.loads(line) if line else {"error": "its process ended"}
        if "error" in said:
            raise OptionError(f"llama.cpp failed: {said['error']}.", "Leave out the row llama_cpp.")
        return said


def _stretching(target: Decoder) -> list[float] | None:
    """Return YaRN's factor and the window that YaRN extends, as the target uses them. None if the target does not use
    YaRN.
    """
    rope = getattr(target.config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "yarn":
        return None
    return [rope["factor"], rope["original_max_position_embeddings"]]


def _run(tokens: list[int], start: int, stamps: list[tuple[int, float]]) -> Run:
    """Make the ``Run`` of a peer that generated ``tokens`` after the first ``start`` tokens. ``stamps`` holds for each
    step the number of tokens in the text after the step, and the time in seconds at which the step ended. A step's
    duration is divided equally among its tokens. The duration of the first step is unknown, so its tokens get no times.
    """
    run = Run(tokens=tokens)
    for (before, began), (after, ended) in itertools.pairwise(stamps):
        made = min(after, start + len(tokens)) - before
        if made > 0:
            run.ms += [(ended - began) * 1000.0 / made] * made
    return run


@contextmanager
def _own_attention(model: Any) -> Iterator[None]:
    """Use transformers' default attention within this ``with`` block."""
    own = model.config._attn_implementation
    model.set_attn_implementation("sdpa")
    try:
        yield
    finally:
        model.set_attn_implementation(own)


@contextmanager
def _only_what_is_new(model: Any) -> Iterator[None]:
    """Let transformers' assisted decoding feed only the part of the prompt that the given cache does not hold yet.

    Otherwise the first step feeds the whole prompt again (transformers 5.23), and the generated tokens differ.
    """
    own = model.prepare_inputs_for_generation

    @functools.wraps(own)  # keep the signature, because transformers' generate checks its options against it
    def prepare(input_ids: torch.Tensor, *args: Any, **options: Any) -> Any:
        past = options.get("past_key_values")
        known = past.get_seq_length() if past is not None else 0
        if options.get("next_sequence_length", 0) is None and known:
            options["next_sequence_length"] = input_ids.shape[1] - known
        return own(input_ids, *args, **options)

    model.prepare_inputs_for_generation = prepare
    try:
        yield
    finally:
        del model.prepare_inputs_for_generation
