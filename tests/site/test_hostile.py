"""A recipe comes from anyone: whatever its strings hold, the page shows it and runs none of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openrecipes.site import markup, words
from openrecipes.site.build import build
from tests.site import make
from tests.site.html_page import Page

ATTACKS = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</code></pre><script>alert(1)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- --><svg onload=alert(1)>",
    "]]><iframe src=javascript:alert(1)>",
    "&lt;b&gt; & &amp;",
    "</title><script>alert(1)</script>",
    'style="x:expression(alert(1))"',
]


def hostile(text: str) -> dict[str, object]:
    data = make.recipe()
    data["model"] = text
    data["gpu"] |= {"instance": text}
    data["author"] = {"name": text, "url": "javascript:alert(1)"}
    data["stack"] |= {"framework": text, "network": text}
    data["workload"]["dataset"] |= {"name": text, "source": text}
    data["layout"] = {**make.LAYOUT, "label": text, "summary": text, "highlights": text}
    data["result"] |= {"usd_note": text, "mfu_note": text, "gpu_hours_note": text}
    data["correctness"] |= {"summary": text, "reference": text, "rules": text}
    data["correctness"]["convergence"] |= {"note": text}
    data["env"] = {"A": text}
    data["run"] = text
    data["inputs"] = {"X": text}
    data["patches"] = [{"repo": text, "why": text}]
    data["trials"] = [{"layout": make.LAYOUT, "outcome": "oom", "phase": text, "note": text}]
    data["notes"] = f"{text}\n\n[a](javascript:alert(1)) [b](data:text/html,x) ![c](http://e.x/p)"
    return data


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of one hostile recipe per attack, each with a hostile verdict."""
    root = tmp_path_factory.mktemp("hostile")
    for number, text in enumerate(ATTACKS):
        data = hostile(text)
        data["correctness"]["convergence"] |= {  # type: ignore[index]
            "candidate_run": f"run-{number}",
            "reference_run": None,
        }
        make.write(root / "recipes", f"a/b/{number}.yaml", data)
        run = make.run(root / "runs" / str(number), f"run-{number}", steps=3)
        told = json.loads(json.dumps(make.VERDICT))
        for difference in told["configuration"]["differences"]:
            difference |= {"flag": text, "reason": text, "verdict": text, "class": text}
        (run / "verdicts").mkdir()
        (run / "verdicts" / "check.json").write_text(json.dumps(told))
    build(root / "recipes", root / "site", root / "runs")
    return root / "site"


def test_no_hostile_string_becomes_an_element_or_an_attribute(attacked: Path) -> None:
    for path in attacked.rglob("*.html"):
        page = Page.of(path)
        for tag, given in page.tags:
            assert tag not in ("iframe", "img", "object", "embed", "base"), (path, tag)
            assert not [n for n in given if n.startswith("on") or n == "style"], (path, given)
            assert tag != "script" or str(given["src"]).split("?")[0].endswith(".js")
            for name in ("href", "src"):
                value = (given.get(name) or "").strip().lower()
                assert not value.startswith(("javascript:", "data:", "vbscript:")), (path, value)


@pytest.mark.parametrize("number", range(len(ATTACKS)))
def test_hostile_strings_are_shown_as_they_are(attacked: Path, number: int) -> None:
    page = Page.of(attacked / f"recipes/a/b/{number}.html")
    text = ATTACKS[number]
    assert page.text("run") == text
    assert " ".join(text.split()) in page.words("fact-layout")
    assert " ".join(text.split()) in page.words("changed")


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        " javascript:alert(1)",
        "java\nscript:alert(1)",
        "data:text/html;base64,AAAA",
        "vbscript:x",
        "file:///etc/passwd",
        "//example.org/x",
        "http:///x",
        "https://exa mple.org",
        "http://[::1",
        "",
        None,
    ],
)
def test_only_plain_web_addresses_become_links(address: str | None) -> None:
    assert words.safe_link(address) is None


@pytest.mark.parametrize("address", ["https://arxiv.org/abs/2610.17528", "http://localhost:8000/a"])
def test_web_addresses_become_links(address: str) -> None:
    assert words.safe_link(address) == address


def test_markdown_shows_html_as_text() -> None:
    html = markup.markdown("a <b>b</b>\n\n<script>x</script>\n\n[ok](https://e.org) `c`")
    assert "<b>" not in html and "<script>" not in html
    assert 'href="https://e.org"' in html and "noopener" in html
    assert "<code>c</code>" in html


@pytest.mark.parametrize(
    "link", ["javascript:x", "JAVASCRIPT:x", "data:a", "//evil.org", "\\x6aavascript:x", "x:y"]
)
def test_markdown_refuses_foreign_schemes(link: str) -> None:
    assert "<a" not in markup.markdown(f"[a]({link})")


@pytest.mark.parametrize(
    "text", ["a: 1\n# c\n- b: <x>\n  k: 'v'\n\n\ttab", "x --flag <y> -v\\\n", "&amp;"]
)
def test_marking_changes_no_text(text: str) -> None:
    for mark in (markup.yaml, markup.shell):
        assert Page(f"<pre id=x>{mark(text)}</pre>").text("x") == text


def test_bibtex_cannot_be_broken_out_of() -> None:
    entry = markup.bibtex("a} b {c \\x", "d}}\n}", "https://e.org/}", 2026)
    assert entry.count("{") == entry.count("}")
    assert entry.count("@") == 1
