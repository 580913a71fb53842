from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from openrecipes.recipe.document import parse
from openrecipes.recipe.schema import Recipe
from openrecipes.site import page, render
from openrecipes.site.build import build
from tests.site import make
from tests.site.html_page import Page

DATA = Path(__file__).parent / "data"
NANO = "recipes/nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4"
LINKED = "recipes/nemotron-3-nano-30b-a3b/h200/linked.html"
DEMO = "recipes/nemotron-3-demo-5m/cpu/demo.html"


def rendered(data: dict[str, object]) -> Page:
    recipe = Recipe.model_validate_json(json.dumps(data))
    built = page.build(recipe, "model: x\n", "a/b.yaml", "recipes/a/b")
    return Page(render.page("recipe.html", "recipes/a/b", "index", ("site.js",), page=built))


def test_the_seed_page_has_every_label_and_value_in_order(site: Path) -> None:
    seen = Page.of(site / f"{NANO}.html").words()
    at = 0
    for line in (DATA / "nano.txt").read_text(encoding="utf-8").splitlines():
        # between a label's value and the next there may be more, never another order
        wanted = " ".join(line.split())
        found = seen.find(wanted, at)
        assert found >= 0, f"{wanted!r} is not after {seen[max(at - 60, 0) : at]!r}"
        at = found + len(wanted)
    command = parse(make.SEED.read_text(encoding="utf-8")).recipe.run
    assert command is not None
    assert seen.find(" ".join(command.split()), at) > 0


def test_command_and_yaml_are_the_seeds_to_the_letter(site: Path) -> None:
    seen = Page.of(site / f"{NANO}.html")
    recipe = parse(make.SEED.read_text(encoding="utf-8")).recipe
    assert recipe.run is not None
    assert seen.text("run") == recipe.run.rstrip("\n")
    assert seen.text("document") == make.SEED.read_text(encoding="utf-8").rstrip("\n")
    assert (site / f"{NANO}.yaml").read_bytes() == make.SEED.read_bytes()


def test_blank_lines_of_a_command_stay(site: Path) -> None:
    assert Page.of(site / DEMO).text("run") == str(make.recipe()["run"]).rstrip("\n")


def test_cite_opens_bibtex(site: Path) -> None:
    seen = Page.of(site / f"{NANO}.html").text("bibtex")
    assert seen.startswith("@misc{")
    assert "title = {Training Nemotron-3-Nano-30B-A3B on H200}" in seen
    assert "url = {https://arxiv.org/abs/2610.17528}" in seen
    assert "year = {2026}" in seen


def test_unknown_figures_say_so_and_why(site: Path) -> None:
    seen = Page.of(site / DEMO)
    assert "unknown no price is known for a CPU" in seen.words("fact-price")
    assert "unknown no peak is known for a CPU" in seen.words("fact-mfu")
    assert "$" not in seen.words("fact-price").removeprefix("$ / 1M tokens")


def test_step_time_has_its_percentiles(site: Path) -> None:
    assert "p50 4.41 s, p95 4.70 s, max 4.90 s" in Page.of(site / DEMO).words("fact-cv")


def test_pictures_show_steps_losses_and_their_difference(site: Path) -> None:
    seen = Page.of(site / DEMO)
    described = [text for i in seen.ids if i.endswith("-d") for text in [seen.words(i)]]
    assert any("measured window is steps 5 to 19" in text for text in described)
    assert any("tallest is step 0 with 22.9 s" in text for text in described)
    assert any(text.startswith("Loss over 20 steps") for text in described)
    assert any(text.startswith("Relative difference") for text in described)
    bars = [a for t, a in seen.tags if t == "rect" and (a.get("class") or "").startswith("bar")]
    assert len([b for b in bars if b["class"] == "bar"]) == 5
    assert len([b for b in bars if b["class"] == "bar in"]) == 15
    assert len([b for b in bars if b["class"] == "bar stage s0"]) == 2  # memory per rank


def test_memory_and_time_are_split(site: Path) -> None:
    seen = Page.of(site / DEMO)
    assert "Peak memory of the process (resident), per rank: 900 MiB to 910 MiB" in seen.words()
    assert "fetching rows 20.0 ms" in seen.words("measured")
    assert "weights 19.0 MiB" in seen.words("measured")
    assert "Activations were not measured." in seen.words("measured")


def test_how_it_was_measured_is_told(site: Path) -> None:
    seen = Page.of(site / DEMO).words("measured")
    assert "Window steps 5 to 19" in seen and "Profiler no" in seen


def test_two_documents_are_compared_where_no_run_was_judged(site: Path) -> None:
    seen = Page.of(site / LINKED).words("changed")
    assert "This compares what the two recipes ask for." in seen
    assert "expert-model-parallel-size 2 4 pass" in seen
    assert "sequence-parallel on off pass" in seen
    assert "workload" not in seen and "unknown" not in seen


def test_reviews_and_component_tests_are_told() -> None:
    data = make.recipe()
    data["correctness"]["reviews"] = [
        {
            "flag": "optimizer-offload-fraction",
            "candidate": "0.55",
            "reference": "1.0",
            "class": "placement",
            "reason": "moves state",
            "by": "A. Reviewer",
            "date": "2026-10-21",
        }
    ]
    data["correctness"]["component_tests"] = [
        {
            "component": "attention",
            "flag": "attention-backend",
            "precision": "bf16",
            "relative_error": 0.003,
            "bound": 0.01,
            "result": "pass",
        }
    ]
    seen = rendered(data).words("changed")
    assert "optimizer-offload-fraction: 1.0 to 0.55 placement review by A. Reviewer" in seen
    assert "attention (attention-backend, bf16) pass component test: relative error 0.003" in seen


