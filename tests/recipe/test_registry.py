import json
import time

import pytest

from openrecipes.cli.main import run
from openrecipes.errors import InputError
from openrecipes.recipe.compare import compare
from openrecipes.recipe.document import load
from openrecipes.recipe.lint import lint
from openrecipes.recipe.names import file_name, registry_path, slug
from openrecipes.recipe.registry import (
    entries,
    find,
    packaged_registry,
    registries,
    rows_lookup,
)

from .recipes import ALL, NANO, NANO_REFERENCE, REGISTRY, ROOT, SUPER


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENRECIPES_REGISTRY", raising=False)


@pytest.fixture
def registry(tmp_path):
    folder = tmp_path / "registry"
    for path in (NANO, SUPER):
        target = folder / path.relative_to(REGISTRY)
        target.parent.mkdir(parents=True)
        target.write_text(path.read_text())
    return folder


def test_the_packaged_registry_is_found():
    assert packaged_registry() == REGISTRY


@pytest.mark.parametrize("path", sorted(REGISTRY.glob("*/*/*.yaml")), ids=lambda path: path.stem)
def test_whatever_lies_in_it_lints_under_its_own_name(path):
    place = f"recipes/{path.relative_to(REGISTRY).as_posix()}"
    assert path.read_text().splitlines()[0] == f"# {place}"
    assert [found for found in lint(path) if found.severity != "note"] == []
    if load(path).recipe.author.name != "ATTUNE":  # whose file names tell the tokens otherwise
        assert registry_path(load(path).recipe) == place


def test_the_demos_reference_is_the_one_that_the_demo_trains():
    ours = load(REGISTRY / "nemotron-3-demo-5m/cpu/openrecipes-demo-tp1-pp1-ep1.yaml").recipe
    demo = load(ROOT / "demo/recipes/reference.yaml").recipe
    assert (ours.model, ours.gpu, ours.workload) == (demo.model, demo.gpu, demo.workload)
    texts = {"label", "summary", "highlights"}
    assert ours.layout.model_dump(exclude=texts) == demo.layout.model_dump(exclude=texts)
    places = {"model-config", "prompt-data", "train-iters"}
    assert {n: v for n, v in ours.arguments.items() if n not in places} == demo.arguments


def test_which_folders_are_looked_in(tmp_path, monkeypatch, registry):
    monkeypatch.chdir(tmp_path)
    assert registries() == [REGISTRY]
    (tmp_path / "recipes").mkdir()
    assert [folder.name for folder in registries()] == ["recipes", "recipes"]
    monkeypatch.setenv("OPENRECIPES_REGISTRY", str(registry))
    assert registries() == [registry]
    assert registries([tmp_path]) == [tmp_path]
    with pytest.raises(InputError, match="no such folder"):
        registries([tmp_path / "none"])


def test_entries_hold_what_a_list_shows(registry):
    nano, super_ = entries([registry])
    assert nano.path == "nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4.yaml"
    assert (nano.model, nano.gpu, nano.count, nano.status) == (
        "Nemotron-3-Nano-30B-A3B", "H200", 8, "verified",
    )  # fmt: skip
    assert (nano.tokens_per_s_per_gpu, nano.usd_per_million_tokens) == (7814.02, 0.28)
    assert super_.label == "TP4 PP2 EP8 DP2"


def test_an_entry_counts_as_long_as_its_file_is_unchanged(registry, monkeypatch):
    first = entries([registry])
    with monkeypatch.context() as patch:
        patch.setattr("openrecipes.recipe.registry.load", None)  # nothing may be read again
        assert entries([registry]) == first
    file = registry / NANO.relative_to(REGISTRY)
    file.write_text(file.read_text().replace("status: verified", "status: measured"))
    assert entries([registry])[0].status == "measured"
    file.unlink()
    assert len(entries([registry])) == 1


@pytest.mark.parametrize("spoil", ["", "{", "[]", '{"index_version": 0, "entries": {}}', "\x00"])
def test_a_spoiled_index_is_made_again(registry, spoil, tmp_path):
    first = entries([registry])
    (index,) = (tmp_path / "cache/openrecipes/index").iterdir()
    index.write_text(spoil)
    assert entries([registry]) == first


