"""Makes a draft for a model that has none, distilled from the model's own text.

    python -m engine.distill --model FOLDER --books FOLDER --work FOLDER --out FOLDER

The target continues passages of the books and answers questions about them (``corpus``). A draft starts as a copy of a
few of the target's layers, and learns to predict the target's distribution of each next token (``training``). The app
and the bench load the draft from its folder with ``--draft FOLDER`` (``engine.model.distilled``). Books are plain text
files. Some books, chosen by a hash of their names, are left out: the bench measures the draft on these books. A run
that was stopped at any moment, even by a loss of power, is continued by the same command with the same ``--work``. On
the same machine it ends with the same draft as a run without a stop.

This module implements the command line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.bench.workloads import is_held_back
from engine.config import EngineConfig
from engine.devices import KINDS
from engine.distill import corpus
from engine.distill.corpus import CHARACTERS_PER_TOKEN, Corpus, Prompts
from engine.distill.training import HeadTraining, Training, head_started_from, started_from
from engine.errors import OptionError, UnsupportedModel
from engine.model import distilled, loading, own_head
from engine.model.architectures import display_name, experts_of, recurrent_layers
from engine.model.decoder import Decoder
from engine.model.products.quantized import wide_dtype
from engine.plan.planner import pick_device
from engine.prompt import BookTokenizer

LAYERS = 2
"""Default number of layers of the draft."""
HEAD_TOKENS = 8192
"""Default number of tokens that the draft can propose."""
SHARDS = 40
"""Default number of shards of text that the target writes."""
EPOCHS = 5
"""Default number of passes over the text."""

# Maximum number of characters, over all books together, that are tokenized to count how frequent each token is. Each
# book has an equal share of this number.
_COUNTED_CHARACTERS = 4_000_000
_MANIFEST = "distill.json"


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line's options."""
    p = argparse.ArgumentParser(
        prog="python -m engine.distill", description="Distil a draft for a model from the model's own text."
    )
    p.add_argument("--model", required=True, help="folder or hub id of the target")
    p.add_argument("--books", type=Path, required=True, metavar="FOLDER", help="books to learn from (.txt)")
    p.add_argument(
        "--work", type=Path, required=True, metavar="FOLDER", help="for the target's text, checkpoint and log"
    )
    p.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where to write the draft")
    p.add_argument("--layers", type=int, default=LAYERS, help=f"layers of the draft (default {LAYERS})")
    p.add_argument(
        "--head-tokens",
        type=int,
        default=HEAD_TOKENS,
        help=f"tokens that the draft can propose (default {HEAD_TOKENS})",
    )
    p.add_argument("--shards", type=int, default=SHARDS, help=f"shards of 24,576 tokens of text (default {SHARDS})")
    p.add_argument("--epochs", type=int, default=EPOCHS, help=f"passes over the text (default {EPOCHS})")
    p.add_argument("--head", action="store_true", help="make a draft head (MTP) instead of a draft of --layers layers")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    p.add_argument("--threads", type=int, help="processor threads (default: all)")
    return p


def books_in(folder: Path) -> list[str]:
    """Read the text of every book of a folder, in the order of their names. Books that are held back for the bench are
    left out. So are books that are too short to take passages from.

    Raises:
        OptionError: no book is left.
    """
    texts = [
        path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(folder.glob("*.txt"))
        if not is_held_back(path)
    ]
    least = 2 * CHARACTERS_PER_TOKEN * corpus.PROMPT_TOKENS
    texts = [text for text in texts if len(text) >= least]
    if not texts:
        raise OptionError(
            f"There is no book in {folder} to learn from.",
            f"Name a folder of .txt files of {least:,} characters or more that are not held back.",
        )
    return texts


def frequent_tokens(
    tokenizer: BookTokenizer, texts: Sequence[str], written: torch.Tensor, always: Sequence[int], count: int
) -> torch.Tensor:
    """Return the ids of the ``count`` most frequent tokens in the books and in the target's text, in ascending order.

    Args:
        written: tensor of any shape with the tokens that the target wrote.
        always: tokens that are included whatever their frequency.
    """
    share = _COUNTED_CHARACTERS // len(texts)
    counts = Counter(token for text in texts for token in tokenizer.words(text[:share]))
    counts.update(written.flatten().tolist())
    ranked = dict.fromkeys(always) | dict.fromkeys(token for token, _ in counts.most_common())
    return torch.tensor(sorted(itertools.islice(ranked, count)))


