"""Measures the demo model on books that it was not trained on, and writes evaluation.json and the card's figures.

    python assets/demo/evaluate.py --books FOLDER [--lengths 2048,8192,32768] [--per-depth 2] [--texts 3]

All figures are measured on the shipped folders with transformers, except for the acceptance of small caches, which is
measured with the engine's caches.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import torch  # noqa: E402  (the recipe lies beside this file)
from recipe import card, levels, network, quoting  # noqa: E402
from recipe.corpus import Book, read_books  # noqa: E402
from recipe.plan import Stage  # noqa: E402
from recipe.questions import CONTINUE_REQUESTS  # noqa: E402
from recipe.samples import ANSWER_WEIGHT  # noqa: E402
from recipe.training import Materials  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: E402

from engine.chat_template import book_message  # noqa: E402
from engine.model import loading  # noqa: E402

TEMPERATURE = 0.6
LOSS_LENGTH = 1024
LEVEL_LENGTH = 96
"""Tokens, at most, of each answer on which small caches are compared with the full one."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, required=True)
    parser.add_argument("--models", type=Path, default=HERE, help="folder that holds target/ and draft/")
    parser.add_argument("--lengths", default="2048,8192,32768")
    parser.add_argument("--per-depth", type=int, default=2, help="questions for each fifth of a text")
    parser.add_argument("--texts", type=int, default=3, help="held-back books asked about at every length")
    parser.add_argument("--rows", type=int, default=24, help="sequences for the losses and acceptance")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, default=HERE / "evaluation.json")
    parser.add_argument("--level-tokens", type=int, default=32768, help="text before which small caches are measured")
    parser.add_argument("--more", action="store_true", help="add the lengths to the figures that are there already")
    parser.add_argument("--levels", action="store_true", help="with --more: measure the small caches anew")
    parser.add_argument("--examples", type=Path, help="write every question and answer there")
    return parser.parse_args()


def rates(results: list[quoting.Quotation]) -> dict[str, Any]:
    """Return the number of quotations, and their exact-match rates: over all, and for each fifth of the text."""
    by_depth = []
    for depth in range(quoting.NUM_DEPTHS):
        part = [result.exact for result in results if result.depth == depth]
        by_depth.append(round(sum(part) / len(part), 3) if part else None)
    begun = [result.answer[:30] == result.expected[:30] for result in results]
    return {
        "questions": len(results),
        "exact": round(sum(result.exact for result in results) / len(results), 3),
        "begun_right": round(sum(begun) / len(begun), 3),
        "exact_by_depth": by_depth,
    }


def said_so(results: list[quoting.Quotation]) -> dict[str, Any]:
    """Return the number of answers, and the share of correct answers."""
    return {"questions": len(results), "said_so": round(sum(result.exact for result in results) / len(results), 3)}


def accepted(target: Tensor, draft: Tensor) -> Tensor:
    """Return the probability that `target` accepts a token drawn from `draft`: the overlap of both distributions."""
    return torch.minimum(target, draft).sum(-1)


@torch.inference_mode()
def agreement(target: LlamaForCausalLM, draft: LlamaForCausalLM, materials: Materials, rows: int) -> dict[str, Any]:
    """Measure losses and acceptance on held-back text and answers. Each token is predicted after the true tokens before
    it, not after the model's own.
    """
    stage = Stage(1.0, LOSS_LENGTH, 1, {"quote": 1.0}, skip_share=0.0)
    batches = iter(materials.loader(stage, materials.held_back, seed=23))
    sums: dict[str, dict[str, float]] = {"prose": {}, "quotes": {}}
    for _ in range(rows):
        ids, weights, positions, *_ = next(batches)
        p, q = (model.lm_head(network.hidden_states(model, ids, positions))[0, :-1] for model in (target, draft))
        figures = {
            "target_loss": functional.cross_entropy(p, ids[0, 1:], reduction="none"),
            "draft_loss": functional.cross_entropy(q, ids[0, 1:], reduction="none"),
            "accepted_greedy": (p.argmax(-1) == q.argmax(-1)).float(),
            f"accepted_T{TEMPERATURE}": accepted((p / TEMPERATURE).softmax(-1), (q / TEMPERATURE).softmax(-1)),
        }
        for kind, weight in (("prose", 1.0), ("quotes", ANSWER_WEIGHT)):
            chosen = weights[0, 1:] == weight
            for name, values in figures.items():
                sums[kind][name] = sums[kind].get(name, 0.0) + float(values[chosen].sum())
            sums[kind]["tokens"] = sums[kind].get("tokens", 0.0) + int(chosen.sum())
    return {
        kind: {name: round(value / parts["tokens"], 3) for name, value in parts.items() if name != "tokens"}
        | {"tokens": int(parts["tokens"])}
        for kind, parts in sums.items()
    }


