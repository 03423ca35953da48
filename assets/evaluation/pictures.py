"""Measures how well the words of pictures beside the text are read: charts, tables that are pictures, screenshots,
pasted scans and photographs, each in a PDF of its own with text around it.

    python assets/evaluation/pictures.py      prints the figures and writes pictures.json beside this file

matplotlib draws the charts, and is needed only here. The photographs are those that come with gradio; none has words.
A word counts as read if it is in the picture's words exactly as it was drawn, with its signs; each occurrence counts
once. A word counts as invented if it was not drawn.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gradio
import matplotlib
import numpy as np
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from app.readers import read_document
from app.readers.recognition import Recognition

SANS, SERIF = "DejaVuSans.ttf", "DejaVuSerif.ttf"
CHART_DPI = (100, 150, 200, 300)
PHOTOGRAPHS = ("cheetah.jpg", "cheetah1.jpg", "lion.jpg", "tower.jpg", "groot.jpeg")
LETTER = "The harbour of Orre grew in these years, and more people crossed the bay than ever before."

Drawn = tuple[Image.Image, str]
"""A picture and its words, with spaces between them."""


def _ticks(*values: float, form: str = "{:g}") -> str:
    return " ".join(form.format(value) for value in values)


def bars(figure: Figure) -> str:
    axes = figure.subplots()
    axes.bar(["2019", "2020", "2021", "2022"], [120, 95, 143, 168])
    axes.set(title="Ferry passengers by year", ylabel="Passengers (thousands)", xlabel="Year")
    for x, value in enumerate((120, 95, 143, 168)):
        axes.text(x, value + 2, str(value), ha="center")
    words = "Ferry passengers by year Passengers (thousands) Year 2019 2020 2021 2022 120 95 143 168"
    return f"{words} {_ticks(*range(0, 161, 20))}"


def lines(figure: Figure) -> str:
    axes = figure.subplots()
    months = ["January", "February", "March", "April", "May", "June"]
    axes.plot(months, [3, 5, 4, 8, 9, 12], label="North harbour")
    axes.plot(months, [2, 2, 3, 3, 5, 6], label="South harbour")
    axes.legend()
    axes.tick_params(axis="x", rotation=45)
    axes.set(title="Arrivals in 2023", ylabel="Ships per day")
    figure.tight_layout()
    return f"Arrivals in 2023 Ships per day North harbour South harbour {' '.join(months)} 2 4 6 8 10 12"


def pie(figure: Figure) -> str:
    axes = figure.subplots()
    axes.pie([45, 30, 25], labels=["Timber", "Grain", "Coal"], autopct="%1.1f%%")
    axes.set_title("Cargo by weight")
    return "Cargo by weight Timber Grain Coal 45.0% 30.0% 25.0%"


def lying(figure: Figure) -> str:
    axes = figure.subplots()
    names, values = ["Rents and leases", "Energy", "Salaries", "Repairs of quays"], [1.25, 3.4, 9.8, 2.05]
    axes.barh(names, values)
    axes.set_title("Costs of the harbour, 2022 (million euros)")
    for y, value in enumerate(values):
        axes.text(value + 0.1, y, f"{value:.2f}", va="center")
    figure.tight_layout()
    return f"Costs of the harbour, 2022 (million euros) {' '.join(names)} 1.25 3.40 9.80 2.05 0 2 4 6 8 10"


def grouped(figure: Figure) -> str:
    axes, x = figure.subplots(), np.arange(4)
    axes.bar(x - 0.2, [5, 7, 6, 9], 0.4, label="Imports")
    axes.bar(x + 0.2, [3, 4, 8, 7], 0.4, label="Exports")
    axes.set_xticks(x, ["Q1 2021", "Q2 2021", "Q3 2021", "Q4 2021"])
    axes.legend(title="Direction")
    axes.set(ylabel="Tonnes (thousands)", title="Trade by quarter")
    return "Trade by quarter Direction Imports Exports Tonnes (thousands) Q1 2021 Q2 2021 Q3 2021 Q4 2021 0 2 4 6 8"


def points(figure: Figure) -> str:
    axes, numbers = figure.subplots(), np.random.default_rng(1)
    axes.scatter(numbers.random(60) * 10, 20 + numbers.random(60) * 160)
    axes.set(xlabel="Wind speed (m/s)", ylabel="Power output (kW)", title="Turbine 7, measured in March")
    axes.set_yticks([50, 100, 150, 200])
    axes.annotate("calm day", (2, 190))
    return "Turbine 7, measured in March Wind speed (m/s) Power output (kW) calm day 0 2 4 6 8 10 50 100 150 200"


def two_axes(figure: Figure) -> str:
    left = figure.subplots()
    right = left.twinx()
    years = [2018, 2019, 2020, 2021]
    left.plot(years, [12, 14, 9, 15], label="Revenue")
    right.plot(years, [5, 4.5, 6, 7], "r", label="Staff")
    left.set(ylabel="Revenue (million)", xticks=years, yticks=[8, 10, 12, 14])
    right.set(ylabel="Staff (hundreds)", yticks=[4, 5, 6, 7])
    left.legend(loc="upper left")
    right.legend(loc="lower right")
    return "Revenue (million) Staff (hundreds) Revenue Staff 2018 2019 2020 2021 8 10 12 14 4 5 6 7"


def stacked(figure: Figure) -> str:
    axes = figure.subplots()
    axes.stackplot([2000, 2005, 2010, 2015, 2020], [2, 3, 4, 4, 5], [1, 2, 2, 3, 3], labels=["Wind", "Water"])
    axes.legend(loc="upper left")
    axes.set(title="Electricity by source", ylabel="TWh", xticks=[2000, 2005, 2010, 2015, 2020], yticks=[0, 2, 4, 6, 8])
    return "Electricity by source TWh Wind Water 2000 2005 2010 2015 2020 0 2 4 6 8"


def heat(figure: Figure) -> str:
    axes, data = figure.subplots(), np.array([[0.12, 0.55, 0.98], [0.34, 0.77, 0.21], [0.05, 0.66, 0.43]])
    axes.imshow(data, cmap="Blues")
    axes.set_xticks(range(3), ["Alpha", "Beta", "Gamma"])
    axes.set_yticks(range(3), ["Spring", "Summer", "Autumn"])
    for (row, column), value in np.ndenumerate(data):
        axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.6 else "black")
    return f"Alpha Beta Gamma Spring Summer Autumn {_ticks(*data.ravel(), form='{:.2f}')}"


def german(figure: Figure) -> str:
    axes = figure.subplots()
    axes.bar(["Köln", "München", "Görlitz"], [1.1, 1.5, 0.06])
    axes.set(title="Einwohner größerer Städte", ylabel="Millionen", yticks=[0, 0.5, 1, 1.5])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.1f}".replace(".", ","))
    return "Einwohner größerer Städte Millionen Köln München Görlitz 0,0 0,5 1,0 1,5"


CHARTS: tuple[Callable[[Figure], str], ...] = (
    bars, lines, pie, lying, grouped, points, two_axes, stacked, heat, german,
)  # fmt: skip


def chart(draw: Callable[[Figure], str], dpi: int) -> Drawn:
    figure, stream = Figure(figsize=(6, 4)), io.BytesIO()
    words = draw(figure)
    figure.savefig(stream, dpi=dpi)
    return Image.open(stream).convert("RGB"), words


def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


VESSELS = (
    ("Vessel", "Built", "Length (m)", "Crew"),
    ("Aurora", "1987", "112.5", "24"),
    ("Borealis", "1994", "98.0", "19"),
    ("Corvus", "2003", "141.2", "31"),
    ("Dorado", "2011", "87.6", "15"),
)
ACCOUNTS = (
    ("Item", "2021", "2022", "Change"),
    ("Port dues", "1,204,500", "1,310,220", "+8.8%"),
    ("Rents", "310,000", "298,400", "-3.7%"),
    ("Subsidies", "75,000", "75,000", "0.0%"),
    ("Total", "1,589,500", "1,683,620", "+5.9%"),
)


def table(rows: tuple[tuple[str, ...], ...], ruled: bool) -> Drawn:
    made = Image.new("RGB", (1000, 60 * len(rows) + 30), "white")
    pen = ImageDraw.Draw(made)
    for at, row in enumerate(rows):
        for column, cell in enumerate(row):
            pen.text((20 + 240 * column, 15 + 60 * at), cell, "black", font(SANS, 22))
        if ruled or at == 0:
            pen.line((10, 60 + 60 * at, 990, 60 + 60 * at), "gray")
    return made, " ".join(cell for row in rows for cell in row)


SCANS = (
    "The tenant shall give notice in writing not later\nthan three months before the end of the term. If no\n"
    "notice is given, the lease is extended by one year.\n\nThe deposit of 1,450 euros is returned within 30 days\n"
    "after the keys have been handed over.",
    "Minutes of the meeting of 14 March 1987\n\nPresent: M. Holt (chair), J. Berg, A. Lind.\n"
    "1. The accounts for 1986 were approved with 5 votes\nagainst 2.\n"
    "2. The crane at quay 3 is to be repaired before June.",
)


def scan(text: str, angle: float) -> Drawn:
    made = Image.new("L", (1240, 520), 243)
    ImageDraw.Draw(made).multiline_text((60, 60), text, 25, font(SERIF, 30), spacing=14)
    noise = np.random.default_rng(3).normal(0, 6, (520, 1240))
    made = made.rotate(angle, fillcolor=243)
    return Image.fromarray((np.asarray(made) + noise).clip(0, 255).astype(np.uint8)), " ".join(text.split())


def settings() -> Drawn:
    made = Image.new("RGB", (900, 500), (240, 240, 244))
    pen = ImageDraw.Draw(made)
    pen.rectangle((0, 0, 900, 40), (40, 60, 110))
    pen.text((12, 8), "Settings - Network", "white", font(SANS, 20))
    rows = (
        ("Host name", "orre-gate-02"),
        ("Address", "192.168.14.7"),
        ("Gateway", "192.168.14.1"),
        ("Timeout (seconds)", "45"),
    )
    for at, (name, value) in enumerate(rows):
        pen.text((40, 80 + 60 * at), name, (30, 30, 30), font(SANS, 16))
        pen.rectangle((300, 70 + 60 * at, 700, 105 + 60 * at), "white", "gray")
        pen.text((312, 78 + 60 * at), value, "black", font(SANS, 16))
    for x, name, ink, fill in ((580, "Apply", "white", (60, 120, 220)), (730, "Cancel", "black", (200, 200, 200))):
        pen.rectangle((x, 420, x + 120, 460), fill)
        pen.text((x + 30, 430), name, ink, font(SANS, 16))
    return made, f"Settings - Network {' '.join(word for row in rows for word in row)} Apply Cancel"


def dark() -> Drawn:
    words = "Build 4127 failed after 38 s\nerror: missing file harbour.toml\n2 warnings, 1 error"
    made = Image.new("RGB", (760, 220), (24, 26, 32))
    ImageDraw.Draw(made).multiline_text((24, 24), words, (220, 220, 210), font("DejaVuSansMono.ttf", 20), spacing=16)
    return made, " ".join(words.split())


def photograph(name: str) -> Drawn:
    return Image.open(Path(gradio.__file__).parent / "media_assets" / "images" / name).convert("RGB"), ""


def page_of(picture: Image.Image) -> Figure:
    """Draw a page with text, the picture, and a caption."""
    figure = Figure(figsize=(8.27, 11.69), dpi=picture.width / (0.8 * 8.27))
    for line in range(6):
        figure.text(0.1, 0.93 - 0.02 * line, LETTER, fontsize=9)
    axes = figure.add_axes((0.1, 0.42, 0.8, 0.36))
    axes.imshow(np.asarray(picture.convert("RGB")), interpolation="none")
    axes.axis("off")
    figure.text(0.2, 0.39, "Figure 1: What was counted in these years.", fontsize=9)
    return figure


def measured(drawn: list[Drawn], path: Path) -> dict[str, float]:
    """Write a PDF of pages with these pictures and read it."""
    with PdfPages(path) as pages:
        for picture, _ in drawn:
            pages.savefig(figure := page_of(picture), dpi=figure.dpi)
    document = read_document(path, recognition=Recognition(agreed=True, pictures="all"))
    counts = {"pictures": len(drawn), "words": 0, "read": 0, "invented": 0}
    for page, (_, expected) in zip(document.pages, drawn, strict=True):
        words = page.text.partition("[picture: ")[2].rpartition("]")[0].replace(" | ", " ")
        read, wanted = Counter(map(_plain, words.split())), Counter(map(_plain, expected.split()))
        counts["words"] += wanted.total()
        counts["read"] += (read & wanted).total()
        counts["invented"] += (read - wanted).total()
        if read != wanted:
            print("   missing", sorted((wanted - read).elements()), "invented", sorted((read - wanted).elements()))
    return counts


def _plain(word: str) -> str:
    """Return a word without the comma or colon that is put between the words of a row."""
    return word.rstrip(",:") if len(word) > 1 else word


def cases() -> dict[str, list[Drawn]]:
    made = {f"charts, {dpi} dpi": [chart(draw, dpi) for draw in CHARTS] for dpi in CHART_DPI}
    made["tables"] = [table(VESSELS, True), table(ACCOUNTS, False), table(ACCOUNTS, True)]
    made["pasted scans"] = [scan(SCANS[0], 1.2), scan(SCANS[1], -0.8)]
    made["screenshots"] = [settings(), dark()]
    made["photographs"] = [photograph(name) for name in PHOTOGRAPHS]
    return made


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, drawn in cases().items():
            of_kind = results[kind] = measured(drawn, Path(folder) / "pages.pdf")
            share = 100 * of_kind["read"] / max(of_kind["words"], 1)
            print(f"{kind}: {of_kind}, {share:.1f} % read", flush=True)
    (Path(__file__).parent / "pictures.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
