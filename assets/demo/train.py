"""Makes the demo model: reads books, writes the folders `target` and `draft`. README.md states which runs made the
shipped model.

    python assets/demo/train.py --books FOLDER --work FOLDER --minutes 100

Training can be stopped. A second run with the same `--work` continues from the last checkpoint. The same command trains
on a GPU if there is one. On busy cores, start it with `torchrun --nproc-per-node 2` and `--threads 1`. `recipe/plan.py`
has the stages of training.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import torch  # noqa: E402  (the recipe lies beside this file)
from recipe import questions  # noqa: E402
from recipe.corpus import read_books  # noqa: E402
from recipe.distillation import distill  # noqa: E402
from recipe.export import export  # noqa: E402
from recipe.peers import Peers  # noqa: E402
from recipe.plan import PLANS  # noqa: E402
from recipe.training import Materials, TargetTraining  # noqa: E402
from recipe.vocabulary import load_or_train_tokenizer  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, required=True, help="folder of *.txt books")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoints and logs")
    parser.add_argument("--out", type=Path, default=HERE, help="where target/ and draft/ are written")
    parser.add_argument("--start", type=Path, help="folder of a trained target/ and draft/ to begin with")
    parser.add_argument("--rate", type=float, help="the highest learning rate, if not the plan's")
    parser.add_argument("--plan", choices=sorted(PLANS), default="gpu" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=100, help="for the target, over all runs together")
    parser.add_argument("--draft-minutes", type=float, default=20, help="for the draft, after the target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


def keep_freed_memory() -> None:
    """Tell glibc to keep and reuse large blocks of memory. When every block was returned to the system, a training step
    on a CPU took a third longer.
    """
    if sys.platform != "linux":
        return
    trim_threshold, mmap_threshold, largest = -1, -3, 2**31 - 1
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(mmap_threshold, largest)
        libc.mallopt(trim_threshold, largest)


def main() -> None:
    options = arguments()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    # Sharp attention gives weights so small that they are denormal floats. Computing with denormal floats would take a
    # third of a step on a CPU.
    torch.set_flush_denormal(True)
    options.work.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, held_back = (read_books(options.books, held_back=side) for side in (False, True))
    tokenizer = load_or_train_tokenizer(options.work / "tokenizer", train, questions.all_wordings(), options.seed)
    workers = max(1, options.threads - 2) if device.type == "cuda" else 0
    materials = Materials(train, held_back, tokenizer, device, options.seed, workers, Peers.join())
    plan = PLANS[options.plan]
    plan = replace(plan, learning_rate=options.rate or plan.learning_rate)
    training = TargetTraining(
        plan, materials, options.work, options.minutes, options.start and options.start / "target"
    )
    previous = [signal.signal(kind, training.stop) for kind in (signal.SIGTERM, signal.SIGINT)]
    target = training.run()
    for kind, handler in zip((signal.SIGTERM, signal.SIGINT), previous, strict=True):
        signal.signal(kind, handler)
    if not materials.peers.leads:
        return
    export(target, tokenizer, options.out / "target")
    draft = distill(
        target, plan, materials, options.work, options.draft_minutes, options.start and options.start / "draft"
    )
    export(draft, tokenizer, options.out / "draft")


if __name__ == "__main__":
    main()
