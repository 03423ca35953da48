"""Pictures of the page for the README: ``python -m tests.e2e.picture`` with the real models and the sample book;
``python -m tests.e2e.picture MODEL`` of a conversation with a larger model, such as ``reader``.

Writes pictures of a page, notes, a search beside the contents, several documents and the race into assets/screenshots,
some in the dark and some in the light, in 256 colours. Not a test: run it when the page or the models have changed. Of
the sample's questions the ones whose answer the models quote right are shown; what is in the pictures was really
answered.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.e2e.steps import DEMO_VIEW, PHONE, WIDE, Server, answered, ask, clean_page, give, until
from tests.processes import ROOT, browser_path, free_port, is_up

PICTURES = ROOT / "assets" / "screenshots"
SECOND = ROOT / "engine" / "README.md"
"""The document that joins the sample book."""
PAPER = ROOT / "assets" / "evaluation" / "documents" / "paper.pdf"
PAPER_QUESTIONS = (
    "Which shade did the workers prefer, and in how many of their first visits?",
    "What did Delgado find?",
)
READER_HEIGHT = 690
MINUTES = 20
SHOWN = 2
SETTLE_MS = 800
# Citations that lead to a page, the surest first.
BEST = ("#chat .cite.quoted", "#chat .cite.verbatim", "#chat .cite.nearly", "#chat .cite.drew")


def main(model: str, chromium: str) -> None:
    """Take the pictures of ``model``; "" are the demo's."""
    port = free_port()
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "app.cli", "--no-browser", "--port", str(port)]
        command += ["--model", model] if model else []
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TRIFOLD_DATA": data})
        try:
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": WIDE[0], "height": WIDE[1]}, color_scheme="dark")
                if not model:
                    page.add_init_script(DEMO_VIEW)
                until(page, lambda: is_up(port), 120)
                page.goto(Server(port, Path(data)).login_address())
                page.wait_for_selector('#trifold[data-live="yes"]')
                if model:
                    converse(page)
                else:
                    take(page)
                browser.close()
        finally:
            process.terminate()
            process.wait(30)


def converse(page: Page) -> None:
    """Ask a larger model about a paper, and take a picture beside the page and one of a phone."""
    page.set_viewport_size({"width": WIDE[0], "height": READER_HEIGHT})
    give(page, PAPER)
    page.wait_for_selector('#trifold[data-stage="ready"]', timeout=MINUTES * 60_000)
    for question in PAPER_QUESTIONS:
        ask(page, question)
        answered(page, MINUTES * 60_000)
        page.wait_for_timeout(SETTLE_MS)
    best = next(cite for cite in (*BEST[:2], "#chat .cite.says", *BEST[2:]) if page.locator(cite).count())
    page.locator(best).first.click()
    page.wait_for_selector('#page-sheet[data-state="drawn"]')
    page.wait_for_timeout(1500)  # the marks come by themselves
    save(page, "reader", "light")
    page.keyboard.press("Escape")
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.wait_for_timeout(SETTLE_MS)
    save(page, "reader-phone", "light")
    (PICTURES / "reader-phone-light.png").replace(PICTURES / "reader-phone.png")


def take(page: Page) -> None:
    """Open the sample book, ask, and take every picture in both themes."""
    PICTURES.mkdir(exist_ok=True)
    page.wait_for_selector("#ask-box textarea", state="attached", timeout=60_000)
    page.wait_for_selector('#trifold[data-live="yes"]')
    page.click("#sample")
    page.wait_for_selector('#trifold[data-stage="ready"]', timeout=MINUTES * 60_000)
    questions = tried(page)
    show_best(page, questions)
    best = next((cite for cite in BEST if page.locator(cite).count()), None)
    if best is not None:
        page.locator(best).last.click()
        page.wait_for_selector('#page-sheet[data-state="drawn"]')
        page.wait_for_timeout(1500)  # the marks come by themselves
        save(page, "page", "dark")
        save(page, "page", "light")
        page.keyboard.press("Escape")
    fresh(page)  # the race takes the book's own questions then, one after the other until there is enough to see
    page.click("#race-start")
    page.wait_for_selector('#race-end[data-state="over"]', timeout=MINUTES * 60_000)
    save(page, "race", "dark")
    page.click("#race-close")
    panels(page, questions)


def panels(page: Page, questions: list[str]) -> None:
    """A note of each answer, the chapters beside a search, and two documents open together."""
    show_best(page, questions)
    for button in page.locator("#chat button.action[value^='note:']").all():
        button.click()
        page.locator("#note-sentences li button").first.click()
        page.wait_for_selector("#note-sentences", state="hidden")
    page.click("#open-notes")
    page.wait_for_selector("#notes .note")
    page.locator("#toast").wait_for(state="hidden", timeout=20_000)
    save(page, "notes", "light")
    page.click("#open-contents")
    page.click("#open-find")
    page.fill("#find-words", "north head")
    page.wait_for_selector("#find-hits button")
    page.wait_for_selector('#page-sheet[data-state="drawn"]')
    page.wait_for_timeout(1500)  # the marks come by themselves
    save(page, "find", "light")
    page.click("#page-close")
    page.click("#contents-close")
    page.set_input_files("#more-file", str(SECOND))
    page.click("#confirm-yes")
    page.wait_for_selector('#trifold[data-stage="ready"]:has(#documents li + li)', timeout=MINUTES * 60_000)
    save(page, "documents", "dark")


def tried(page: Page) -> list[str]:
    """The sample's questions, the ones whose answer is verified first, after each was asked once."""
    questions = json.loads((ROOT / "assets" / "sample" / "sample.json").read_text(encoding="utf-8"))["questions"]
    ranked: list[tuple[int, str]] = []
    for item in questions:
        fresh(page)
        ask(page, item["question"])
        answered(page, MINUTES * 60_000)
        page.wait_for_timeout(SETTLE_MS)
        rank = next((at for at, cite in enumerate(BEST) if page.locator(cite).count()), len(BEST))
        ranked.append((rank, item["question"]))
    return [question for _, question in sorted(ranked, key=lambda pair: pair[0])]


def show_best(page: Page, questions: list[str]) -> None:
    fresh(page)
    for question in questions[:SHOWN]:
        ask(page, question)
        answered(page, MINUTES * 60_000)
        page.wait_for_timeout(SETTLE_MS)


def fresh(page: Page) -> None:
    """A new chat, once Gradio has let go of the last one."""
    clean_page(page)
    page.wait_for_timeout(SETTLE_MS)


def save(page: Page, name: str, scheme: str) -> None:
    """One picture, in the dark or in the light."""
    page.mouse.move(5, 5)
    page.evaluate("document.activeElement.blur()")
    if page.get_attribute("html", "data-theme") != scheme:
        page.evaluate("window.trifoldTheme.toggle()")
    page.wait_for_timeout(SETTLE_MS)
    picture = PICTURES / f"{name}-{scheme}.png"
    page.screenshot(path=str(picture))
    # A third of the bytes: the page is of few colours. Without dithering flat areas stay flat.
    few = Image.open(picture).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "", browser_path() or "chromium")
