"""The pages in a real browser: every kind opened, controls used, nothing on the console."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from openrecipes.runs.record import RunWriter, Step
from tests.site import make
from tests.site.html_page import Page as Parsed

NANO = "recipes/nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4"
DEMO = "recipes/nemotron-3-demo-5m/cpu/demo"
PAGES = (
    "index.html",
    "compare.html",
    "models/nemotron-3-nano-30b-a3b.html",
    f"{NANO}.html",
    f"{DEMO}.html",
    "docs/index.html",
    "docs/site.html",
    "docs/reference/flags.html",
    "docs/reference/schema.html",
    "live/index.html",
)


@pytest.mark.parametrize(
    ("address", "theme"),
    [
        *((address, "light") for address in PAGES),
        *((address, "dark") for address in (PAGES[0], f"{DEMO}.html", "live/index.html")),
    ],
)
def test_every_kind_of_page_opens_and_axe_finds_no_serious_fault(
    tab: Page, served: str, address: str, theme: str
) -> None:
    tab.emulate_media(color_scheme=theme)
    assert tab.goto(f"{served}/{address}").status == 200  # type: ignore[union-attr]
    expect(tab.locator("h1")).to_be_visible()
    found = Axe().run(tab).response["violations"]
    grave = [v for v in found if v["impact"] in ("serious", "critical")]
    assert not grave, json.dumps(
        [(v["id"], v["help"], [n["target"] for n in v["nodes"]][:5]) for v in grave], indent=1
    )


@pytest.mark.parametrize("address", PAGES)
def test_no_page_is_wider_than_a_phone(tab: Page, served: str, address: str) -> None:
    tab.set_viewport_size({"width": 360, "height": 740})
    tab.goto(f"{served}/{address}")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("address", [PAGES[0], *PAGES[2:9]])
def test_pages_open_from_a_folder_too(tab: Page, site: Path, address: str) -> None:
    tab.goto((site / address).as_uri())
    expect(tab.locator("h1")).to_be_visible()
    assert tab.evaluate("getComputedStyle(document.body).fontFamily").startswith("Inter")


def test_comparing_from_a_folder_says_what_it_needs(browser: Browser, site: Path) -> None:
    page = browser.new_page()
    page.goto((site / "compare.html").as_uri())
    expect(page.locator("#trouble")).to_contain_text("openrecipes site serve")
    page.close()


def test_copy_gives_the_command_to_the_letter(browser: Browser, served: str, site: Path) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    for address, block in ((NANO, "run"), (DEMO, "run"), (NANO, "bibtex")):
        page.goto(f"{served}/{address}.html")
        if block == "bibtex":
            page.get_by_text("(cite)").click()
        page.locator(f"button[data-copy={block}]").click()
        expect(page.locator(f"button[data-copy={block}]")).to_have_text("Copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == Parsed.of(site / f"{address}.html").text(block)
        assert len(copied) > 20
    context.close()


def test_cite_opens_with_the_keyboard(tab: Page, served: str) -> None:
    tab.goto(f"{served}/{NANO}.html")
    expect(tab.locator("#bibtex")).to_be_hidden()
    tab.get_by_text("(cite)").focus()
    tab.keyboard.press("Enter")
    expect(tab.locator("#bibtex")).to_be_visible()


def rows(tab: Page) -> list[str]:
    shown = tab.locator("table.index tbody tr:visible th a")
    return [f"{a.text_content()}" for a in shown.all()]


def test_filters_and_sorting_live_in_the_address(tab: Page, served: str) -> None:
    tab.goto(f"{served}/index.html")
    assert len(rows(tab)) == 4
    tab.locator("select[name=gpu]").select_option("H200")
    assert set(rows(tab)) == {"Nemotron-3-Nano-30B-A3B"}
    tab.get_by_label("Search").fill("tp1 pp2")
    assert len(rows(tab)) == 2
    tab.get_by_role("button", name="Tokens/s per GPU").click()
    expect(tab).to_have_url(f"{served}/index.html?q=tp1+pp2&gpu=H200&sort=-rate")
    other = tab.context.new_page()
    other.goto(tab.url)
    assert rows(other) == rows(tab)
    expect(other.locator("select[name=gpu]")).to_have_value("H200")
    expect(other.locator("output[name=found]")).to_have_text("2")
    other.get_by_role("button", name="Clear").click()
    expect(other.locator("output[name=found]")).to_have_text("4")
    expect(other).to_have_url(f"{served}/index.html")


def test_sorting_puts_unknown_last_and_can_be_undone(tab: Page, served: str) -> None:
    tab.goto(f"{served}/index.html")
    before = rows(tab)
    price = tab.get_by_role("button", name="$ / 1M")
    price.click()
    expect(tab.locator("th[data-key=usd]")).to_have_attribute("aria-sort", "ascending")
    cells = tab.locator("tbody td:nth-child(5)")
    expect(cells).to_have_text(["$0.28", "$0.28", "", ""])
    price.click()
    expect(tab.locator("th[data-key=usd]")).to_have_attribute("aria-sort", "descending")
    expect(cells).to_have_text(["$0.28", "$0.28", "", ""])
    price.click()
    assert rows(tab) == before


def test_bounds_filter_numbers_and_days(tab: Page, served: str) -> None:
    tab.goto(f"{served}/index.html?minrate=6000")
    assert len(rows(tab)) == 2
    tab.goto(f"{served}/index.html?maxusd=0.3&minmfu=15")
    assert len(rows(tab)) == 2
    tab.goto(f"{served}/index.html?since=2026-10-16")
    assert rows(tab) == []
    tab.goto(f"{served}/index.html?gpu=%3Cscript%3E&sort=nothing&minrate=x")
    assert len(rows(tab)) == 4


def test_compare_shows_what_the_address_names(tab: Page, served: str) -> None:
    first, second = make.SEED_PATH, make.REFERENCE_PATH
    tab.goto(f"{served}/compare.html?r={first}&r={second}&r=no/such.yaml")
    row = tab.get_by_role("row", name="Tokens/s per GPU")
    expect(row.locator("td")).to_have_text(["7,814.02", "5,229.20"])
    expect(row.locator("td.best")).to_have_text("7,814.02")
    tab.get_by_label("Recipe 3").select_option("nemotron-3-demo-5m/cpu/demo.yaml")
    expect(tab).to_have_url(re.compile("(r=.*){3}"))
    expect(tab.get_by_role("row", name="$ / 1M tokens").locator("td").last).to_have_text("unknown")


def test_compare_writes_numbers_as_the_pages_do(tab: Page, served: str, site: Path) -> None:
    tab.goto(f"{served}/models/nemotron-3-nano-30b-a3b.html")
    made = {r.locator("th").text_content(): r.locator("td").first.text_content()
            for r in tab.locator("tbody tr").all()}  # fmt: skip
    first = tab.locator("thead a").first.get_attribute("href")
    index = json.loads((site / "index.json").read_text())["recipes"]
    path = next(r["path"] for r in index if str(first).endswith(r["page"]))
    tab.goto(f"{served}/compare.html?r={path}")
    tab.locator("tbody tr").first.wait_for()
    for row in tab.locator("tbody tr").all():
        label = row.locator("th").text_content()
        assert row.locator("td").first.text_content() == made[label], label


def test_price_calculator(tab: Page, served: str) -> None:
    tab.goto(f"{served}/{NANO}.html")
    form = tab.locator("form.calculator")
    form.get_by_label("Tokens").fill("1000000")
    form.get_by_label("$ per GPU").fill("10")
    expect(form.locator("output[name=hours]")).to_have_text("35,550")
    expect(form.locator("output[name=cost]")).to_have_text("$355,486")
    expect(form.locator("output[name=time]")).to_have_text("185 days")
    form.get_by_label("$ per GPU").fill("")
    expect(form.locator("output[name=cost]")).to_have_text("unknown")
    form.get_by_label("Tokens").fill("-3")
    expect(form.locator("output[name=time]")).to_have_text("–")


def test_everything_can_be_read_without_scripts(browser: Browser, served: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{served}/index.html")
    assert page.locator("table.index tbody tr").count() == 4
    assert page.locator("form.filter").is_hidden()
    page.locator("table.index tbody a").first.click()
    assert page.locator("h1").inner_text().startswith("Training")
    assert page.locator("#run").is_visible()
    assert page.locator("button.copy").first.is_hidden()
    page.locator("details.file summary").click()
    assert page.locator("#document").is_visible()
    context.close()


def test_a_running_run_appears_and_grows_without_reload(tab: Page, served: str, site: Path) -> None:
    path = site.parent / "runs" / "growing"
    make.run(path, "growing-1", steps=3, state="running")
    tab.goto(f"{served}/live/index.html")
    card = tab.locator("section.card", has_text="growing-1")
    expect(card).to_contain_text("3 of 20 steps")
    tab.evaluate("window.same = true")
    writer = RunWriter.open(path)
    writer.append(Step(attempt=0, step=3, loss=4.25, slots=16384, step_time_s=2.0))
    expect(card).to_contain_text("4 of 20 steps", timeout=5000)
    expect(card).to_contain_text("4.250")
    assert tab.evaluate("window.same")
    writer.update(state="failed", failure={"kind": "oom", "step": 4, "rank": 1})
    expect(tab.locator("#live")).to_contain_text("oom, step 4, rank 1", timeout=5000)


def test_a_thousand_recipes_filter_within_a_blink(tab: Page, tmp_path: Path) -> None:
    from openrecipes.recipe.schema import Recipe
    from openrecipes.site import listing, render
    from openrecipes.site.summary import summary

    recipe = Recipe.model_validate_json(json.dumps(make.seed()))
    summaries = [
        summary(
            recipe.model_copy(update={"model": f"Nemotron-3-Nano-30B-A{i % 50}B"}),
            f"recipes/nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4-{i}",
            f"nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4-{i}.yaml",
        )
        for i in range(1000)
    ]
    files = dict(listing.pages(summaries))
    (tmp_path / "index.html").write_text(files["index.html"])
    (tmp_path / "static").mkdir()
    for name in render.STATIC:
        (tmp_path / "static" / name).write_bytes(render.static(name))
    assert len(files["index.html"].encode()) < 400_000
    tab.goto((tmp_path / "index.html").as_uri())
    tab.locator("form.filter").wait_for()
    spent = tab.evaluate(
        """() => {
            const box = document.querySelector("[name=q]");
            const least = {};
            for (let round = 0; round < 5; round += 1) {
                for (const text of ["a4", "a49b", "a", "", "nothing", "nano"]) {
                    box.value = text;
                    const start = performance.now();
                    box.dispatchEvent(new Event("input", { bubbles: true }));
                    document.body.offsetHeight;
                    const took = performance.now() - start;
                    least[text] = Math.min(took, least[text] ?? Infinity);
                }
            }
            return Math.max(...Object.values(least));
        }"""
    )
    assert spent < 50
    tab.get_by_label("Search").fill("a49b")
    expect(tab.locator("output[name=found]")).to_have_text("20")
    tab.get_by_label("Search").fill("")
    expect(tab.locator("output[name=found]")).to_have_text("1,000")
    count = "document.querySelectorAll('table.index tbody tr:not([hidden])').length"
    for _ in range(100):  # scrolling shows the rest
        if tab.evaluate(count) == 1000:
            break
        tab.evaluate("window.scrollTo({ top: document.body.scrollHeight, behavior: 'instant' })")
        tab.wait_for_timeout(50)
    assert tab.evaluate(count) == 1000


def test_a_page_with_its_pictures_is_light(site: Path) -> None:
    shared = sum(
        (site / "static" / n).stat().st_size for n in ("site.css", "site.js", "inter.woff2")
    )
    for path in (site / "recipes").rglob("*.html"):
        assert path.stat().st_size + shared < 150_000, path


@pytest.mark.parametrize("width", [390, 1280])
def test_no_button_lies_over_the_text_that_it_copies(tab: Page, served: str, width: int) -> None:
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto(f"{served}/{DEMO}.html")
    tab.get_by_text("(cite)").click()
    tab.get_by_text("Show the document").click()
    buttons = tab.locator("button.copy")
    assert buttons.count() >= 4
    for index in range(buttons.count()):
        button = buttons.nth(index)
        text = tab.locator(f"#{button.get_attribute('data-copy')}")
        over, under = button.bounding_box(), text.bounding_box()
        assert over is not None and under is not None
        assert over["y"] + over["height"] <= under["y"] + 1
