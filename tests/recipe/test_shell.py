import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrecipes.errors import InputError
from openrecipes.flags.shell import (
    parse_script,
    quote,
    references,
    render_exports,
    render_words,
)


def flags(text):
    return parse_script(text).typed()


@pytest.mark.parametrize(
    "text, expected",
    [
        ("python3 train.py --lr 1e-5", {"lr": "1e-5"}),
        ("python3 train.py --lr=1e-5 --bf16", {"lr": "1e-5", "bf16": True}),
        ("python3 train.py \\\n  --lr 1e-5 \\\n  --bf16\n", {"lr": "1e-5", "bf16": True}),
        ("train.py --recompute-modules moe core_attn", {"recompute-modules": ["moe", "core_attn"]}),
        ("train.py --data '/a b/c' --name \"x y\"", {"data": "/a b/c", "name": "x y"}),
        ('train.py --data "$SFT_DATA/rows"', {"data": "$SFT_DATA/rows"}),
        ("train.py --data '$5'", {"data": "\\$5"}),
        ('train.py --data "a\\"b\\\\c"', {"data": 'a"b\\c'}),
        ("train.py --lr 1 # --lr 2\n", {"lr": "1"}),
        ("train.py --offset -1", {"offset": "-1"}),
        ("train.py --empty ''", {"empty": ""}),
        ("train.py --json '{\"a\": [1, 2]}'", {"json": '{"a": [1, 2]}'}),
        ("train.py --lr 1; echo --lr 2", {"lr": "1"}),
        ("echo --one\ntrain.py --lr 1 --bf16", {"lr": "1", "bf16": True}),
        ("train.py a\\ b --lr 1", {"lr": "1"}),
        ("train.py --lr 1 --lr 2", {"lr": "2"}),
        ("torchrun --nproc-per-node 8 train.py --lr 1", {"lr": "1"}),
        ("torchrun --standalone -m openrecipes train --lr 1", {"lr": "1"}),
        ("openrecipes train --lr 1", {"lr": "1"}),
        ("python -m pretrain --lr 1", {"lr": "1"}),
        ("ray job submit --address=x -- python3 train.py --lr 1", {"lr": "1"}),
        ("mytrainer --lr 1", {"lr": "1"}),
    ],
)
def test_flags_are_read_as_people_write_them(text, expected):
    assert flags(text) == expected


def test_exports_arrays_and_assignments():
    script = parse_script(
        'export A=1 B="$HOME/x"\nC=\'two words\'\nread -ra ARGS <<< "$C"\n'
        'D=4 python3 train.py "${ARGS[@]}" --lr 1\n'
    )
    assert script.exports == {"A": "1", "B": "$HOME/x", "D": "4"}
    assert script.assignments == {"C": "two words"}
    assert script.expansions == ["${ARGS[@]}"]
    assert script.program == ["python3", "train.py"]


def test_an_array_is_no_value_of_the_switch_before_it():
    assert flags('train.py --bf16 "${MODEL_ARGS[@]}" --lr 1') == {"bf16": True, "lr": "1"}


def test_doubled_flags_are_told():
    assert parse_script("train.py --lr 1 --bf16 --lr 1").doubled() == ["lr"]


@pytest.mark.parametrize("text", ["", "echo hi", 'train.py --lr "1', "train.py --a $(b", "--"])
def test_what_cannot_be_read_is_told(text):
    with pytest.raises(InputError):
        parse_script(text)


words = st.text(
    st.characters(blacklist_categories=("Cs", "Cc")) | st.sampled_from("$`\"'\\ ;&|#()<>*?~!{}[]"),
    max_size=20,
).filter(lambda word: not word.startswith("--"))


@settings(max_examples=150, deadline=None)
@given(words)
def test_a_quoted_value_reads_back(value):
    if "\\$" in value or "$" in value:
        value = value.replace("$", "\\$").replace("\\\\$", "\\$")
    assert flags(f"train.py --name {quote(value)} --end") == {"name": value, "end": True}


@pytest.mark.parametrize(
    "value, shown",
    [
        ("$HOME/x y", "HOME/x y"),
        ("${HOME}x", "HOMEx"),
        ("\\$HOME", "$HOME"),
        ("$(touch x)", "$(touch x)"),
        ("`touch x`$HOME", "`touch x`HOME"),
        ("a'b\"c\\d$HOME", "a'b\"c\\dHOME"),
        ("; touch x", "; touch x"),
        ("$$", "$$"),
    ],
)
def test_the_shell_sees_variables_and_nothing_else(value, shown):
    """The one place where a shell runs: printf of a quoted word, in an empty environment."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"printf %s {quote(value)}"],
        env={"HOME": "HOME"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == shown


def test_python_and_the_shell_split_the_same_plain_words():
    text = "train.py --a 'x y' --b \"p q\" --c r\\ s"
    assert parse_script(text).flags == [("a", ("x y",)), ("b", ("p q",)), ("c", ("r s",))]
    assert shlex.split(text)[2::2] == ["x y", "p q", "r s"]


def test_variables_of_a_value():
    assert references("$A/${B}/\\$C/$") == ["A", "B"]


def test_rendering_reads_back():
    given_ = {
        "lr": "1e-5",
        "bf16": True,
        "modules": ["moe", "mlp"],
        "data": "$SFT_DATA",
        "x": "a b",
    }
    text = "train.py " + " ".join(render_words(given_))
    assert flags(text) == given_


def test_a_variable_needs_a_name_that_a_shell_takes():
    assert render_exports({"A_1": "x y"}) == ["export A_1='x y'"]
    with pytest.raises(InputError):
        render_exports({"A; touch x": "1"})
