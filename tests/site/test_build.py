from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from openrecipes.errors import InputError
from openrecipes.site import sources
from openrecipes.site.build import build
from tests.site import make
from tests.site.html_page import Page


def snapshot(site: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(site)): p.read_bytes()
        for p in site.rglob("*")
        if p.is_file() and p.name != sources.STATE
    }


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make.write(tmp_path / "recipes", "demo/cpu/one.yaml", make.recipe())
    make.write(tmp_path / "recipes", "demo/cpu/two.yaml", make.recipe(model="Other"))
    make.evidence(tmp_path / "runs")
    return tmp_path


def test_every_link_within_the_site_leads_somewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = Page.of(path)
        assert len(page.ids) == len(set(page.ids)), path
        for link in page.links():
            if "://" in link:
                continue
            address, _, anchor = link.partition("#")
            target = (path.parent / address.partition("?")[0]).resolve() if address else path
            assert target.is_file(), f"{path.name}: {link}"
            if anchor:
                assert anchor in Page.of(target).ids, f"{path.name}: {link}"


def test_nothing_comes_from_elsewhere_and_nothing_is_inline(site: Path) -> None:
    for path in site.rglob("*.html"):
        for tag, given in Page.of(path).tags:
            assert "style" not in given, path
            assert not [name for name in given if name.startswith("on")], path
            for name in ("src", "href", "data", "action", "srcset"):
                if tag != "a" and given.get(name):
                    assert "://" not in str(given[name]), f"{path}: {tag} {given[name]}"
            assert tag != "script" or given.get("src"), path
            assert tag != "style", path
        policy = [g["content"] for t, g in Page.of(path).tags if g.get("http-equiv")]
        assert policy and policy[0] is not None and "default-src 'none'" in policy[0]
        assert "unsafe" not in policy[0]


def test_json_for_programs_keeps_its_schema(site: Path) -> None:
    index = json.loads((site / "index.json").read_text())
    jsonschema.validate(index, json.loads((site / "schema/index.schema.json").read_text()))
    assert [r["path"] for r in index["recipes"]] == sorted(r["path"] for r in index["recipes"])
    schema = json.loads((site / "schema/recipe.schema.json").read_text())
    for line in index["recipes"]:
        one = json.loads((site / line["json"]).read_text())
        jsonschema.validate(one, schema)
        assert one["summary"] == line
        assert one["recipe"]["model"] == line["model"]
        assert (site / line["page"]).is_file()


def test_an_unchanged_build_renders_nothing_and_changes_nothing(place: Path) -> None:
    first = build(place / "recipes", place / "site", place / "runs")
    before = snapshot(place / "site")
    times = {p: p.stat().st_mtime_ns for p in (place / "site").rglob("*.html")}
    again = build(place / "recipes", place / "site", place / "runs")
    assert (first.rendered, again.rendered) == (2, 0)
    assert snapshot(place / "site") == before
    assert {p: p.stat().st_mtime_ns for p in (place / "site").rglob("*.html")} == times


def test_a_changed_recipe_and_a_changed_run_render_again(place: Path) -> None:
    build(place / "recipes", place / "site", place / "runs")
    changed = make.recipe(model="Renamed")
    make.write(place / "recipes", "demo/cpu/one.yaml", changed)
    assert build(place / "recipes", place / "site", place / "runs").rendered == 1
    assert "Renamed" in (place / "site/index.html").read_text()
    shutil.rmtree(place / "runs")
    make.run(place / "runs" / "new", "candidate-1", seconds=1.0)
    assert build(place / "recipes", place / "site", place / "runs").rendered == 2
    full = place / "full"
    build(place / "recipes", full, place / "runs")
    assert snapshot(full) == snapshot(place / "site")


def test_a_removed_recipe_leaves_no_page_and_foreign_files_stay(place: Path) -> None:
    build(place / "recipes", place / "site")
    (place / "site" / "CNAME").write_text("example.org")
    (place / "recipes/demo/cpu/two.yaml").unlink()
    report = build(place / "recipes", place / "site")
    assert report.removed == 4  # page, JSON, YAML, the model's page
    assert not (place / "site/recipes/demo/cpu/two.html").exists()
    assert (place / "site/recipes/demo/cpu/one.html").exists()
    assert (place / "site/CNAME").exists()


def test_a_folder_that_is_no_site_is_left_alone(place: Path) -> None:
    other = place / "home"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="not made by"):
        build(place / "recipes", other)
    assert [p.name for p in other.iterdir()] == ["thesis.txt"]


def test_a_broken_recipe_names_itself_and_writes_nothing(place: Path) -> None:
    (place / "recipes/demo/cpu/three.yaml").write_text("schema_version: 1\nmodle: x\n")
    with pytest.raises(InputError, match=r"three\.yaml"):
        build(place / "recipes", place / "site")
    assert not (place / "site").exists()


