"""Lint rules about the command: flags, environment and inputs, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from openrecipes.errors import InputError
from openrecipes.flags.parse import ineffective
from openrecipes.flags.shell import Typed, references
from openrecipes.flags.table import table
from openrecipes.layouts.recompute import is_effective
from openrecipes.recipe.flags import as_text, field_flags, typed_value
from openrecipes.recipe.lint.context import Context
from openrecipes.recipe.lint.finding import Broken, LintRule, Severity
from openrecipes.recipe.render import program_variables

#: Unknown flags that get a hint: looking for the nearest name takes a millisecond each.
_HINTS = 20
#: Switches that Megatron turns off by itself at a tensor parallel size of 1.
_OFF_AT_TP1 = ("sequence-parallel", "tp-comm-overlap")


def _readable(context: Context) -> Iterator[Broken]:
    fault = context.script_fault
    if fault is not None:
        where = f"run, {fault.field}" if fault.field else "run"
        yield Broken(where, fault.found, fault.expected or "a launch script", fault.action)


def _run_flags(context: Context) -> Iterator[Broken]:
    if context.script is None:
        return
    found, expected = context.script.typed(), context.arguments
    for name in context.script.doubled():
        yield Broken("run", f"--{name} twice", "each flag once", f"--{name} stands twice")
    for name in sorted(found.keys() | expected.keys()):
        field = _field(name)
        if name not in found:
            message = f"run lacks --{name}"
            yield Broken("run", None, f"--{name} {_text(expected[name])}", message)
        elif name not in expected:
            message = f"run has --{name}, which no argument and no field says"
            yield Broken(field, f"--{name} {_text(found[name])}", "no such flag", message)
        elif not _equal(name, found[name], expected[name]):
            message = f"run has --{name} {_text(found[name])}; the recipe says otherwise"
            yield Broken(field, _text(found[name]), _text(expected[name]), message)


def _field(name: str) -> str:
    flag = table().get(name)
    return flag.field if flag is not None and flag.field else "run"


def _text(value: Typed) -> str:
    return (
        "(switch)" if value is True else " ".join(value) if isinstance(value, list) else str(value)
    )


def _equal(name: str, one: Typed, other: Typed) -> bool:
    try:
        return bool(typed_value(name, one) == typed_value(name, other))
    except InputError:
        return one == other


def _environment(context: Context) -> Iterator[Broken]:
    env = context.recipe.env
    if context.script is None or env is None:
        return
    exports = context.script.exports
    for name in sorted(env.keys() | exports.keys()):
        if env.get(name) != exports.get(name):
            message = f"run exports {name}={exports.get(name)}, env says {env.get(name)}"
            yield Broken(f"env.{name}", exports.get(name), env.get(name), message)


def _inputs(context: Context) -> Iterator[Broken]:
    recipe = context.recipe
    if recipe.inputs is None:
        return
    texts = [*(recipe.env or {}).values()]
    for value in context.arguments.values():
        texts += value if isinstance(value, list) else [value] if isinstance(value, str) else []
    set_before = {*(recipe.env or {}), *(context.script.assignments if context.script else {})}
    used = {name for text in texts for name in references(text)} - set_before
    used |= set(program_variables(recipe)) if recipe.run is not None else set()
    for name in sorted(used - recipe.inputs.keys()):
        message = f"the command needs ${name}; say what it is"
        yield Broken(f"inputs.{name}", None, "a sentence", message)
    for name in sorted(recipe.inputs.keys() - used):
        message = "nothing in the command needs it"
        yield Broken(f"inputs.{name}", name, "a variable of the command", message, "warning")


def _values(context: Context) -> Iterator[Broken]:
    for name, value in context.arguments.items():
        try:
            typed_value(name, value)
        except InputError as error:
            field = f"arguments.{name}" if name in (context.recipe.arguments or {}) else "run"
            message = f"--{name} takes {error.expected}"
            yield Broken(field, _text(value), error.expected, message)


def _unknown(context: Context) -> Iterator[Broken]:
    unknown = [name for name in context.arguments if name not in table()]
    for index, name in enumerate(unknown):
        near = get_close_matches(name, table(), n=1) if index < _HINTS else []
        hint = f"did you mean --{near[0]}?" if near else "its effect cannot be classed"
        field = f"arguments.{name}" if name in (context.recipe.arguments or {}) else "run"
        message = f"--{name} is not in the table of flags: {hint}"
        yield Broken(field, f"--{name}", near[0] if near else "a known flag", message)


def _refused(context: Context) -> Iterator[Broken]:
    for name, value in context.flags.items():
        flag = table().get(name)
        if flag is None or (isinstance(value, str) and "$" in value):
            continue
        support = flag.support[context.engine]
        if not support.takes(value):
            reason = support.note or f"the {context.engine} engine does not have it"
            message = f"--{name} {_text(as_text(value))} is refused: {reason}"
            yield Broken(_field(name), _text(as_text(value)), "a value it takes", message)


def _no_effect(context: Context) -> Iterator[Broken]:
    engine = context.engine
    for name, reason in ineffective(context.flags, engine).items():
        message = f"--{name} has no effect with the {engine} engine: {reason}"
        yield Broken(_field(name), f"--{name}", None, message)
    pattern = context.model.pattern if context.model else None
    if context.model is not None and not is_effective(context.layout, engine, pattern):
        recompute = context.layout.recompute
        granularity = recompute.granularity if recompute else None
        message = f"{granularity} recompute does nothing on this model with the {engine} engine"
        yield Broken("layout.recompute.granularity", granularity, None, message)
    if context.layout.tp == 1:
        for name in _OFF_AT_TP1:
            if context.flags.get(name):
                yield Broken(_field(name), f"--{name}", None, f"--{name} has no effect with TP 1")


def _fields_once(context: Context) -> Iterator[Broken]:
    arguments = context.recipe.arguments
    if arguments is None:
        return
    fields = field_flags(context.recipe, context.recipe.engine or "native")
    for name, value in context.own.items():
        if name in fields:
            same = _equal(name, value, as_text(fields[name]))
            message = f"{_field(name)} says it already, and a field wins"
            found, expected = _text(value), "no such argument"
            severity: Severity = "warning" if same else "error"
            yield Broken(f"arguments.{name}", found, expected, message, severity)
        elif name not in context.arguments:
            message = f"{_field(name)} decides it and does not give it"
            yield Broken(f"arguments.{name}", _text(value), "no such argument", message)


COMMAND_RULES = (
    LintRule(
        "run-readable", "error", "run is a launch script with one training command", _readable
    ),
    LintRule(
        "run-flags",
        "error",
        "flags of run = arguments, overlaid by gpu, layout and workload, one by one, each once",
        _run_flags,
    ),
    LintRule(
        "run-environment", "error", "variables exported by run = env, one by one", _environment
    ),
    LintRule(
        "inputs",
        "error",
        "inputs = the variables that the command needs (unused: a warning)",
        _inputs,
    ),
    LintRule("flag-value", "error", "each flag's value has the flag's type", _values),
    LintRule("flag-known", "warning", "each flag is in the table of flags", _unknown),
    LintRule("flag-refused", "error", "the engine takes each flag's value", _refused),
    LintRule(
        "field-or-argument",
        "error",
        "no argument repeats a field (the same value: a warning)",
        _fields_once,
    ),
    LintRule(
        "no-effect", "note", "flags known to do nothing with this engine and model", _no_effect
    ),
)
