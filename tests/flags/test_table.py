"""The table itself: complete, consistent, and right about what a difference means."""

import pytest

from openrecipes.flags.parse import check_value
from openrecipes.flags.table import ENGINES, SEVERITY, classify, spellings, table

STATUSES = {"honoured", "mapped", "ignored", "refused"}


def test_every_flag_is_well_formed() -> None:
    for name, flag in table().items():
        assert name == name.lower() and not name.startswith("-")
        assert flag.type in {"int", "float", "str", "path", "switch", "list"}, name
        assert flag.class_ in SEVERITY, name
        assert flag.reason.endswith(".") and flag.effect.endswith("."), name
        assert flag.source in {"megatron", "miles", "openrecipes"}, name
        assert set(flag.support) == set(ENGINES)
        assert set(flag.value_classes.values()) <= set(SEVERITY)


def test_every_default_is_a_value_that_the_flag_can_have() -> None:
    for name, flag in table().items():
        for value in [flag.default, *(s.default for s in flag.support.values())]:
            assert check_value(flag, value) == value, name


def test_ignoring_a_flag_needs_a_reason() -> None:
    for name, flag in table().items():
        for engine, support in flag.support.items():
            assert support.status in STATUSES, (name, engine)
            if support.status == "ignored":
                assert support.note, (name, engine)


def test_no_spelling_belongs_to_two_flags() -> None:
    count = sum(1 + len(f.aliases) + bool(f.negation) for f in table().values())
    assert len(spellings()) == count


@pytest.mark.parametrize(
    ("name", "a", "b", "expected"),
    [
        ("optimizer-offload-fraction", 1.0, 0.55, "placement"),
        ("tensor-model-parallel-size", 1, 2, "layout"),
        ("max-tokens-per-gpu", 1024, 16384, "layout"),
        ("recompute-granularity", "full", "selective", "memory"),
        ("attention-backend", "auto", "flash", "kernel"),
        ("bf16", True, False, "numerics"),
        ("fp8-format", None, "hybrid", "numerics"),
        ("lr", 1e-5, 1.1e-5, "workload"),
        ("save", "a", "b", "io"),
        ("no-such-flag", 1, 2, "unknown"),
    ],
)
def test_a_difference_has_a_class_and_a_reason(name: str, a: object, b: object, expected: str):
    found, reason = classify(name, a, b)  # type: ignore[arg-type]
    assert found == expected
    assert reason
