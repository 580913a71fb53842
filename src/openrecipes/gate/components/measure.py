"""Run component tests and judge their errors.

The error is ||found - exact|| / ||exact||, the worst of the output and each input's gradient. Its
bound follows from precision and size. Independent roundings add up as their squares: k values
rounded in the run's precision, with unit roundoff u, and sums of n terms in fp32, with u32, leave
about u sqrt(k) + u32 sqrt(n). The bound is twice that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor

from openrecipes.gate.components.cases import Case, Function, Inputs, cases

PRECISIONS: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_SLACK: Final = 2.0


@dataclass(frozen=True)
class Result:
    """What one component test found; ``gradients`` and ``others`` are None where they do not apply.

    Attributes:
        component: its name.
        precision: fp32, bf16 or fp16.
        output: relative error of the output.
        gradients: the worst relative error of a gradient.
        others: relative change of a segment's output when the other segments are left out.
        bound: what each of the three may be.
    """

    component: str
    precision: str
    output: float
    gradients: float | None
    others: float | None
    bound: float

    @property
    def relative_error(self) -> float:
        """The worst of the three; NaN where one is."""
        known = [e for e in (self.output, self.gradients, self.others) if e is not None]
        return math.nan if any(math.isnan(error) for error in known) else max(known)

    @property
    def passed(self) -> bool:
        """Whether the error is a number within the bound."""
        return math.isfinite(self.relative_error) and self.relative_error <= self.bound

    def as_json(self, flag: str) -> dict[str, Any]:
        """The result as a recipe's ``component_tests`` hold it, for the difference in ``flag``."""
        return {
            "component": self.component,
            "flag": flag,
            "precision": self.precision,
            "relative_error": _number(self.relative_error),
            "bound": self.bound,
            "result": "pass" if self.passed else "fail",
        }


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@cache
def measure(name: str, precision: str, device: str = "cpu") -> list[Result]:
    """Test a component of this machine in fp32 and, where it is another, in ``precision``."""
    case = cases(device)[name]
    return [judge(name, case, each) for each in dict.fromkeys(["fp32", precision])]


def judge(name: str, case: Case, precision: str) -> Result:
    """Test one component in one precision."""
    dtype = PRECISIONS[precision]
    given = {
        key: tensor.to(dtype) if key in case.rounded else tensor
        for key, tensor in case.inputs.items()
    }
    exact, exact_gradients = _run(
        case.formula, {key: tensor.double() for key, tensor in given.items()}, case.differentiated
    )
    found, gradients = _run(case.engine, given, case.differentiated)
    errors = [_apart(gradients[key], exact_gradients[key]) for key in case.differentiated]
    return Result(
        component=name,
        precision=precision,
        output=_apart(found, exact),
        gradients=max(errors) if errors else None,
        others=_alone(case, given, found) if case.first else None,
        bound=bound(case, dtype),
    )


def bound(case: Case, dtype: torch.dtype) -> float:
    """The largest relative error that rounding explains."""
    unit, unit32 = torch.finfo(dtype).eps / 2, torch.finfo(torch.float32).eps / 2
    return _SLACK * (unit * math.sqrt(case.roundings) + unit32 * math.sqrt(case.terms))


def _run(
    function: Function, given: Inputs, differentiated: tuple[str, ...]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Output and gradients for a fixed gradient of the output."""
    leaves = {
        key: tensor.detach().clone().requires_grad_(key in differentiated)
        for key, tensor in given.items()
    }
    out = function(leaves)
    if not differentiated:
        return out.detach(), {}
    generator = torch.Generator().manual_seed(0)
    upstream = torch.randn(out.shape, generator=generator).bfloat16().to(out)
    asked = [leaves[key] for key in differentiated]
    found = torch.autograd.grad(out, asked, upstream)
    return out.detach(), dict(zip(differentiated, found, strict=True))


def _alone(case: Case, given: Inputs, together: Tensor) -> float:
    """How much the first segment's output changes when it is computed without the others."""
    tokens = together.shape[0]
    only = {
        key: tensor[: case.first] if tensor.shape[0] == tokens else tensor
        for key, tensor in given.items()
    }
    with torch.no_grad():
        return _apart(case.engine(only), together[: case.first])


def _apart(found: Tensor, exact: Tensor) -> float:
    """||found - exact|| / ||exact||; NaN stays NaN, so that it is no pass."""
    exact = exact.double()
    return float((found.double() - exact).norm() / exact.norm())
