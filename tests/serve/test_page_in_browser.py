"""The page in a real browser: headless Chromium, driven by Playwright."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adar_runtime import Graph, write_graph
from adar_serve import Limits, Settings
from tests.helpers import random_graph
from tests.serve.servers import Running, eventually, running

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"
)

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
REFUSED = (
    "Failed to load resource: the server responded with a status of 4"  # the browser logs refusals itself
)
SECONDS = 30
DROPPED = """bytes => {
    const all = new DataTransfer();
    all.items.add(new File([new Uint8Array(bytes)], "good.npz"));
    return all;
}"""
UNNAMED = """() => [...document.querySelectorAll("input, select, button, summary, canvas, [role=img]")]
    .filter((one) => !one.labels?.length && !one.textContent.trim() && !one.closest("[aria-label]"))
    .map((one) => one.outerHTML)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Any]:
    """A function that opens an address. Errors of scripts and of the policy fail the test."""
    problems: list[str] = []
    contexts = []

    def watch(page: Any) -> None:
        page.set_default_timeout(1000 * SECONDS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)

    def opened(address: str, **options: Any) -> Any:
        context = browser.new_context(reduced_motion="reduce", **options)
        context.on("page", watch)
        contexts.append(context)
        page = context.new_page()
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [each for each in problems if not each.startswith(REFUSED)] == []


def ready(page: Any, **values: Any) -> Any:
    """Wait for the choices, and set the fields of the form."""
    page.locator("#run:enabled").wait_for()
    for name, value in ({"nodes": "400", "budget": "50", "solver": "euler"} | values).items():
        field = page.locator(f"#{name}")
        if field.evaluate("one => one.localName") == "select":
            field.select_option(value)
        else:
            field.fill(value)
    return page


def finished(page: Any) -> str:
    page.locator("#cancel:disabled").wait_for()
    return page.locator("#state").inner_text()


def expect_text(page: Any, name: str, pattern: str) -> None:
    playwright.expect(page.locator(f"#{name}")).to_have_text(re.compile(pattern), timeout=1000 * SECONDS)


def total(page: Any) -> list[int]:
    return [
        int(each.split(" ")[0].replace(",", ""))
        for each in page.locator(".bars td:last-child").all_inner_texts()
    ]


@contextmanager
def serving(bundle: Path, **settings: Any) -> Iterator[Running]:
    with running([f"board={bundle}"], Settings(port=0, grpc_port=None, drain_seconds=0, **settings)) as found:
        yield found


def test_run_and_move_through_time(served: Running, tab: Any) -> None:
    page = ready(tab(served.addresses["http"]), exit="final")
    assert page.locator("#play").is_disabled()
    page.click("#run")
    assert finished(page) == "Finished: the whole budget was used, as requested."
    assert page.locator("#time").get_attribute("max") == "40"
    expect_text(page, "moment", r"^t = 1\.000, step 50, alignment -?[\d.]+$")
    assert "The answer is at t = 1.000" in page.locator("#chart").get_attribute("aria-label")
    assert sum(total(page)) == 400
    assert page.locator("#shares canvas").is_visible()
    by_prediction = page.locator("#drawing").screenshot()
    page.get_by_text("Certainty", exact=True).click()
    assert eventually(lambda: page.locator("#drawing").screenshot() != by_prediction)
    by_certainty = page.locator("#drawing").screenshot()
    page.locator("#time").press("Home")
    expect_text(page, "moment", r"^t = 0\.000, step 0, ")
    assert sum(total(page)) == 400
    assert eventually(lambda: page.locator("#drawing").screenshot() != by_certainty)
    page.get_by_role("button", name="Play").click()
    expect_text(page, "moment", r"^t = 1\.000")
    page.locator("#numbers summary").click()
    assert page.locator("#table tbody tr").count() == 41
    assert "50 (answer)" in page.locator("#table tr.answer").inner_text()
    assert page.locator("#table thead").inner_text().split() == [
        "step", "time", "alignment", "safe", "mine", "accuracy"]  # fmt: skip


def test_bad_file_then_good_file(served: Running, board: Graph, tab: Any, tmp_path: Path) -> None:
    page = ready(tab(served.addresses["http"]))
    (tmp_path / "bad.npz").write_bytes(b"hello")
    page.set_input_files("#file", tmp_path / "bad.npz")
    page.click("#run")
    expect_text(page, "problem", "the file is neither a .npz graph nor the JSON of a request")
    assert page.locator("#problem").get_attribute("role") == "alert"
    write_graph(tmp_path / "good.npz", board)
    content = list((tmp_path / "good.npz").read_bytes())
    dropped = page.evaluate_handle(DROPPED, content)
    page.dispatch_event("#drop", "drop", {"dataTransfer": dropped})
    expect_text(page, "chosen-name", "good.npz")
    page.click("#run")
    assert finished(page).startswith("Finished")
    assert page.locator("#problem").is_hidden()
    assert sum(total(page)) == board.nodes
    page.get_by_role("button", name="Remove the file").click()
    page.click("#run")
    assert finished(page).startswith("Finished")
    assert sum(total(page)) == 400


