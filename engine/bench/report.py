"""Presents the bench's results as records, Markdown, JSON and pictures. Runs nothing.

A ``Measurement`` is a line of the bench's table. A ``Figure`` is one number from ``engine.bench.tiers`` or
``engine.bench.gpu``. matplotlib is needed, and imported, only to draw pictures.
"""

from __future__ import annotations

import datetime
import importlib.util
import io
import json
import os
import platform
import statistics
import sys
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from engine.config import EngineConfig
from engine.decode.loops import circling
from engine.errors import OptionError
from engine.events import Acceptance, Round

if TYPE_CHECKING:
    from engine.session import Session


# Minimum number of repeated tokens that count as a loop in the bench. It is smaller than ``loops.LEAST_REPEATED``, at
# which an answer is stopped, because speculation is already fast in a shorter loop.
_LEAST_CIRCLE = 24

NEVER_SLOWER = 0.97
"""Minimum speed on a book that counts as not slower, as a multiple of the speed of plain decoding. It is below 1 to
allow for the imprecision of timings.
"""

STAND_IN = "stand-in weights"
"""The note of every figure that was made with synthetic weights."""


@dataclass
class Run:
    """One run of a row: all cases of a workload, decoded one after another.

    ``tokens`` holds the tokens of all answers, and ``cases`` the number of tokens of each answer. ``ms`` holds the
    milliseconds of each timed token outside of loops, ``circling_ms`` those of tokens in loops. ``rounds`` leaves out
    rounds in loops, because a loop is copied so fast that its speed says nothing about other texts. ``processor_s`` is
    the processor time of all threads of the row's process, in seconds; 0 if it was not measured. ``first_s`` holds for
    each case the seconds to the first token, from when the prompt was in the cache; it is empty for other programs
    (peers).
    """

    tokens: list[int] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    cases: list[int] = field(default_factory=list)
    circling_ms: list[float] = field(default_factory=list)
    processor_s: float = 0.0
    first_s: list[float] = field(default_factory=list)

    @property
    def ms_per_token(self) -> float:
        """Mean milliseconds of the timed tokens outside of loops (repeated text). If all timed tokens are in loops,
        their mean. A median would be meaningless, because speculation makes several tokens at once.
        """
        counted = self.ms or self.circling_ms
        return sum(counted) / len(counted) if counted else float("nan")

    def add(self, other: Run) -> None:
        """Append the run of another case (prompt). The times of tokens in loops (repeated text) go into
        ``circling_ms``.
        """
        self.processor_s += other.processor_s
        self.first_s += other.first_s
        turning = circling(other.tokens, _LEAST_CIRCLE)
        self.tokens += other.tokens
        self.cases.append(len(other.tokens))
        # Other programs (peers) record no times for the tokens of their first step. So the list of times belongs to the
        # last tokens.
        for turns, ms in zip(turning[len(turning) - len(other.ms) :], other.ms, strict=True):
            (self.circling_ms if turns else self.ms).append(ms)
        place = 0
        for done in other.rounds:
            if not turning[place]:
                self.rounds.append(done)
            place += len(done.tokens)


