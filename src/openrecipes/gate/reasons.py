"""A verdict in words: why it is no pass, and what a reviewer should look at first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openrecipes.gate import configuration, curves, probe


def reasons(
    found: configuration.Configuration,
    convergence: curves.Curves | None,
    components: Sequence[Mapping[str, Any]],
) -> list[str]:
    """Why a verdict is no pass, a sentence each; empty for a pass."""
    told = [_told(d) for d in found.differences if d.verdict not in ("pass", "component")]
    told += [_told_test(test) for test in components if test["result"] != "pass"]
    if convergence is None:
        told.append("Two run records are needed for a convergence check: a recipe has no curve.")
    else:
        told += [f"{name}: {why}" for name, why in convergence.failures.items()]
        told += [f"{name}: {why}" for name, why in convergence.doubts.items()]
    return told


def _told_test(test: Mapping[str, Any]) -> str:
    begin = f"{test['flag']}: the component test of {test['component']}"
    if test["result"] == "not run":
        return f"{begin} was not run: {test['reason']}"
    error = test["relative_error"]
    shown = "no number" if error is None else f"{error:.2g}"
    return f"{begin} in {test['precision']} failed: {shown} against {test['bound']:.2g}"


def _told(difference: configuration.Difference) -> str:
    return (
        f"{difference.flag} ({difference.kind}): {difference.candidate} against "
        f"{difference.reference}. {difference.reason}"
    )


def look_first(
    found: configuration.Configuration,
    convergence: curves.Curves | None,
    components: Sequence[Mapping[str, Any]],
    probed: probe.Probe | None,
) -> list[str]:
    """What a reviewer should look at, the gravest first; for a pass, what it rests on."""
    look = []
    by_verdict = {v: [d for d in found.differences if d.verdict == v] for v in ("fail", "review")}
    look += [f"{d.flag}: {d.candidate} against {d.reference}" for d in by_verdict["fail"]]
    if convergence is not None:
        look += list(convergence.failures.values())
        if convergence.failures and convergence.first is not None:
            look.append(f"the losses around step {convergence.first}")
        if convergence.failures or convergence.doubts:
            look += convergence.resumes
    if probed is not None and probed.parting is not None:
        look.append(f"the parity probe: {probed.parting}")
    for difference in by_verdict["review"]:
        if difference.kind == "unknown":
            look.append(f"{difference.flag}: class it with `openrecipes review`")
        else:
            look.append(f"{difference.flag}: {difference.reason}")
    look += [_told_test(test) for test in components if test["result"] == "fail"]
    look += list(dict.fromkeys(test["reason"] for test in components if "reason" in test))
    if convergence is None:
        look.append("run both sides and check their records")
    else:
        look += list(convergence.doubts.values())
        look += [] if look else convergence.notes
    return look