def test_two_tabs_at_once(served: Running, tab: Any) -> None:
    pages = [ready(tab(served.addresses["http"]), seed=str(seed), budget="100") for seed in (1, 2)]
    for page in pages:
        page.click("#run")
    for page in pages:
        assert finished(page).startswith("Finished")
    for seed, page in enumerate(pages, 1):
        query = {"sample": "minesweeper", "nodes": 400, "seed": seed, "max_steps": 100, "solver": "euler"}
        text = served.http.post("/explore/board", params=query).text
        counts = re.findall(r'"counts": \[(\d+), (\d+)\]', text)[-1]
        assert total(page) == [int(each) for each in counts]


def test_by_keyboard(served: Running, tab: Any) -> None:
    page = tab(served.addresses["http"])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    ready(page)
    page.locator("#model").focus()
    names = []
    for _ in range(12):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.id"))
    assert names[:8] == ["sample", "nodes", "seed", "file", "budget", "solver", "exit", "run"]
    page.locator("#budget").focus()
    page.keyboard.press("Enter")
    assert finished(page).startswith("Finished")
    expect_text(page, "announcement", r"^Finished at t = ")
    page.locator("#time").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect_text(page, "moment", r"^t = 0\.040, step 2")
    assert page.locator("#time").get_attribute("aria-valuetext").startswith("t = 0.040")
    assert page.evaluate(UNNAMED) == []


def test_cancel_ends_the_run_on_the_server(served: Running, tab: Any) -> None:
    page = ready(tab(served.addresses["http"]), budget="1000000", exit="final")
    page.click("#run")
    expect_text(page, "state", "^Running: step ")
    page.click("#cancel")
    expect_text(page, "state", r"^Cancelled\.$")
    assert eventually(lambda: served.service.runs.running == 0)


def test_a_full_queue_says_when_to_try_again(bundle_folder: Path, tab: Any) -> None:
    with serving(bundle_folder, limits=Limits(concurrent=1, queue=0, steps=10**6)) as found:
        first = ready(tab(found.addresses["http"]), budget="1000000", exit="final")
        first.click("#run")
        expect_text(first, "state", "^Running: step ")
        second = ready(tab(found.addresses["http"]))
        second.click("#run")
        expect_text(second, "problem", r"^The server is busy\. Try again in \d+ s\.$")
        first.click("#cancel")
        expect_text(second, "problem", r"^The server was busy\. Try again now\.$")
        second.click("#run")
        assert finished(second).startswith("Finished")


def test_the_page_asks_for_the_token(bundle_folder: Path, tab: Any, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("the-token-of-this-test\n")
    with serving(bundle_folder, tokens=tmp_path / "tokens") as found:
        page = tab(found.addresses["http"])
        page.locator("#token").fill("not-the-token-of-this-test")
        page.keyboard.press("Enter")
        expect_text(page, "token-problem", "does not accept this token")
        page.locator("#token").fill("the-token-of-this-test")
        page.keyboard.press("Enter")
        ready(page).click("#run")
        assert finished(page).startswith("Finished")


def test_names_from_a_file_stay_text(served: Running, tab: Any, tmp_path: Path) -> None:
    graph = random_graph(40, 120)
    names = ("<img src=x onerror=alert(1)>", "</script>", *(f"class {i}" for i in range(2, graph.targets)))
    write_graph(tmp_path / "names.npz", replace(graph, class_names=names[: graph.targets]))
    page = ready(tab(served.addresses["http"]))
    page.select_option("#model", label="described, version 1")
    page.set_input_files("#file", tmp_path / "names.npz")
    page.click("#run")
    assert finished(page).startswith("Finished"), page.locator("#problem").inner_text()
    assert names[0] in page.locator("#counts").inner_text()
    assert page.locator("img").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_in_both_schemes(served: Running, tab: Any, scheme: str) -> None:
    size = {"width": 390, "height": 844}
    page = ready(tab(served.addresses["http"], viewport=size, color_scheme=scheme, has_touch=True))
    page.tap("#run")
    assert finished(page).startswith("Finished")
    assert page.evaluate("document.documentElement.scrollWidth") == size["width"]
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}[scheme]
    assert page.locator("#run").bounding_box()["height"] >= 40