@dataclass(frozen=True)
class Measurement:
    """One line of the table. Times are milliseconds, unless the field's name says otherwise. A ratio is None if nothing
    was counted.

    ``ms_per_token`` is a median over runs. ``ratio_to_plain`` and ``ratio_to_generate`` are the speed as a multiple of
    the speed of plain decoding and of transformers' ``generate``. ``mean_acceptance_length`` is the mean number of
    tokens that a round adds to the text; None without speculation. ``identical_to_plain``: whether the tokens equal
    those of plain decoding; None if ``temperature`` is above 0 or plain decoding was not run.

    ``acceptance`` holds ratios, keyed by name. Ratios of accepted to proposed tokens:

    - "middle": tokens proposed to the middle level (the target on the retrieval cache).
    - "verify": tokens proposed to the full cache.
    - "lookup": words of the book that went straight to the full cache.

    Ratios of accepted to judged tokens at the full cache, as in TriForce's tables. Tokens after a rejection are not
    judged.

    - "verify_judged": all proposed tokens.
    - "retrieval_judged": tokens that passed the middle level. ``runs_retrieval_judged`` holds this ratio of each run.
    - "drafted_judged": tokens that went to the full cache straight from the drafter.

    ``first_difference`` is the position of the first token that differs from plain decoding's, and ``logit_margin`` the
    difference of the logits of these two tokens. ``exact`` is the share of exact quotations among all quotations that
    were not cut off. An exact quotation is text of the book, from the words that the question asked for to the end of a
    sentence.

    ``circling`` is the share of timed tokens that are in loops, and ``circling_ms_per_token`` the milliseconds of such
    a token. Times and acceptance in all other fields leave loops out. ``read_tokens_per_s`` is the speed at which the
    row's program read the book; None if the program did not read the book. ``cores`` and ``read_cores`` are the
    processor time of the row's process divided by wall time: while it decoded, and while it read. ``first_token_s`` is
    the time in seconds from when the prompt is in the cache to the first token. It includes starting the drafter and
    timing passes.

    ``over_floor``, for plain rows, is the time per token divided by the time of reading all weights and KV once at
    ``memory_gb_per_s``, which is measured in the same run. ``runs_to_plain`` is the speed of each run as a multiple of
    the speed of the plain runs before and after it. If ``books`` is more than 1, most numbers are medians over this
    number of books. ``runs_ms_per_token`` then holds one number for each book, and ``span_to_plain`` the smallest and
    the largest ``ratio_to_plain`` of a book.
    """

    row: str
    workload: str
    context: int
    temperature: float
    settings: dict[str, Any]
    answer_tokens: int
    ms_per_token: float
    runs_ms_per_token: list[float]
    ratio_to_plain: float | None
    ratio_to_generate: float | None
    acceptance: dict[str, float | None]
    mean_acceptance_length: float | None
    time_split: dict[str, float]
    identical_to_plain: bool | None
    first_difference: int | None
    logit_margin: float | None
    exact: float | None = None
    runs_retrieval_judged: list[float | None] = field(default_factory=list)
    circling: float = 0.0
    circling_ms_per_token: float | None = None
    read_tokens_per_s: float | None = None
    cores: float | None = None
    read_cores: float | None = None
    first_token_s: float | None = None
    over_floor: float | None = None
    memory_gb_per_s: float | None = None
    books: int = 1
    span_to_plain: list[float] = field(default_factory=list)
    runs_to_plain: list[float] = field(default_factory=list)