def test_a_home_that_cannot_be_written_to_is_no_fault(registry, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert len(entries([registry])) == 2


def test_of_two_recipes_at_one_place_the_first_counts(registry, tmp_path):
    other = tmp_path / "other" / NANO.relative_to(REGISTRY)
    other.parent.mkdir(parents=True)
    other.write_text(NANO.read_text())
    found = entries([tmp_path / "other", registry])
    assert len(found) == 2 and found[0].file == str(other)


def test_a_broken_file_is_told_and_hides_nothing(registry, capsys):
    (registry / "broken.yaml").write_text("a: [")
    (registry / "x.evidence").mkdir()
    (registry / "x.evidence" / "r.yaml").write_text("a: [")
    faults = [entry for entry in entries([registry]) if entry.fault]
    assert [entry.path for entry in faults] == ["broken.yaml"]
    assert run(["list", "--registry", str(registry)]) == 0
    out, err = capsys.readouterr()
    assert "attune-tp1-pp2-ep4" in out and "broken.yaml" in err


@pytest.mark.parametrize(
    "name",
    [
        "nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4.yaml",
        "recipes/nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4.yaml",
        "nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4",
        "attune-tp1",
        "NANO",
    ],
)
def test_a_recipe_goes_by_its_place_or_a_part_of_it(registry, name):
    assert find(name, [registry]).read_text() == NANO.read_text()


@pytest.mark.parametrize("name", ["nothing", "attune", "../../attune-tp1-pp2-ep4", "", "*"])
def test_other_names_are_refused(registry, name):
    with pytest.raises(InputError):
        find(name, [registry])


def test_rows_are_found_by_name(registry):
    lookup = rows_lookup([SUPER])
    assert lookup("nemotron3super-tulu3-fixed8192-v1")[1].startswith("7c0d4c1b")
    assert lookup("nemotron3nano-tulu3-fixed8192-v1")[0].startswith("8fc04d3c")
    assert lookup("unheard") is None


def test_two_thousand_recipes_list_in_a_second_from_the_index(tmp_path, monkeypatch):
    folder = tmp_path / "many"
    (folder / "model" / "gpu").mkdir(parents=True)
    text = NANO.read_text()
    for number in range(2000):
        (folder / "model" / "gpu" / f"r{number:04}.yaml").write_text(text)
    document = load(NANO)
    monkeypatch.setattr("openrecipes.recipe.registry.load", lambda path: document)
    entries([folder])  # fills the index; reading itself is 10 ms a recipe
    monkeypatch.setattr("openrecipes.recipe.registry.load", None)
    started = time.process_time()
    assert len(entries([folder])) == 2000
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    "argv, expected",
    [
        (["nano"], ["attune-tp1-pp2-ep4"]),
        (["--gpus", "16"], ["attune-tp4-pp2-ep8-mt16k"]),
        (["--gpu", "h200"], ["attune-tp1-pp2-ep4", "attune-tp4-pp2-ep8-mt16k"]),
        (["--gpu", "H100"], []),
        (["--status", "verified", "--min-rate", "2000"], ["attune-tp1-pp2-ep4"]),
        (["--max-price", "1"], ["attune-tp1-pp2-ep4"]),
        (["--model", "super", "selective"], ["attune-tp4-pp2-ep8-mt16k"]),
        (["planned"], []),
    ],
)
def test_search(argv, expected, registry, capsys):
    assert run(["search", *argv, "--registry", str(registry), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["recipes"]
    assert [one["path"].rpartition("/")[2].removesuffix(".yaml") for one in found] == expected


def test_show_prints_text_and_data(capsys, registry):
    assert run(["show", "nano", "--registry", str(registry)]) == 0
    assert capsys.readouterr().out == NANO.read_text()
    assert run(["show", "nano", "--registry", str(registry), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"]["layout"]["ep"] == 4


def test_compare_classes_every_difference():
    found = compare(load(NANO).recipe, load(NANO_REFERENCE).recipe)
    classes = {(one.part, one.name): one.class_ for one in found}
    assert classes[("layout", "tp")] == classes[("layout", "dp")] == "layout"
    rate = next(one for one in found if one.name == "tokens_per_s_per_gpu")
    assert rate.change == pytest.approx(5229.2 / 7814.02 - 1)
    assert not [one for one in found if one.part == "flags"]
    assert compare(load(NANO).recipe, load(NANO).recipe) == []


def test_compare_prints(capsys):
    assert run(["compare", str(NANO), str(SUPER), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    parts = {one["part"] for one in document["differences"]}
    assert {"layout", "flags", "result", "gpu"} <= parts
    chunk = next(o for o in document["differences"] if o["name"] == "log-probs-chunk-size")
    assert chunk["class"] and chunk["reason"]
    assert run(["compare", str(NANO), str(NANO)]) == 0
    assert "no difference" in capsys.readouterr().out


@pytest.mark.parametrize("path", ALL)
def test_shipped_recipes_lie_where_their_name_says(path):
    place = registry_path(load(path).recipe)
    assert path.parent == REGISTRY.parent / place.rpartition("/")[0]
    assert path.name.removesuffix(".yaml").startswith(
        file_name(load(path).recipe).removesuffix(".yaml")
    )


@pytest.mark.parametrize(
    "text, expected",
    [("A/../b c", "a-..-b-c"), ("..", "unnamed"), ("Nemotron-3", "nemotron-3"), ("ü", "unnamed")],
)
def test_a_slug_is_one_safe_part_of_a_path(text, expected):
    assert slug(text) == expected
    assert "/" not in slug(text)


def test_markup_in_a_recipe_is_shown_as_text(registry, capsys):
    file = registry / NANO.relative_to(REGISTRY)
    file.write_text(file.read_text().replace("type: H200", 'type: "[red]H200[/red]"'))
    assert run(["list", "--registry", str(registry)]) == 0
    assert "[red]H200[/red]" in capsys.readouterr().out
