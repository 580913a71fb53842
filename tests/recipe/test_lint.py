"""Each lint rule: a change that breaks it, and its finding in the right place."""

import copy
import datetime
import hashlib

import pytest

from openrecipes.recipe.lint import RULES, Context, LintRule, lint, lint_data, rules_table
from openrecipes.recipe.lint.finding import Broken
from openrecipes.recipe.lint.rules import GROUPS
from openrecipes.recipe.validate import validate

from .recipes import (
    ALL,
    NANO,
    NANO_REFERENCE,
    SUPER,
    SUPER_REFERENCE,
    complete,
    data,
    with_arguments,
)

SHA = hashlib.sha256(b"recipe").hexdigest()


def changed(changes, base=None):
    recipe = copy.deepcopy(base if base is not None else complete())
    for place, value in changes.items():
        *path, last = place.split(".")
        here = recipe
        for key in path:
            here = here[int(key)] if isinstance(here, list) else here[key]
        if value is ...:
            del here[last]
        else:
            here[int(last) if isinstance(here, list) else last] = value
    return recipe


def findings(recipe, **context):
    return [finding for finding in lint_data(recipe, **context) if finding.severity != "note"]


def run_with(old, new):
    run = complete()["run"]
    assert old in run
    return {"run": run.replace(old, new, 1)}


