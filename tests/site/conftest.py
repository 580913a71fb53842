"""A small site, built once for all tests that only read it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from openrecipes.site.build import build
from openrecipes.site.serve import server
from tests.site import make

CHROMIUM_ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The seed, its reference, and a demo recipe with its runs."""
    root = tmp_path_factory.mktemp("site")
    recipes = root / "recipes"
    demo = make.recipe()
    make.write(recipes, "nemotron-3-demo-5m/cpu/demo.yaml", demo)
    seed = recipes / make.SEED_PATH
    seed.parent.mkdir(parents=True)
    shutil.copy(make.SEED, seed)
    make.write(recipes, make.REFERENCE_PATH, make.reference())
    linked = make.seed()
    linked["correctness"]["reference_recipe"] = {"path": f"recipes/{make.REFERENCE_PATH}"}
    make.write(recipes, "nemotron-3-nano-30b-a3b/h200/linked.yaml", linked)
    make.evidence(root / "runs")
    build(recipes, root / "site", root / "runs")
    return root / "site"


@pytest.fixture(scope="session")
def served(site: Path) -> Iterator[str]:
    """The small site behind a real server, with its runs live."""
    with server(site, "127.0.0.1", 0, site.parent / "runs") as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()


@pytest.fixture(scope="session")
def browser(missing: Callable[[str, str], NoReturn]) -> Iterator[Browser]:
    """A real headless Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        missing("browser", "install Chromium (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=CHROMIUM_ARGUMENTS)
        yield found
        found.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A fresh tab; an error on the console or a request to another host fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda m: faults.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "requestfailed",  # a request that leaving the page cuts off is no fault of the page
        lambda r: None if r.failure == "net::ERR_ABORTED" else faults.append(f"failed: {r.url}"),
    )
    page.on(
        "request",
        lambda r: None if "//127.0.0.1" in r.url or r.url[:5] == "file:" else faults.append(r.url),
    )
    yield page
    context.close()
    assert not faults