def test_a_site_within_the_recipes_is_no_source(place: Path) -> None:
    build(place / "recipes", place / "recipes" / "site")
    assert build(place / "recipes", place / "recipes" / "site").recipes == 2


def test_evidence_beside_a_recipe_gives_its_pictures(place: Path) -> None:
    shutil.move(place / "runs", place / "recipes/demo/cpu/one.evidence")
    report = build(place / "recipes", place / "site")
    assert report.recipes == 2
    assert "measured" in Page.of(place / "site/recipes/demo/cpu/one.html").ids


def test_a_withdrawn_recipe_leads_to_its_successor(place: Path) -> None:
    old = make.recipe(status="withdrawn", superseded_by="recipes/demo/cpu/one.yaml")
    make.write(place / "recipes", "demo/cpu/old.yaml", old)
    build(place / "recipes", place / "site")
    seen = Page.of(place / "site/recipes/demo/cpu/old.html")
    assert "Withdrawn. Its successor is recipes/demo/cpu/one.yaml." in seen.words()
    assert "../../../recipes/demo/cpu/one.html" in seen.links()


def test_paths_of_a_machine_are_not_published(place: Path) -> None:
    file = place / "runs/candidate/verdicts/check.json"
    told = json.loads(file.read_text())
    told["configuration"]["differences"] = [
        {"flag": "output", "candidate": "/data/alice/secret-project/out", "reference": "~/x/y/out",
         "class": "io", "verdict": "pass", "reason": "A path is a place."},
        {"flag": "cache", "candidate": "$KERNEL_CACHE/triton", "reference": "hub/model",
         "class": "io", "verdict": "pass", "reason": "A path is a place."},
    ]  # fmt: skip
    file.write_text(json.dumps(told))
    build(place / "recipes", place / "site", place / "runs")
    seen = Page.of(place / "site/recipes/demo/cpu/one.html").words("changed")
    assert "alice" not in seen and "secret-project" not in seen
    assert "output …/out …/out pass" in seen
    assert "cache hub/model $KERNEL_CACHE/triton pass" in seen


def test_names_that_servers_refuse_get_plain_addresses(tmp_path: Path) -> None:
    names = ["A B/ü#?.yaml", "a-b/u.yaml", "..hidden/x.yaml", "x/...yaml", "x/%2e%2e.yaml"]
    for name in names:
        make.write(tmp_path / "recipes", name, make.recipe())
    found = sources.find(tmp_path / "recipes")
    addresses = [source.address for source in found]
    assert len(set(addresses)) == len(addresses)
    for address in addresses:
        assert address.startswith("recipes/")
        assert all(part.strip(".") for part in address.split("/"))
        assert set(address) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-/")


def test_a_folder_without_recipes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "notes.txt").write_text("none yet")
    with pytest.raises(InputError, match="no recipe"):
        build(tmp_path / "recipes", tmp_path / "site")
    assert not (tmp_path / "site").exists()


def openrecipes(*argv: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "openrecipes", *map(str, argv)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_says_where_to_look(place: Path) -> None:
    site = place / "site"
    done = openrecipes("site", "build", "--recipes", place / "recipes", "--output", site)
    assert done.returncode == 0, done.stderr
    assert (site / "index.html").resolve().as_uri() in done.stdout
    done = openrecipes("site", "build", "--recipes", place / "recipes", "--output", site, "--json")
    told = json.loads(done.stdout)
    assert told["format"] == 1 and told["recipes"] == 2 and told["rendered"] == 0


def test_each_bad_recipe_is_one_line(place: Path) -> None:
    texts = {"a.yaml": "model: [", "b.yaml": "model: x\n", "c.yaml": "\x00"}
    for name, text in texts.items():
        (place / "recipes" / name).write_text(text)
    site = place / "site"
    done = openrecipes("site", "build", "--recipes", place / "recipes", "--output", site)
    assert done.returncode == 2 and not site.exists()
    told = done.stderr.splitlines()
    assert len(told) == 3
    for line, name in zip(told, texts, strict=True):
        assert line.startswith(f"error: {place / 'recipes' / name}")


@pytest.mark.parametrize(
    "argv",
    [
        ["--recipes", "missing", "--output", "out"],
        ["--recipes", "recipes", "--runs", "missing", "--output", "out"],
    ],
)
def test_wrong_folders_are_one_line_and_exit_2(place: Path, argv: list[str]) -> None:
    argv = [str(place / a) if not a.startswith("--") else a for a in argv]
    done = openrecipes("site", "build", *argv)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