def level_acceptance(folder: Path, books: list[Book], tokens: int, seed: int) -> dict[str, Any]:
    """Measure how often the full cache accepts the tokens that the target proposes on a small cache, after a text of
    `tokens` tokens.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    book = next(book for book in books if len(book.text) > 3.6 * tokens)
    rng = random.Random(f"{seed}/levels")
    text = quoting.text_of(book, tokens, rng)
    turns = [turn for _, turn in quoting.turns_by_depth(text[: int(0.9 * len(text))], 1, rng)][::2]

    def encode(words: str) -> list[int]:
        ids: list[int] = tokenizer(words, add_special_tokens=False).input_ids
        return ids

    message = [{"role": "system", "content": book_message(book.title, text)}]
    ids = encode(tokenizer.apply_chat_template(message, tokenize=False).removesuffix("<|end|>\n"))[:tokens]

    def turn_of(question: str) -> list[int]:
        return encode(f"<|end|>\n<|user|>\n{question}<|end|>\n<|assistant|>\n")

    kinds = {
        "prose": [[], *map(turn_of, CONTINUE_REQUESTS[:3])],
        "quotes": [turn_of(turn.question) for turn in turns],
    }
    reader = levels.Levels(loading.load(str(folder), window=None, device=torch.device("cpu"), dtype="float32"), ids)
    rows = levels.acceptance(reader, kinds, [1024, 2048, 4096], LEVEL_LENGTH, tokenizer.eos_token_id)
    return {"tokens": len(ids), "rows": list(rows)}


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokenizer = AutoTokenizer.from_pretrained(options.models / "target")
    target, draft = (
        AutoModelForCausalLM.from_pretrained(options.models / name, dtype=torch.float32).to(device).eval()
        for name in ("target", "draft")
    )
    books = read_books(options.books, held_back=True)
    if options.more:
        report = json.loads(options.json.read_text(encoding="utf-8"))
    else:
        materials = Materials([], books, tokenizer, torch.device("cpu"), options.seed, 0)
        report = {"agreement": agreement(target.cpu(), draft.cpu(), materials, options.rows), "quoting": {}}
        absent = quoting.absences(target.to(device), tokenizer, books[: options.texts], 2048, 8, options.seed)
        report["absent"] = said_so(absent)
        open_ones = quoting.open_answers(target, tokenizer, books[: options.texts], 2048, options.seed)
        report["open"] = said_so(open_ones)
    if options.levels or not options.more:
        report["levels"] = level_acceptance(options.models / "target", books, options.level_tokens, options.seed)
    examples = []
    for length in (int(part) for part in options.lengths.split(",") if part):
        long_enough = [book for book in books if len(book.text) > 3.6 * length][: options.texts]
        results = quoting.quote(target, tokenizer, long_enough, length, options.per_depth, options.seed)
        report["quoting"][str(length)] = rates(results)
        examples += [[r.length, r.depth, r.question, r.expected, r.answer] for r in results]
        print(length, json.dumps(report["quoting"][str(length)]), flush=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if options.examples:
        options.examples.write_text(json.dumps(examples, indent=1, ensure_ascii=False), encoding="utf-8")
    if options.json.resolve().parent == HERE:
        card.update(HERE / "README.md", report)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
