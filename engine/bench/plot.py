"""Line charts as SVG: milliseconds per token against context length, acceptance against a setting.

matplotlib draws them. It is imported, and needed, only where a picture is asked for.
"""

from __future__ import annotations

import importlib.util
import io
import sys
from dataclasses import dataclass
from typing import Any

from engine.errors import OptionError

# Colours that are told apart by people who see red and green alike (Okabe and Ito), and dashes for a second round.
_COLOURS = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#7f7f7f", "#8c6d00")
_SIZE = (7.6, 4.2)  # inches
# Text stays text, and the same lines give the same file.
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "trifold",
    "font.size": 9,
    "font.family": "sans-serif",
}


@dataclass(frozen=True)
class Axis:
    """What an axis shows; ``log`` spreads values by their ratio."""

    name: str
    log: bool = False


def check_installed() -> None:
    """Raises:
    OptionError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise OptionError(
            "Pictures are drawn by matplotlib, which is not installed.", f"{sys.executable} -m pip install matplotlib"
        )


def line_chart(title: str, x: Axis, y: Axis, lines: dict[str, list[tuple[float, float]]]) -> str:
    """One line per name, its points marked, with a legend beside the plot, as an SVG document."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    with rc_context(_SETTINGS):
        figure = Figure(figsize=_SIZE, layout="constrained")
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