def check(options: argparse.Namespace) -> tuple[BookTokenizer, list[str]]:
    """Check the options, the target and the books before any work starts. Return the target's tokenizer and the texts
    of the books.

    Raises:
        OptionError: an option is wrong.
        ModelError: the target cannot be distilled, for example because it has recurrent layers or experts.
    """
    for name in ("layers", "head_tokens", "shards", "epochs", "threads"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise OptionError(f"--{name.replace('_', '-')} is {value}; it must be at least 1.")
    if not options.books.is_dir():
        raise OptionError(f"There is no folder {options.books}.", "Name one with --books.")
    if options.out.exists():
        raise OptionError(f"{options.out} is there already.", "Name another folder with --out.")
    config = loading.settings_of(options.model, None)
    distilled.check_alone(options.model, config)
    if recurrent_layers(config):
        raise UnsupportedModel(
            f"{display_name(options.model)} has layers with a recurrent state: no draft can be distilled from it."
        )
    if experts_of(config):
        raise UnsupportedModel(
            f"{display_name(options.model)} is a mixture of experts: a draft of its layers would be no small model."
        )
    if options.layers >= config.num_hidden_layers:
        raise OptionError(
            f"The model has {config.num_hidden_layers} layers; a draft of {options.layers} would not be smaller.",
            "Choose fewer --layers.",
        )
    if options.head_tokens > config.vocab_size:
        raise OptionError(
            f"The model has {config.vocab_size:,} tokens; --head-tokens {options.head_tokens} is more.",
            "Choose fewer --head-tokens.",
        )
    tokenizer = BookTokenizer(options.model)
    loading.check_embedding(options.model, config, tokenizer.largest_id)
    return tokenizer, books_in(options.books)


def claim(work: Path, facts: dict[str, Any]) -> None:
    """Record in a work folder the settings that its files depend on.

    Raises:
        OptionError: the folder was begun with other settings.
    """
    work.mkdir(parents=True, exist_ok=True)
    manifest = work / _MANIFEST
    if manifest.exists():
        known = json.loads(manifest.read_text(encoding="utf-8"))
        if odd := sorted(name for name in facts if known.get(name) != facts[name]):
            raise OptionError(
                f"{work} was begun with another {odd[0]}: {known.get(odd[0])}, not {facts[odd[0]]}.",
                "Name another folder with --work, or the same settings.",
            )
        return
    partial = manifest.with_suffix(".tmp")
    partial.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, manifest)


def load_target(name: str, device: torch.device) -> Decoder:
    """Load the target in a dtype in which the device multiplies large matrices fast. On a processor this is bfloat16,
    or float32 if the processor is slow in bfloat16 (``wide_dtype``).
    """
    dtype = str(wide_dtype(torch.bfloat16)).removeprefix("torch.") if device.type == "cpu" else "auto"
    target = loading.load(name, window=None, device=device, dtype=dtype, packed=False)
    target.model.set_attn_implementation("sdpa")
    return target


def main(arguments: Sequence[str]) -> int:
    """Distil a draft with the options in ``arguments``. Return the exit status 0."""
    options = parser().parse_args(arguments)
    tokenizer, texts = check(options)
    device = pick_device(options.device)
    if not KINDS[device.type].has_64_bits:  # drawing the target's tokens needs 64-bit numbers
        raise OptionError(f"Drafts are not distilled on devices of the kind {device.type}.", "Use --device cpu.")
    names = ("model", "head", "layers", "head_tokens", "shards", "epochs", "seed")
    claim(
        options.work,
        {name: getattr(options, name) for name in names} | {"characters": sum(map(len, texts)), "books": len(texts)},
    )
    if options.threads:
        torch.set_num_threads(options.threads)
    target = load_target(options.model, device)
    ends = frozenset((*tokenizer.end_ids, *target.end_ids))
    prompts = Prompts(tokenizer, texts, EngineConfig.num_sink_tokens)
    written = Corpus(target.model, prompts, ends, options.work, options.seed)
    token_ids = frequent_tokens(tokenizer, texts, written.shard(0).tokens, sorted(ends), options.head_tokens)
    if options.head:
        draft, config = head_started_from(target.model, token_ids)
    else:
        draft, config = started_from(target.model, options.layers, token_ids)
    training = (HeadTraining if options.head else Training)(
        target.model, draft, written, options.shards, options.epochs, options.work, options.seed
    )
    training.run(sys.stderr)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{options.out.name}-", dir=options.out.parent) as folder:
        made = Path(folder) / options.out.name
        if options.head:
            own_head.save(draft, config, target.model, made)
        else:
            distilled.save(draft, config, token_ids, target.model, made)
        made.rename(options.out)
    sys.stdout.write(f"The draft is in {options.out}; use it with --model {options.model} --draft {options.out}\n")
    return 0
