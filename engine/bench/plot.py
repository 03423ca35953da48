"""Line pictures as SVG, with nothing installed: ms per token against context length, acceptance against a setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

# Colours that are told apart by people who see red and green alike (Okabe and Ito), and dashes for a second round.
_COLOURS = ("#000000", "#e69f00", "#56b4e9", "#009e73", "#d55e00", "#0072b2", "#cc79a7", "#7f7f7f", "#8c6d00")
_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 210, 40, 56
_STEPS = (1, 2, 5)


@dataclass(frozen=True)
class Axis:
    """What an axis shows; ``log`` spreads values by their ratio."""

    name: str
    log: bool = False


def line_chart(title: str, x: Axis, y: Axis, lines: dict[str, list[tuple[float, float]]]) -> str:
    """One line per name, with a legend beside it, as an SVG document."""
    points = [point for line in lines.values() for point in line]
    if not points:
        return _document([f'<text x="20" y="30">{escape(title)}: nothing was measured</text>'])
    across = _Scale([p[0] for p in points], x.log, _LEFT, _WIDTH - _RIGHT)
    up = _Scale([p[1] for p in points] + ([] if y.log else [0.0]), y.log, _HEIGHT - _BOTTOM, _TOP)
    parts = [f'<text x="{_LEFT}" y="22" font-size="15" font-weight="600">{escape(title)}</text>']
    parts += _grid(across, up, sorted({p[0] for p in points}))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 14}" text-anchor="middle">{escape(x.name)}</text>')
    height = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text transform="translate(18 {height:.0f}) rotate(-90)" text-anchor="middle">{escape(y.name)}</text>'
    )
    for index, (name, line) in enumerate(lines.items()):
        parts += _line(index, name, [(across.at(a), up.at(b)) for a, b in sorted(line)])
    return _document(parts)


class _Scale:
    """Values to pixels."""

    def __init__(self, values: Sequence[float], log: bool, start: float, stop: float) -> None:
        self._log = log and min(values) > 0
        low, high = min(values), max(values)
        if self._log:
            low, high = math.log(low), math.log(high)
        room = 0.06 * (high - low) or 0.5
        self._low = low - (room if self._log or low else 0.0)
        self._high, self._start, self._stop = high + room, start, stop

    def at(self, value: float) -> float:
        place = math.log(value) if self._log else value
        return self._start + (place - self._low) / (self._high - self._low) * (self._stop - self._start)

    def ticks(self) -> list[float]:
        low, high = (math.exp(self._low), math.exp(self._high)) if self._log else (self._low, self._high)
        if self._log:
            powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            return [s * 10.0**p for p in powers for s in _STEPS if low <= s * 10.0**p <= high]
        rough = (high - low) / 6
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next((s * unit for s in (*_STEPS, 10) if s * unit >= rough), 10 * unit)
        return [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _grid(across: _Scale, up: _Scale, xs: list[float]) -> list[str]:
    parts = []
    for value in up.ticks():
        y = up.at(value)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in xs:
        x = across.at(value)
        parts.append(f'<path d="M{x:.1f} {_HEIGHT - _BOTTOM}v5" stroke="#555555"/>')
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 19}" text-anchor="middle">{value:,g}</text>')
    return [*parts, f'<path d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}" fill="none" stroke="#555555"/>']


def _line(index: int, name: str, points: list[tuple[float, float]]) -> list[str]:
    colour = _COLOURS[index % len(_COLOURS)]
    dash = ' stroke-dasharray="5 3"' if index >= len(_COLOURS) else ""
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"/>' for x, y in points]
    x, y = _WIDTH - _RIGHT + 18, _TOP + 12 + 21 * index
    return [
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>',
        *dots,
        f'<path d="M{x} {y - 4}h22" stroke="{colour}" stroke-width="2"{dash}/>',
        f'<text x="{x + 28}" y="{y}">{escape(name)}</text>',
    ]


def _document(parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#222222">'
    )
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>', *parts, "</svg>", ""])
