"""Trains the starter's adapter on SmolLM2-135M-Instruct: reads books, writes `adapter.safetensors` and `state.json`.

    python assets/starter/train.py --base FOLDER --books FOLDER --work FOLDER --until 11:40

`--base` is a folder that `build.py --plain` wrote. Training can be stopped. A second run with the same `--work`
continues with the next lesson. Without a checkpoint, training starts from the adapter in this file's folder, at the
step where its training stopped, with a new optimizer.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

import torch  # noqa: E402  (the recipe is found from the repository's root)
from transformers import AutoModelForCausalLM  # noqa: E402

from assets.demo.recipe.corpus import Book, read_books  # noqa: E402
from assets.starter.recipe import adapter  # noqa: E402
from assets.starter.recipe.books import OF_THE_EVALUATION  # noqa: E402
from assets.starter.recipe.lessons import LessonMaker, Library  # noqa: E402
from assets.starter.recipe.prompting import Prompter  # noqa: E402
from assets.starter.recipe.training import Training  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, help="folder of the model to adapt")
    parser.add_argument("--books", type=Path, required=True, help="folder of *.txt books")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and logs")
    parser.add_argument("--until", default="23:59", help="time of day at which to stop")
    parser.add_argument("--afresh", action="store_true", help="begin with no adapter")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default=fast_dtype(), help="of the frozen weights")
    return parser.parse_args()


def fast_dtype() -> str:
    """Choose the dtype in which a step is fast. Processors without bfloat16 instructions take minutes for a step in
    bfloat16, and ten seconds in float32.
    """
    return "bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32"


def keep_freed_memory() -> None:
    """Tell glibc to reuse large blocks of memory instead of returning each to the system."""
    trim_threshold, mmap_threshold, largest = -1, -3, 2**31 - 1
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(mmap_threshold, largest)
        libc.mallopt(trim_threshold, largest)


def main() -> None:
    options = arguments()
    if sys.platform == "linux":
        keep_freed_memory()
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    options.work.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(options.base, dtype=getattr(torch, options.dtype))
    prompter = Prompter(options.base)
    held_back: list[Book] = read_books(options.books, held_back=True)
    books = [book for book in read_books(options.books, held_back=False) if book.slug not in OF_THE_EVALUATION]
    start = None
    state = HERE / "state.json"
    if state.exists() and not options.afresh:
        words = json.loads(state.read_text(encoding="utf-8"))
        start = (adapter.read(HERE / "adapter.safetensors"), int(words["step"]), float(words["seconds"]))
    training = Training(
        model,
        LessonMaker(Library(books), prompter, options.seed),
        LessonMaker(Library(held_back), prompter, options.seed),
        options.work,
        start=start,
    )
    hour, minute = map(int, options.until.split(":"))
    training.run(datetime.datetime.now().replace(hour=hour, minute=minute, second=0).timestamp())


if __name__ == "__main__":
    main()