DAY = datetime.date(2026, 10, 15)
CASES = [
    ("gpu-known", {"gpu.type": "H2000"}, "gpu.type"),
    ("instance-agrees", {"gpu.instance": "AWS p5en.49xlarge"}, "gpu.instance"),
    ("instance-agrees", {"gpu.type": "H100"}, "gpu.type"),
    ("instance-agrees", {"gpu.per_node": 16}, "gpu.per_node"),
    ("instance-agrees", {"gpu.per_node": 4}, "gpu.per_node"),
    ("gpu-memory", {"gpu.memory_gb": 140}, "gpu.memory_gb"),
    ("nodes", {"gpu.count": 12}, "gpu.count"),
    ("price", {"result.usd_per_million_tokens": 0.29}, "result.usd_per_million_tokens"),
    ("price", {"result.price": ..., "gpu.instance": None}, "result.usd_per_million_tokens"),
    ("layout-label", {"layout.label": "TP1 PP2 EP8 DP4"}, "layout.label"),
    ("layout-label", {"layout.label": "TP1 PP2 DP4"}, "layout.label"),
    ("layout-label", {"layout.label": "fast"}, "layout.label"),
    ("layout-text", {"layout.summary": "TP 1, PP 2; no offload"}, "layout.summary"),
    ("layout-text", {"layout.highlights": "max 16,384 tokens/GPU"}, "layout.highlights"),
    ("layout-text", {"layout.highlights": "CPU optimizer offload 0.5"}, "layout.highlights"),
    ("trials", {"trials.0.layout.dp": 8}, "trials.0.layout.dp"),
    ("trials", {"trials.0.rank": 8}, "trials.0.rank"),
    ("trials", {"trials.0.step": 20}, "trials.0.step"),
    ("trials", {"trials.0.outcome": "ok"}, "trials.0.step"),
    ("run-readable", {"run": 'python3 train.py --lr "1'}, "run, line 1"),
    ("run-readable", {"run": "echo hello"}, "run"),
    ("run-flags", run_with("--lr 1e-5", "--lr 1e-4"), "run"),
    ("run-flags", run_with("--lr 1e-5", ""), "run"),
    ("run-flags", run_with("--lr 1e-5", "--lr 1e-5 --lr 1e-5"), "run"),
    ("run-flags", run_with("--lr 1e-5", "--lr 1e-5 --bf16"), "workload.precision"),
    ("run-flags", {"layout.ep": 2}, "layout.ep"),
    ("run-flags", {"arguments.lr": "1e-4"}, "run"),
    ("run-environment", {"env.FI_PROVIDER": "tcp"}, "env.FI_PROVIDER"),
    ("run-environment", run_with("export FI_PROVIDER=efa\n", ""), "env.FI_PROVIDER"),
    ("run-environment", run_with("export", "export EXTRA=1\nexport"), "env.EXTRA"),
    ("run-program", run_with("python3 train.py", "python3 other.py"), "run"),
    ("run-program", run_with("nemotron-3-nano-30b-a3b", "nemotron-3-super-120b-a12b"), "run"),
    ("run-statements", run_with("python3 train.py", "rm -rf ~; python3 train.py"), "run"),
    ("run-quoting", run_with('"$SFT_DATA"', "$SFT_DATA"), "run"),
    ("run-exports", run_with("export FI", "export FI_PROVIDER=efa\nexport FI"), "env.FI_PROVIDER"),
    ("inputs", {"inputs.HF_CKPT": ...}, "inputs.HF_CKPT"),
    ("inputs", {"inputs.MORE": "unused"}, "inputs.MORE"),
    ("flag-value", {"arguments.lr": "fast"}, "arguments.lr"),
    ("flag-value", {"arguments.optimizer": ["adam", "sgd"]}, "arguments.optimizer"),
    ("flag-known", {"arguments.lerning-rate": "1"}, "arguments.lerning-rate"),
    ("flag-refused", {"arguments.model-config": "c.json"}, "run"),
    ("field-or-argument", {"arguments.expert-model-parallel-size": "4"}, None),
    ("field-or-argument", {"arguments.expert-model-parallel-size": "8"}, None),
    ("field-or-argument", {"arguments.optimizer-cpu-offload": True}, None),
    ("window", {"result.window": [9, 5]}, "result.window"),
    ("window", {"result.window": [6, 20]}, "result.window"),
    ("window", {"result.window": [0, 14]}, "result.window"),
    ("window-tokens", {"result.window_tokens": 15728641}, "result.window_tokens"),
    ("window-tokens", {"result.window": [4, 19]}, "result.window_tokens"),
    ("steps", {"result.steps_per_run": 21}, "result.steps_per_run"),
    ("mfu", {"result.mfu": 0.152}, "result.mfu"),
    ("mfu", {"result.tokens_per_s_per_gpu": 7914.02}, "result.mfu"),
    ("mfu", {"gpu.type": "Unheard"}, "result.mfu"),
    ("rate", {"result.tokens_per_s_per_gpu": 78140.2}, "result.tokens_per_s_per_gpu"),
    ("rate", {"result.tokens_per_s_per_gpu": 78.1402}, "result.tokens_per_s_per_gpu"),
    ("active-params", {"result.active_params.count": 3227369473}, "result.active_params.count"),
    ("unknown-figures", {"result.mfu": None}, "result.mfu_note"),
    ("unknown-figures", {"result.usd_per_million_tokens": None}, "result.usd_note"),
    ("profiler", {"result.profiler": True}, "result.profiler"),
    (
        "profiler",
        {"correctness.convergence.parity_probe": True},
        "correctness.convergence.parity_probe",
    ),
    (
        "parts-of-rate",
        {
            "result.nonpadding_tokens_per_s_per_gpu": None,
            "workload.dataset.build.padding_tokens": 10,
        },
        "result.nonpadding_tokens_per_s_per_gpu",
    ),
    (
        "parts-of-rate",
        {"result.nonpadding_tokens_per_s_per_gpu": 7815.02},
        "result.nonpadding_tokens_per_s_per_gpu",
    ),
    (
        "parts-of-rate",
        {"result.nonpadding_tokens_per_s_per_gpu": 7800.02},
        "result.nonpadding_tokens_per_s_per_gpu",
    ),
    (
        "parts-of-rate",
        {"result.supervised_tokens_per_s_per_gpu": 7900.0},
        "result.supervised_tokens_per_s_per_gpu",
    ),
    (
        "parts-of-rate",
        {"result.supervised_tokens_per_s_per_gpu": 519.6},
        "result.supervised_tokens_per_s_per_gpu",
    ),
    ("step-time", {"result.step_time_s.mean": 16.8}, "result.tokens_per_s_per_gpu"),
    ("step-time", {"result.step_time_s.p50": 17.3}, "result.step_time_s"),
    ("step-time", {"result.step_time_s.max": 40.0}, "result.step_time_cv_percent"),
    ("step-time", {"result.step_time_cv_percent": 0.2}, "result.step_time_cv_percent"),
    ("percent", {"result.step_time_cv_percent": 0.0163}, "result.step_time_cv_percent"),
    ("percent", {"result.step_time_cv_percent": 163.0}, "result.step_time_cv_percent"),
    ("gpu-hours", {"result.gpu_hours": 0.5}, "result.gpu_hours"),
    ("gpu-hours", {"result.gpu_hours": 120}, "result.gpu_hours"),
    ("runs", {"result.runs": 3}, "result.runs"),
    ("runs", {"result.runs_detail.0.tokens_per_s_per_gpu": 7000.0}, "result.tokens_per_s_per_gpu"),
    (
        "effective-recompute",
        {"result.effective_recompute.granularity": "full"},
        "result.effective_recompute.granularity",
    ),
    (
        "effective-recompute",
        {"result.effective_recompute.layers.M": "full"},
        "result.effective_recompute.layers.M",
    ),
    ("rows", {"workload.dataset.build.row_tokens": 4096}, "workload.dataset.build.row_tokens"),
    ("rows", {"workload.dataset.build.rows": 2000}, "workload.dataset.build.rows"),
    ("rows", {"workload.dataset.build.padding_tokens": 10**8}, None),
    ("rows", {"workload.dataset.build.parquet_bytes": 85528}, None),
    ("verdict", {"correctness.configuration": "review"}, "correctness.result"),
    ("verdict", {"correctness.convergence.result": "fail"}, "correctness.result"),
    ("verdict", {"correctness.result": "fail"}, "correctness.result"),
    ("verdict", {"correctness.convergence": None}, "correctness.convergence"),
    (
        "convergence",
        {"correctness.convergence.correlation": 0.94},
        "correctness.convergence.correlation",
    ),
    (
        "convergence",
        {"correctness.convergence.final_loss_difference": 0.04},
        "correctness.convergence.final_loss_difference",
    ),
    (
        "convergence",
        {"correctness.convergence.pointwise_failures": 3},
        "correctness.convergence.pointwise_failures",
    ),
    ("convergence", {"correctness.convergence.pointwise_failures": 21}, None),
    ("convergence-steps", {"correctness.convergence.steps": 19}, "correctness.convergence.steps"),
    (
        "component-tests",
        {"correctness.component_tests.0.relative_error": 0.02},
        "correctness.component_tests.0.result",
    ),
    ("verdict-summary", {"correctness.summary": "failed at the loss"}, "correctness.summary"),
    (
        "convergence-steps",
        {"correctness.convergence.steps": 19, "correctness.convergence.candidate_run": "b"},
        "correctness.convergence.steps",
    ),
    (
        "profiler",
        {
            "correctness.convergence.parity_probe": True,
            "correctness.convergence.candidate_run": "a",
        },
        "correctness.convergence.parity_probe",
    ),
    ("model-known", {"model": "Nemotron-3-Nano-30B-A3"}, "model"),
    ("hashes", {"workload.dataset.rows_sha256": SHA[:-1]}, "workload.dataset.rows_sha256"),
    ("hashes", {"workload.dataset.rows_sha256": SHA.upper()}, "workload.dataset.rows_sha256"),
    ("hashes", {"workload.dataset.rows_sha256": "0" * 64}, "workload.dataset.rows_sha256"),
    ("hashes", {"workload.dataset.revision": "b14afda"}, "workload.dataset.revision"),
    ("hashes", {"stack.image": {"name": "x", "digest": SHA}}, "stack.image.digest"),
    ("hashes", {"stack.source": f"image sha256:{SHA[:-2]}"}, "stack.source"),
    (
        "identical-to",
        {"workload.dataset.build.identical_to": "nemotron3nano-tulu3-fixed8192-v1"},
        "workload.dataset.build.identical_to",
    ),
    ("rows-texts", {"workload.dataset.build.name": "tulu3-fixed4096"}, None),
    ("rows-texts", {"workload.dataset.build.packing": "cut into 4,096-token rows"}, None),
    ("rows-texts", {"workload.dataset.build.builder": "make --loss-mask qwen3"}, None),
    ("dates", {"result.measured": datetime.date(2019, 1, 1)}, "result.measured"),
    ("dates", {"result.measured": datetime.date(2200, 1, 1)}, "result.measured"),
    ("dates", {"result.price.date": datetime.date(2026, 10, 16)}, "result.price.date"),
    ("addresses", {"author.url": "javascript:alert(1)"}, "author.url"),
    ("addresses", {"author.url": "https://a b"}, "author.url"),
    ("addresses", {"evidence": {"sha256": SHA}}, "evidence"),
    ("addresses", {"evidence": {"sha256": SHA, "path": "../up"}}, "evidence.path"),
    ("other-recipes", {"superseded_by": "../../etc/passwd"}, "superseded_by"),
    ("status", {"status": "planned"}, "status"),
    ("status", {"patches": [{"repo": "radixark/miles", "why": "x"}]}, "stack.framework"),
]


