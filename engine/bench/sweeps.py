"""Sweeps: one setting at a time, everything else as it is. As in TriForce's ablations.

Acceptance is compared at fixed lengths (4 drafted, 8 pending, where none are given), because a controller would shorten
what is accepted less and so hide it. The refresh sweep compares time too, at the controller's own lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from engine.bench.plot import Axis, line_chart
from engine.bench.report import Measurement

if TYPE_CHECKING:
    from engine.bench.rows import Bench
    from engine.config import EngineConfig

_FIXED: dict[str, Any] = {"num_draft_tokens": 4, "num_pending_tokens": 8}
_BUDGETS = (512, 1024, 2048, 4096, 8192)
_CHUNKS = (1, 2, 4, 8, 16, 64)
_TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2)
_GAMMAS1, _GAMMAS2 = (1, 2, 4, 6, 8), (4, 8, 12, 16, 24)
_REFRESHES = ("never", "8", "4", "2", "1", "drop", "default")

SWEEPS = ("budget", "chunk", "temperature", "gammas", "refresh", "threads")


def refresh_settings(name: str) -> dict[str, Any]:
    """The configuration behind a refresh policy's short name: never, drop, verifications between two renewals, or
    default."""
    if name == "default":
        return {}
    return {"refresh": "every", "refresh_every": int(name)} if name.isdecimal() else {"refresh": name}


def points(sweep: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], float | None]]:
    """What a sweep tries: its label in the record, the configuration, and a temperature where that is swept."""
    if sweep == "budget":
        yield from (({"budget": n}, {**_FIXED, "retrieval_budget": n}, None) for n in _BUDGETS)
    elif sweep == "chunk":
        yield from (({"chunk": n}, {**_FIXED, "chunk_size": n}, None) for n in _CHUNKS)
    elif sweep == "temperature":
        yield from (({"temperature": t}, dict(_FIXED), t) for t in _TEMPERATURES)
    elif sweep == "gammas":
        for one in _GAMMAS1:
            for two in _GAMMAS2:
                label = {"gamma1": one, "gamma2": two}
                yield label, {"num_draft_tokens": one, "num_pending_tokens": two}, None
    elif sweep == "threads":
        yield from (({"threads": n}, dict(_FIXED), None) for n in range(1, torch.get_num_threads() + 1))
    else:
        yield from (({"refresh": name}, refresh_settings(name), None) for name in _REFRESHES)


def run_sweep(bench: Bench, sweep: str) -> Iterator[Measurement]:
    """Every point of a sweep, with the rows that were asked for."""
    own: EngineConfig = bench.session.config
    asked, threads = list(bench.options.temperature), torch.get_num_threads()
    for label, changes, temperature in points(sweep):
        bench.reshape(replace(own, **changes))
        torch.set_num_threads(label.get("threads", threads))
        bench.options.temperature = asked if temperature is None else [temperature]
        yield from bench.run(label)
    bench.reshape(own)
    torch.set_num_threads(threads)
    bench.options.temperature = asked


def sweep_picture(sweep: str, results: list[Measurement]) -> str:
    """Acceptance of the retrieval level against what was swept; for lengths and refreshing, time."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for r in results:
        name = f"{r.row}, {r.workload} {r.context:,}"
        value = r.acceptance.get("retrieval_judged")
        if sweep == "gammas":
            lines.setdefault(f"gamma1 {r.settings['gamma1']}", []).append((r.settings["gamma2"], r.ms_per_token))
        elif sweep == "threads":
            for stage in ("draft", "middle", "verify"):
                lines.setdefault(f"{stage}, {name}", []).append((r.settings["threads"], r.time_split[stage]))
        elif sweep == "refresh":
            at = _REFRESHES.index(r.settings["refresh"])
            lines.setdefault(name, []).append((at, r.ms_per_token))
        elif value is not None:
            lines.setdefault(name, []).append((float(r.settings[sweep]), value))
    if sweep == "gammas":
        return line_chart("Time against lengths", Axis("gamma 2"), Axis("ms per token"), lines)
    if sweep == "threads":
        return line_chart("Time by level against threads", Axis("threads"), Axis("ms per token"), lines)
    if sweep == "refresh":
        names = ", ".join(f"{i} = {name}" for i, name in enumerate(_REFRESHES))
        return line_chart("Time against refreshing", Axis(names), Axis("ms per token"), lines)
    axis = Axis(
        {"budget": "retrieval budget, tokens", "chunk": "chunk size, tokens"}.get(sweep, sweep), sweep != "temperature"
    )
    return line_chart(f"Acceptance against {sweep}", axis, Axis("accepted / judged, retrieval level"), lines)
