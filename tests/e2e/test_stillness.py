"""The page leaves the processor to the engine: nothing moves by itself, and what comes is drawn a few times a second.

Every frame that a browser draws without a graphics card is time of the engine's. The bounds are rates from above, far
below the sixty of a loop that draws every frame: a slow machine stays under them all the more.
"""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

from tests.e2e.steps import Open, Server, answered, ask, clean_page, read_text, reload, until, writing

# Frames that any script asks for, and how often each canvas is drawn anew.
WITNESS = """
window.asked = 0;
window.drawn = {};
const frame = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (then) => { window.asked += 1; return frame(then); };
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function (...box) {
  window.drawn[this.canvas.id] = (window.drawn[this.canvas.id] ?? 0) + 1;
  return clear.apply(this, box);
};
"""
BEGIN = "() => { window.asked = 0; window.drawn = {}; window.began = performance.now(); }"
RATES = """
() => {
  const seconds = (performance.now() - window.began) / 1000;
  const drawn = Object.entries(window.drawn).map(([canvas, times]) => [canvas, times / seconds]);
  return { asked: window.asked, drawn: Object.fromEntries(drawn), frames: window.asked / seconds };
}
"""
ENDLESS = """
() => document.getAnimations()
  .filter((animation) => animation.effect.getTiming().iterations === Infinity)
  .map((animation) => animation.animationName ?? "unnamed")
"""
# A browser whose graphics are of this name, or that has none for pages.
DRAWN_BY = """
const context = HTMLCanvasElement.prototype.getContext;
HTMLCanvasElement.prototype.getContext = function (kind, ...rest) {
  if (kind !== "webgl") return context.call(this, kind, ...rest);
  const name = %s;
  return name && { getParameter: () => name, getExtension: (which) => (which.includes("debug") ? {} : null) };
};
"""
CARDS = (
    ('"ANGLE (NVIDIA, NVIDIA GeForce RTX 4070, OpenGL 4.5.0)"', "yes"),
    ('"ANGLE (Google, Vulkan 1.3.0 (SwiftShader Device (Subzero)), SwiftShader driver)"', "no"),
    ("null", "no"),
)
QUIET_MS = 1_500
WATCHED_MS = 3_000
ONCE = 3  # frames of something that had still to settle
MAP_RATE = 7.5
PACE_RATE = 3.0
FRAME_RATE = 20.0


def watched(page: Page, milliseconds: int) -> dict[str, Any]:
    page.evaluate(BEGIN)
    page.wait_for_timeout(milliseconds)
    return dict(page.evaluate(RATES))


# Whether anything is painted in the first and in the last column of the chart.
PACE_COLUMNS = """
() => {
  const canvas = document.querySelector('#pace');
  const paint = canvas.getContext('2d');
  return [1, canvas.width - 2].map((x) => paint.getImageData(x, 0, 1, canvas.height).data.some((value) => value > 0));
}
"""


def test_the_page_draws_nothing_by_itself_and_an_answer_a_few_times_a_second(scripted: Server, open_page: Open) -> None:
    """And a drawing shows that the answer lives."""
    page = open_page(scripted, script=WITNESS)  # from its very start
    read_text(page, "Words of a quiet lamplighter")
    clean_page(page)
    until(page, lambda: watched(page, QUIET_MS)["asked"] <= ONCE)  # never, where something draws by itself
    assert page.evaluate(ENDLESS) == []
    ask(page, "Tell a long story.")
    writing(page)
    rates = watched(page, WATCHED_MS)
    assert page.evaluate(ENDLESS) == []
    until(page, lambda: page.locator("#chat .bot .caret[data-dim]").count() > 0)
    until(page, lambda: page.locator("#chat .bot .caret:not([data-dim])").count() > 0)
    until(page, lambda: "a token now" in (page.locator("#chat .live").text_content() or ""))
    assert page.locator("#chat .live").is_hidden() == (page.get_attribute("#trifold", "data-demo") == "no")
    assert page.evaluate(PACE_COLUMNS)[0], "the chart fills its width from the first tokens on"
    page.click("#stop")
    answered(page)
    assert page.locator("#chat .under svg polyline").count() == 1
    assert page.locator("#chat .live").count() == 0
    assert 0 < rates["drawn"].get("map-canvas", 0) <= MAP_RATE, rates
    assert 0 < rates["drawn"].get("pace", 0) <= PACE_RATE, rates
    assert 0 < rates["frames"] <= FRAME_RATE, f"the page draws with the screen, where Gradio has a slow clock: {rates}"


def test_the_page_tells_whether_a_graphics_card_draws_it(scripted: Server, open_page: Open) -> None:
    page = open_page(scripted)
    page.route("**/gradio.js", lambda route: route.fulfill(content_type="text/javascript", body=""))  # takes a second
    streams: list[str] = []
    page.on("request", lambda request: streams.append(request.url) if "/live" in request.url else None)
    for name, card in CARDS:
        page.add_init_script(DRAWN_BY % name)  # before those that were added earlier
        streams.clear()
        reload(page)
        page.wait_for_selector('#trifold[data-live="yes"]')
        assert [url.rpartition("/")[2].partition("&")[0] for url in streams] == [f"live?card={card}"], name