@pytest.mark.parametrize("rule, changes, field", CASES)
def test_a_broken_rule_is_found_at_its_field(rule, changes, field):
    hits = [finding for finding in findings(changed(changes)) if finding.rule == rule]
    assert hits, [f"{f.rule} {f.field}" for f in findings(changed(changes))]
    if field is not None:
        assert field in [finding.field for finding in hits]


def test_every_rule_has_a_case():
    elsewhere = {"no-effect", "price-of-day", "reviews", "path", "schema", "yaml-plain"}
    assert {rule for rule, *_ in CASES} | elsewhere == set(RULES)


def test_another_run_than_the_measured_one_has_its_own_steps_and_probe():
    check = "correctness.convergence."
    changes = {check + "steps": 19, check + "parity_probe": True, check + "candidate_run": "c"}
    assert findings(changed(changes)) == []


@pytest.mark.parametrize(
    "path, rate, severity",
    [
        (NANO_REFERENCE, 52292.0, "error"),  # 5,229.2 and a unit that slipped
        (NANO_REFERENCE, 52.292, "warning"),
        (NANO_REFERENCE, 5299.2, None),
        (SUPER_REFERENCE, 68830.0, "error"),
        (SUPER_REFERENCE, 6.883, "warning"),
    ],
)
def test_a_rate_alone_has_bounds(path, rate, severity):
    hits = findings(changed({"result.tokens_per_s_per_gpu": rate}, data(path)))
    assert [(f.rule, f.severity) for f in hits] == ([("rate", severity)] if severity else [])