def over_books(results: Sequence[Measurement]) -> Measurement:
    """Combine the measurements of one row on several books. Most numbers of the result are medians."""
    spans = [r.ratio_to_plain for r in results if r.ratio_to_plain is not None]
    same = [r.identical_to_plain for r in results if r.identical_to_plain is not None]
    parts = [r for r in results if r.first_difference is not None]
    first = max(parts, key=lambda r: r.logit_margin or 0.0, default=results[0])
    return replace(
        results[0],
        answer_tokens=round(statistics.median(r.answer_tokens for r in results)),
        ms_per_token=statistics.median(r.ms_per_token for r in results),
        runs_ms_per_token=[round(r.ms_per_token, 3) for r in results],
        ratio_to_plain=_median(spans),
        ratio_to_generate=_median([r.ratio_to_generate for r in results]),
        acceptance={name: _median([r.acceptance[name] for r in results]) for name in results[0].acceptance},
        mean_acceptance_length=_median([r.mean_acceptance_length for r in results]),
        time_split={name: statistics.median(r.time_split[name] for r in results) for name in results[0].time_split},
        identical_to_plain=all(same) if same else None,
        first_difference=first.first_difference,
        logit_margin=first.logit_margin,
        exact=statistics.fmean(shares) if (shares := [r.exact for r in results if r.exact is not None]) else None,
        runs_retrieval_judged=[r.acceptance["retrieval_judged"] for r in results],
        circling=statistics.fmean(r.circling for r in results),
        circling_ms_per_token=_median([r.circling_ms_per_token for r in results]),
        read_tokens_per_s=_median([r.read_tokens_per_s for r in results]),
        cores=_median([r.cores for r in results]),
        read_cores=_median([r.read_cores for r in results]),
        first_token_s=_median([r.first_token_s for r in results]),
        over_floor=_median([r.over_floor for r in results]),
        memory_gb_per_s=_median([r.memory_gb_per_s for r in results]),
        books=len(results),
        span_to_plain=[min(spans), max(spans)] if spans else [],
        runs_to_plain=[ratio for r in results for ratio in r.runs_to_plain],
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def measurement_of(
    row: str,
    runs: dict[str, list[Run]],
    place: dict[str, Any],
    difference: tuple[int, float] | None,
    exact: float | None = None,
    read: tuple[float, float | None] | None = None,
) -> Measurement:
    """Make the ``Measurement`` of one row. The row is compared with the rows ``plain`` and ``hf_generate``, so the runs
    of all rows are needed.

    Args:
        row: name of the row.
        runs: the runs of each row, keyed by the row's name.
        place: ``workload``, ``context``, ``temperature`` and ``settings`` of the row.
        difference: position and logit margin of the first token that differs from plain.
        exact: share of the row's quotations that are exact.
        read: tokens per second at which the row's program read the book, and the number of cores that it used
            meanwhile.
    """

    def median(name: str) -> float | None:
        return statistics.median(run.ms_per_token for run in runs[name]) if runs.get(name) else None

    mine, own = runs[row], median(row)
    plain, generate = median("plain"), median("hf_generate")
    assert own is not None
    rounds = [done for run in mine for done in run.rounds]
    tokens = sum(len(done.tokens) for done in rounds)
    circles = [ms for run in mine for ms in run.circling_ms]
    timed = len(circles) + sum(len(run.ms) for run in mine)
    speculates = rounds and row != "plain"
    greedy = place["temperature"] == 0 and bool(runs.get("plain"))
    return Measurement(
        row=row,
        **place,
        answer_tokens=len(mine[0].tokens),
        ms_per_token=own,
        runs_ms_per_token=[round(run.ms_per_token, 3) for run in mine],
        ratio_to_plain=plain / own if plain else None,
        ratio_to_generate=generate / own if generate else None,
        acceptance={
            "middle": _rate([done.middle for done in rounds]),
            "verify": _rate([done.verify for done in rounds]),
            "verify_judged": _judged([done.verify for done in rounds]),
            "retrieval_judged": _of_retrieval(rounds),
            "drafted_judged": _judged([done.verify for done in rounds if not done.passes]),
            "lookup": _rate([done.lookup for done in rounds]),
        },
        mean_acceptance_length=tokens / len(rounds) if speculates else None,
        time_split=_split(mine),
        identical_to_plain=difference is None if greedy else None,
        first_difference=difference[0] if difference else None,
        logit_margin=difference[1] if difference else None,
        exact=exact,
        runs_retrieval_judged=[_of_retrieval(run.rounds) for run in mine],
        circling=len(circles) / timed if timed else 0.0,
        circling_ms_per_token=sum(circles) / len(circles) if circles else None,
        read_tokens_per_s=read[0] if read else None,
        cores=_cores(mine),
        read_cores=read[1] if read else None,
        first_token_s=_median([first for run in mine for first in run.first_s]),
        runs_to_plain=_run_by_run(mine, runs.get("plain", [])),
    )


def _cores(runs: Sequence[Run]) -> float | None:
    """Processor time of runs divided by their wall time; None if processor time was not measured."""
    wall_s = sum(sum(run.ms) + sum(run.circling_ms) for run in runs) / 1000.0
    spent_s = sum(run.processor_s for run in runs)
    return spent_s / wall_s if spent_s and wall_s else None


def _run_by_run(runs: Sequence[Run], plain: Sequence[Run]) -> list[float]:
    """Return the speed of each run, as a multiple of the mean speed of the plain runs just before and after it. The
    list is empty if plain decoding was not run before and after each run.
    """
    if len(plain) != 2 * len(runs):
        return []
    pairs = zip(runs, plain[::2], plain[1::2], strict=True)
    return [(before.ms_per_token + behind.ms_per_token) / 2 / run.ms_per_token for run, before, behind in pairs]


def _rate(levels: list[Acceptance]) -> float | None:
    proposed = sum(level.proposed for level in levels)
    return sum(level.accepted for level in levels) / proposed if proposed else None


def _of_retrieval(rounds: Sequence[Round]) -> float | None:
    """Share of the judged tokens that the full cache accepted, in rounds with passes over the retrieval cache; None if
    none was judged.
    """
    return _judged([done.verify for done in rounds if done.passes])


def _judged(levels: list[Acceptance]) -> float | None:
    judged = sum(min(level.proposed, level.accepted + 1) for level in levels)
    return sum(level.accepted for level in levels) / judged if judged else None


def _split(runs: list[Run]) -> dict[str, float]:
    """Milliseconds per token, keyed by stage: draft, middle, verify, transfer, and "other" for the remaining time."""
    tokens = max(1, sum(len(run.ms) for run in runs))
    split = {
        stage: sum(getattr(done.split, stage) for run in runs for done in run.rounds) / tokens
        for stage in ("draft", "middle", "verify", "transfer")
    }
    total = sum(sum(run.ms) for run in runs) / tokens
    split["other"] = max(0.0, total - sum(split.values()))
    return split


def remarks(session: Session) -> dict[str, str]:
    """Return what each line of a table must note about the session: stand-in weights and quantized KV. Empty if neither
    is used.
    """
    weights = {"weights": "stand-in"} if STAND_IN in session.target.name else {}
    return {**weights, "kv": session.config.kv} if session.full.shape.quantized else weights


def budget_of(config: EngineConfig) -> str:
    """Describe how many tokens the retrieval cache may select, for example "4,096 or 1/8 of the context"."""
    least = f"{config.retrieval_budget:,}"
    return f"{least} or 1/{config.retrieval_share} of the context" if config.retrieval_share else least


def machine() -> dict[str, Any]:
    """Describe the machine on which this process runs."""
    import transformers

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_at_end": load,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def table(results: Sequence[Measurement]) -> str:
    """Return measurements as a Markdown table."""
    lines = [
        "| row | workload | context | T | ms/token | vs plain | vs generate | middle | verify (judged) | of retrieval "
        "| of draft | lookup | tokens/verify | draft / middle / verify / other ms | same as plain | exact | in circles "
        "| cores | first token, s | read, tokens/s | over memory's floor |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        name = " ".join([r.row, *(f"{key}={value}" for key, value in r.settings.items())])
        same = "" if r.identical_to_plain is None else "yes" if r.identical_to_plain else "no"
        if r.first_difference is not None:
            same += f" (token {r.first_difference}, margin {r.logit_margin:.1e})"
        split, accepted = r.time_split, r.acceptance
        judged = f" ({_share(accepted['verify_judged'])})" if accepted["verify"] is not None else ""
        lines.append(
            f"| {name} | {r.workload} | {r.context:,} | {r.temperature} | {r.ms_per_token:.1f}{_spread(r)} "
            f"| {_times(r.ratio_to_plain)}{_range(r.span_to_plain)} | {_times(r.ratio_to_generate)} "
            f"| {_share(accepted['middle'])} "
            f"| {_share(accepted['verify'])}{judged} "
            f"| {_share(accepted.get('retrieval_judged'))}{_span(r.runs_retrieval_judged)} "
            f"| {_share(accepted.get('drafted_judged'))} | {_share(accepted['lookup'])} "
            f"| {_plain(r.mean_acceptance_length)} "
            f"| {split['draft']:.1f} / {split['middle']:.1f} / {split['verify']:.1f} / {split['other']:.1f} | {same} "
            f"| {_percent(r.exact)} | {_circles(r)} "
            f"| {_plain(r.cores)} | {'' if r.first_token_s is None else f'{r.first_token_s:.2f}'} | {_read(r)} "
            f"| {'' if r.over_floor is None else f'{r.over_floor:.2f}x ({r.memory_gb_per_s:.0f} GB/s)'} |"
        )
    return "\n".join(lines)


def never_slower(results: Sequence[Measurement]) -> str:
    """Return a sentence for every row but plain: whether it was at least as fast as plain decoding on every book.

    A run's figure is its speed relative to the plain runs just before and after it. A book's figure is the median over
    its runs. Neighbouring runs are compared because a machine may be three times slower for a minute. Such a slowdown
    affects neighbouring runs alike, so that the ratio of their speeds hardly changes.
    """
    lines = []
    for r in results:
        if r.row == "plain" or not r.runs_to_plain:
            continue
        each = len(r.runs_to_plain) // r.books
        books = [
            statistics.median(r.runs_to_plain[start : start + each]) for start in range(0, len(r.runs_to_plain), each)
        ]
        said = "never slower than plain" if min(books) >= NEVER_SLOWER else "SLOWER THAN PLAIN"
        where = f"{r.row}, {r.workload} {r.context:,} T={r.temperature}"
        span = f"{min(r.runs_to_plain):.2f}x to {max(r.runs_to_plain):.2f}x"
        over = ", ".join(f"{book:.2f}x" for book in books)
        lines.append(f"{said}: {where}: {over}, medians of {each} runs each, runs from {span}")
    return "\n".join(lines)


def _spread(r: Measurement) -> str:
    """For the row ``plain``, which is timed before and after the other rows, return the milliseconds per token of the
    fastest and of the slowest run. Return "" for any other row, for a single run, and for medians over several books.
    """
    if r.row != "plain" or r.books > 1 or len(r.runs_ms_per_token) == 1:
        return ""
    return f" ({min(r.runs_ms_per_token):.1f} to {max(r.runs_ms_per_token):.1f}, before and behind the others)"


def _read(r: Measurement) -> str:
    if r.read_tokens_per_s is None:
        return ""
    return f"{r.read_tokens_per_s:,.0f}" + ("" if r.read_cores is None else f" by {r.read_cores:.2f} cores")


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _span(runs: Sequence[float | None]) -> str:
    """Return the smallest and the largest of the values that are not None, as text; "" if they are equal."""
    shares = [_share(share) for share in runs if share is not None]
    return f" ({min(shares)} to {max(shares)})" if len(set(shares)) > 1 else ""


def _range(span: Sequence[float]) -> str:
    return f" ({span[0]:.2f} to {span[1]:.2f})" if span else ""


def _circles(r: Measurement) -> str:
    if not r.circling:
        return ""
    each = "" if r.circling_ms_per_token is None else f" ({r.circling_ms_per_token:.1f} ms)"
    return f"{r.circling:.0%}{each}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def write_json(path: Path, session: Session, results: Sequence[Measurement]) -> None:
    """Write one JSON object with the machine, the model and the results."""
    model = {
        "target": session.target.name,
        "target_parameters": session.target.parameters,
        "draft": session.draft.name if session.draft else None,
        "draft_parameters": session.draft.parameters if session.draft else None,
        "dtype": str(session.target.dtype).removeprefix("torch."),
        "device": str(session.target.device),
        "config": asdict(session.config),
    }
    text = json.dumps({"machine": machine(), "model": model, "results": [asdict(r) for r in results]}, indent=1)
    path.write_text(text, encoding="utf-8")


# Figures --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One measured number, which is a line of a table. ``part`` names the part of the measurements to which it belongs.
    ``target`` is the value that it should reach; "" if there is none. ``also`` are numbers that were measured with it,
    keyed by name: None stands for a rate of which nothing was counted.
    """

    part: str
    what: str
    value: float | str
    unit: str
    target: str = ""
    note: str = ""
    also: dict[str, float | None] = field(default_factory=dict)


def figure_table(results: dict[str, Any]) -> str:
    """Return all figures of a file of results as a Markdown table."""
    lines = []
    for run in results["runs"]:
        where = run["machine"]["gpu"] or f"{run['machine']['processor']}, no GPU"
        versions = f"torch {run['machine']['torch']}, transformers {run['machine']['transformers']}"
        lines += [f"{run['part']}: {run['date']}, {where}, {versions}; {run['model']}", ""]
        lines += ["| figure | value | unit | target | note |", "|---|---|---|---|---|"]
        for figure in run["figures"]:
            value = figure["value"]
            shown = value if isinstance(value, str) else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
            also = [f"{name} {number:,.3g}" for name, number in figure.get("also", {}).items() if number is not None]
            note = ", ".join(filter(None, [figure["note"], *also]))
            lines.append(f"| {figure['what']} | {shown} | {figure['unit']} | {figure['target']} | {note} |")
        lines.append("")
    return "\n".join(lines)


def collect(figures: Iterator[Figure], part: str) -> list[Figure]:
    """Measure all figures of one part of the measurements, and return them as a list (``as_they_come``)."""
    return list(as_they_come(figures, part))


def as_they_come(figures: Iterator[Figure], part: str) -> Generator[Figure, None, None]:
    """Yield the figures of one part of the measurements, and write each to standard error when it is measured. If an
    exception ends the part, the last figure reports the exception.
    """
    try:
        for figure in figures:
            sys.stderr.write(f"{figure.what}: {figure.value} {figure.unit} {figure.note}\n")
            yield figure
    except Exception as error:  # noqa: BLE001 - compilers, drivers and libraries raise what they like
        yield Figure(part, "ended early", f"{type(error).__name__}: {error}"[:200], "")


def results_of(out: Path) -> dict[str, Any]:
    """Read a file of results. An absent file counts as empty.

    Raises:
        ValueError: the file holds no results.
    """
    content: Any = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"runs": []}
    if not isinstance(content, dict) or not isinstance(content.get("runs"), list):
        raise ValueError(f"{out} holds no results")
    results: dict[str, Any] = content
    return results


def add_figures(
    out: Path, part: str, model: str, figures: Sequence[Figure], here: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Put the figures of one part of the measurements into the file of results ``out``, in place of earlier figures of
    this part. Return all results of the file. The file is replaced in one step, so that it is never half written.

    Args:
        model: the model's name or shape, with a note about its weights.
        here: the description of this machine, as ``machine()`` returned it earlier. If it is None, ``machine()`` is
            called, which may fail after an error of the GPU.
    """
    results = results_of(out)
    run = {
        "part": part,
        "date": datetime.date.today().isoformat(),
        "machine": here or machine(),
        "model": model,
        "figures": [asdict(figure) for figure in figures],
    }
    results["runs"] = [other for other in results["runs"] if other["part"] != part] + [run]
    partial = out.with_name(f".{out.name}-{os.getpid()}")
    partial.write_text(json.dumps(results, indent=1), encoding="utf-8")
    os.replace(partial, out)
    return results


# Pictures ------------------------------------------------------------------------------------------------------------

# Colours that red-green colour-blind readers can distinguish (Okabe and Ito). If there are more lines than colours, the
# colours are used again for dashed lines.
_COLOURS = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#7f7f7f", "#8c6d00")
_SIZE = (7.6, 4.2)  # width and height in inches
# Settings of matplotlib. With these, the SVG contains text as text and not as outlines, and the same data always give
# the same file.
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "trifold",
    "font.size": 9,
    "font.family": "sans-serif",
}


@dataclass(frozen=True)
class Axis:
    """An axis of a chart: its label, ``name``, and whether its scale is logarithmic (``log``)."""

    name: str
    log: bool = False


def check_matplotlib() -> None:
    """Check that pictures can be drawn.

    Raises:
        OptionError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError(
            "Pictures are drawn by matplotlib, which is not installed.", f"{sys.executable} -m pip install matplotlib"
        )


def line_chart(title: str, x: Axis, y: Axis, lines: dict[str, list[tuple[float, float]]]) -> str:
    """Return a chart as an SVG document. It has one line with marked points for each name in ``lines``, and a legend
    next to the plot.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Picture
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    with rc_context(_SETTINGS):
        figure = Picture(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        axes.set(title=title, xlabel=x.name, ylabel=y.name)
        for index, (name, points) in enumerate(lines.items()):
            (line,) = axes.plot(*zip(*sorted(points), strict=True), marker="o", ms=4, label=name, gid=f"line-{index}")
            line.set_color(_COLOURS[index % len(_COLOURS)])
            line.set_linestyle("--" if index >= len(_COLOURS) else "-")
        ticks = sorted({place for points in lines.values() for place, _ in points})
        axes.set_xscale("log" if x.log else "linear")
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        if y.log:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            axes.yaxis.set_minor_locator(NullLocator())
        else:
            axes.set_ylim(bottom=0)
        axes.grid(axis="y", color="#dddddd")
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right upper", frameon=False)
        document = io.StringIO()
        figure.savefig(document, format="svg", metadata={"Date": None})
    return document.getvalue()


def picture(results: Sequence[Measurement]) -> str:
    """Return a chart of milliseconds per token against context length, with one line per row, as an SVG document."""
    lines: dict[str, list[tuple[float, float]]] = {}
    workloads = {(r.workload, r.temperature) for r in results}
    for r in results:
        name = (
            r.row if len(workloads) == 1 else f"{r.row}, {r.workload}" + (f" T={r.temperature}" * bool(r.temperature))
        )
        lines.setdefault(name, []).append((float(r.context), r.ms_per_token))
    axes = Axis("context, tokens", log=True), Axis("ms per token", log=True)
    return line_chart("Time per token", *axes, lines)