def test_commands_fit_where_the_recipe_can_run() -> None:
    line = "openrecipes run a/b.yaml --engine native --launcher local"
    assert line in rendered(make.recipe()).text("run-1")
    assert "Set first: KERNEL_CACHE, HF_CKPT, SFT_DATA." in rendered(make.seed()).words("command")
    many = make.recipe(gpu={"type": "H200", "count": 16, "per_node": 8})
    assert "run-1" not in rendered(many).ids


def test_a_page_for_a_cpu_speaks_of_processes(site: Path) -> None:
    seen = Page.of(site / DEMO).words()
    for told in (
        *("Processes 2 x CPU (2 per node)", "Tokens/s per process 1,842.31", "Process-hours 0.06"),
        *("Most tokens per process", "time on 2 processes", "$ per process and hour"),
        "window tokens / seconds of the window / processes",
    ):
        assert told in seen, told
    assert "GPU" not in seen


def test_a_priced_page_for_a_cpu_speaks_of_processes() -> None:
    data = make.recipe()
    data["result"] |= {
        "usd_per_million_tokens": 0.08,
        "usd_note": None,
        "price": {"usd_per_gpu_hour": 0.5, "source": "given by the author"},
    }
    seen = rendered(data).words()
    assert "at $0.500 per process-hour (given by the author)" in seen and "GPU" not in seen


@pytest.mark.parametrize("state", ["running", "stopped", "failed"])
def test_a_run_that_is_not_finished_says_so(tmp_path: Path, state: str) -> None:
    make.write(tmp_path / "recipes", "demo/cpu/one.yaml", make.recipe())
    make.evidence(tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "candidate")
    make.run(tmp_path / "runs" / "candidate", "candidate-1", steps=7, state=state)
    build(tmp_path / "recipes", tmp_path / "site", tmp_path / "runs")
    seen = Page.of(tmp_path / "site/recipes/demo/cpu/one.html").words("measured")
    assert f"The run candidate-1 is not finished: its state is {state}." in seen
    assert "reference-1 is not finished" not in seen


def test_layout_is_drawn_rank_by_rank(site: Path) -> None:
    seen = Page.of(site / f"{NANO}.html")
    told = [a["aria-label"] for t, a in seen.tags if a.get("class") == "strips n2"]
    assert len(told) == 8
    assert told[0] == "GPU 0: pipeline stage 0 of 2, experts, part 0 of 4, data replica 0 of 4"
    assert told[7] == "GPU 7: pipeline stage 1 of 2, experts, part 3 of 4, data replica 3 of 4"


def test_reference_recipe_stands_beside_it(site: Path) -> None:
    seen = Page.of(site / LINKED)
    assert "Tokens/s per GPU 7,814.02 5,229.20 +49.4%" in seen.words("reference")
    assert "Expert parallel (EP) 4 2" in seen.words("reference")
    assert any(link.endswith("h200/miles-tp2-pp2-ep2.html") for link in seen.links())


def test_reference_run_stands_beside_it(site: Path) -> None:
    assert "Tokens/s per process 1,842.31 1,3" in Page.of(site / DEMO).words("reference")


def test_every_changed_argument_has_its_class_and_reason(site: Path) -> None:
    seen = Page.of(site / DEMO).words("changed")
    assert seen.startswith("What changed from the reference 3 arguments differ; the check passed.")
    assert seen.index("layout 1 argument") < seen.index("memory 1 argument")
    assert "optimizer-offload-fraction 1.0 0.55 pass It decides where optimizer state" in seen
    assert "recompute-granularity full – pass" in seen


def test_each_figure_links_to_how_it_was_derived(site: Path) -> None:
    for address in (f"{NANO}.html", DEMO):
        seen = Page.of(site / address)
        hows = [link for link in seen.links() if link.startswith("#how-")]
        assert {"#how-rate", "#how-cv", "#how-convergence", "#how-gpu-hours"} <= set(hows)
        assert all(link[1:] in seen.ids for link in hows)
    derived = Page.of(site / f"{NANO}.html").words("how-rate")
    assert "15 steps x 128 rows x 8,192 tokens = 15,728,640" in derived
    assert "6 x 3,227,369,472 x 7,814.02 / 989e12 = 15.3%" in Page.of(site / f"{NANO}.html").words(
        "how-mfu"
    )


def test_price_table_needs_no_script(site: Path) -> None:
    seen = Page.of(site / f"{NANO}.html").words("price")
    assert "1 billion 4.44 h 35.55 $280.00" in seen
    assert "unknown" in Page.of(site / DEMO).words("price")


def test_a_planned_recipe_has_a_page() -> None:
    data = make.recipe(status="planned", result=None, correctness=None, run=None, env=None)
    seen = rendered(data)
    assert "not measured" in seen.words("fact-rate")
    assert "not checked" in seen.words("fact-convergence")


def test_what_failed_on_the_way_is_told() -> None:
    tried = {"layout": make.LAYOUT, "outcome": "oom", "phase": "step", "step": 2, "note": "at 0.45"}
    assert "TP1 PP1 EP2 DP2 oom step, step 2 at 0.45" in rendered(
        make.recipe(trials=[tried])
    ).words("failed")