def test_a_rate_is_held_against_gpu_hours_and_the_steps_of_the_flags():
    recipe = changed({"result.gpu_hours": 0.1}, data(NANO_REFERENCE))
    assert [f.rule for f in findings(recipe)] == ["gpu-hours"]


def test_a_model_that_nobody_knows_is_a_warning_and_on_cpu_a_note():
    recipe = changed({"model": "Nemotron-3-Nano-30B-A3"}, data(NANO_REFERENCE))
    (hit,) = findings(recipe)
    assert (hit.rule, hit.severity, hit.expected) == (
        "model-known", "warning", "Nemotron-3-Nano-30B-A3B",
    )  # fmt: skip
    recipe["gpu"] = {"type": "CPU", "count": 8, "per_node": 8}
    assert [f.severity for f in lint_data(recipe) if f.rule == "model-known"] == ["note"]


@pytest.mark.parametrize("path", ALL)
def test_shipped_recipes_have_no_error_and_no_warning(path):
    assert [finding for finding in lint(path) if finding.severity != "note"] == []
    assert findings(with_arguments(path)) == []


def test_a_complete_recipe_is_clean():
    assert findings(complete()) == []


def test_full_recompute_on_mamba_is_a_note():
    notes = [finding for finding in lint(NANO) if finding.severity == "note"]
    assert [(finding.rule, finding.field) for finding in notes] == [
        ("no-effect", "layout.recompute.granularity")
    ]
    assert [finding for finding in lint(SUPER) if finding.rule == "no-effect"] == []


def test_another_price_of_that_day_is_a_note():
    recipe = changed({"result.price.usd_per_gpu_hour": 7.8, "result.usd_per_million_tokens": 0.28})
    assert [f.severity for f in lint_data(recipe) if f.rule == "price-of-day"] == ["note"]


def review(**more):
    return {
        "flag": "optimizer-offload-fraction",
        "candidate": "0.55",
        "reference": "1.0",
        "class": "placement",
        "reason": "moves state",
        "by": "a person",
        "date": datetime.date(2026, 10, 21),
    } | more


@pytest.mark.parametrize(
    "more, field",
    [
        ({}, None),
        ({"candidate": "0.45"}, "correctness.reviews.0.candidate"),
        ({"class": "numerics"}, "correctness.reviews.0.class"),
        ({"class": "unknown"}, "correctness.reviews.0.class"),
        ({"class": "io"}, "correctness.reviews.0.class"),
    ],
)
def test_reviews_are_for_the_recipes_own_value(more, field):
    base = with_arguments(SUPER)
    base["correctness"]["reviews"] = [review(**more)]
    hits = [finding for finding in findings(base) if finding.rule == "reviews"]
    assert (field in [finding.field for finding in hits]) if field else not hits


def test_a_review_before_the_measurement_is_out_of_order():
    base = with_arguments(SUPER)
    base["correctness"]["reviews"] = [review(date=datetime.date(2026, 10, 20))]
    assert [f.rule for f in findings(base)] == ["dates"]


def test_identical_rows_have_identical_hashes():
    twin = "nemotron3nano-tulu3-fixed8192-v1"
    base = data(SUPER)
    build = base["workload"]["dataset"]["build"]
    ours = (base["workload"]["dataset"]["rows_sha256"], build["parquet_sha256"])
    same = {twin: ours}
    other = {twin: (ours[0], SHA)}
    assert findings(base, rows=same.get) == []
    assert [f.rule for f in findings(base, rows=other.get)] == ["identical-to"]


