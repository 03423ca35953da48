"""What the bench found: one record per line of the table, as Markdown and as JSON. Runs nothing."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from engine.session import Session


@dataclass(frozen=True)
class Result:
    """One line of the table. Times are milliseconds; acceptance is None where a level does not exist."""

    row: str
    workload: str
    context: int
    temperature: float
    budget: int
    answer_tokens: int
    ms_per_token: float
    ratio_to_plain: float | None
    ratio_to_generate: float | None
    acceptance: dict[str, float | None]
    mean_acceptance_length: float | None
    time_split: dict[str, float]
    identical_to_plain: bool | None
    first_difference: dict[str, float] | None


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "torch": torch.__version__,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def table(results: Sequence[Result]) -> str:
    """Results as a Markdown table."""
    lines = [
        "| row | workload | context | T | ms/token | vs plain | vs generate | middle | verify | tokens/verify "
        "| draft / middle / verify / other ms | same as plain |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in results:
        same = "" if r.identical_to_plain is None else "yes" if r.identical_to_plain else "no"
        if r.first_difference:
            same += f" (token {r.first_difference['position']:.0f}, margin {r.first_difference['logit_margin']:.1e})"
        split = r.time_split
        lines.append(
            f"| {r.row} | {r.workload} | {r.context:,} | {r.temperature} | {r.ms_per_token:.1f} "
            f"| {_times(r.ratio_to_plain)} | {_times(r.ratio_to_generate)} | {_share(r.acceptance['middle'])} "
            f"| {_share(r.acceptance['verify'])} | {_plain(r.mean_acceptance_length)} "
            f"| {split['draft']:.1f} / {split['middle']:.1f} / {split['verify']:.1f} / {split['other']:.1f} | {same} |"
        )
    return "\n".join(lines)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def write_json(path: Path, session: Session, results: Sequence[Result]) -> None:
    """One object: machine, model, results."""
    model = {
        "target": session.target.name,
        "target_parameters": session.target.parameters,
        "draft": session.draft.name if session.draft else None,
        "dtype": str(session.target.dtype).removeprefix("torch."),
        "device": str(session.target.device),
        "config": asdict(session.config),
    }
    text = json.dumps({"machine": machine(), "model": model, "results": [asdict(r) for r in results]}, indent=1)
    path.write_text(text, encoding="utf-8")