@pytest.mark.parametrize(
    "name, broken",
    [
        ("recipes/nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4.yaml", False),
        ("recipes/nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep8.yaml", True),
        ("recipes/nemotron-3-nano-30b-a3b/h200/attune-tp1-pp2-ep4-mt16k.yaml", True),
        ("recipes/nemotron-3-nano-30b-a3b/h100/attune-tp1-pp2-ep4.yaml", True),
        ("recipes/nemotron-3-super/h200/attune-tp1-pp2-ep4.yaml", True),
        ("recipes/nemotron-3-nano-30b-a3b/h200/other-tp1-pp2-ep4.yaml", True),
        ("recipes/nemotron-3-nano-30b-a3b/h200/Attune-tp1-pp2-ep4.yaml", True),
        ("recipes/nano.yaml", True),
    ],
)
def test_the_place_names_the_recipe(name, broken, tmp_path):
    text = NANO.read_text().split("\n", 1)[1]
    file = tmp_path / "any.yaml"
    file.write_text(f"# {name}\n{text}")
    assert ("path" in {finding.rule for finding in lint(file)}) is broken
    if name.count("/") == 3:
        placed = tmp_path / name
        placed.parent.mkdir(parents=True)
        placed.write_text(text)
        assert ("path" in {finding.rule for finding in lint(placed)}) is broken


def test_a_reference_that_changed_is_found(tmp_path):
    folder = tmp_path / "recipes/nemotron-3-nano-30b-a3b/h200"
    folder.mkdir(parents=True)
    (folder / NANO_REFERENCE.name).write_bytes(NANO_REFERENCE.read_bytes())
    digest = hashlib.sha256(NANO_REFERENCE.read_bytes()).hexdigest()
    place = f"recipes/nemotron-3-nano-30b-a3b/h200/{NANO_REFERENCE.name}"
    named = f"  reference_recipe:\n    path: {place}\n    sha256: {digest}\n"
    text = NANO.read_text().replace("correctness:\n", f"correctness:\n{named}")
    file = folder / NANO.name
    file.write_text(text)
    assert [f for f in lint(file) if f.severity != "note"] == []
    with (folder / NANO_REFERENCE.name).open("a") as stream:
        stream.write("# changed\n")
    assert [f.rule for f in lint(file) if f.severity != "note"] == ["other-recipes"]


def test_a_new_rule_only_warns_on_an_older_recipe():
    recipe = validate(complete())[0]
    rule = LintRule("new", "error", "x", lambda context: [Broken("model", 1, 2, "x")], since=2)
    assert [finding.severity for finding in rule.findings(Context(recipe))] == ["warning"]
    current = LintRule("old", "error", "x", rule.check, since=1)
    assert [finding.severity for finding in current.findings(Context(recipe))] == ["error"]


def test_a_layout_rule_is_a_finding_with_engine_and_nearest_value():
    hits = [f for f in findings(changed({"layout.ep": 8})) if f.rule == "expert-world-divides"]
    assert hits[0].as_json().keys() == {
        "rule", "severity", "field", "found", "expected", "message", "engine", "nearest",
    }  # fmt: skip
    assert (hits[0].engine, hits[0].nearest) == ("miles", 4)


def test_schema_faults_are_findings():
    hits = findings(changed({"gpu.count": "8"}))
    assert [(f.rule, f.severity, f.field) for f in hits] == [("schema", "error", "gpu.count")]
    assert hits[0].as_json().keys() == {
        "rule", "severity", "field", "found", "expected", "message",
    }  # fmt: skip


def test_findings_know_their_line(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(NANO.read_text().replace("mfu: 0.153", "mfu: 0.155"))
    (hit,) = [f for f in lint(file) if f.rule == "mfu"]
    assert "mfu: 0.155" in file.read_text().splitlines()[hit.line - 1]


def test_readers_that_disagree_are_warned_of(tmp_path):
    file = tmp_path / "r.yaml"
    text = NANO.read_text().replace("final_loss_difference: 4.3e-05", "final_loss_difference: 1e-5")
    file.write_text(text)
    assert [f.rule for f in lint(file) if f.severity == "warning"] == ["yaml-plain"]


def test_the_tables_name_every_rule_once():
    table = rules_table()
    assert all(table.count(f"| `{name}` |") == 1 for name in RULES)
    assert sum(len(group) for group in GROUPS.values()) == len(RULES)
