"""Lint rules about the command as a shell reads it: nothing but what the recipe's fields give."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from openrecipes.flags.shell import Outline, Script, references
from openrecipes.flags.words import is_inert, shown, told
from openrecipes.recipe.lint.context import Context
from openrecipes.recipe.lint.finding import Broken, LintRule

_YAML = r"[\w./-]+\.ya?ml"
#: AutoModel's command names a file that is made from the recipe; the rest of it is fixed.
_AUTOMODEL = re.compile(
    rf"(?:automodel|am) {_YAML}"
    r"|torchrun(?: --(?:standalone|[a-z][a-z_-]+[ =][\w.:$-]+))* -m nemo_automodel\.cli\.app "
    + _YAML
)
_TORCHRUN = re.compile(r"--(nproc[-_]per[-_]node|nnodes)[ =](\S+)")


def _statements(context: Context) -> Iterator[Broken]:
    outline = context.outline
    if outline is None:
        return
    derived = context.derived
    known = derived.others if derived else ()
    for statement in _surplus((*outline.others, *outline.behind), known):
        message = "run does something else: it holds exports and the engine's command"
        yield Broken("run", told(statement), "no such statement", message)
    if "\r" in (context.recipe.run or ""):
        yield Broken("run", "a carriage return", "new lines", "a shell takes it for a letter")


def _surplus(
    found: tuple[tuple[str, ...], ...], known: tuple[tuple[str, ...], ...]
) -> list[tuple[str, ...]]:
    return list((Counter(found) - Counter(known)).elements())


def _program(context: Context) -> Iterator[Broken]:
    outline, derived = context.outline, context.derived
    if outline is None:
        return
    if context.derived_fault is not None:
        fault = context.derived_fault
        where = fault.field or "run"
        yield Broken(where, fault.found, fault.expected, f"run cannot be derived: {fault.action}")
    elif derived is not None:
        yield from _differences(outline, derived)
    elif context.engine == "automodel":
        yield from _automodel(context, outline)
    else:
        found = context.recipe.stack.framework if context.recipe.stack else None
        message = "this engine's program is not known, so that run cannot be checked"
        yield Broken("stack.framework", found, "native, miles or automodel", message, "warning")


def _differences(outline: Outline, derived: Outline) -> Iterator[Broken]:
    if outline.program != derived.program:
        message = "the engine is started in another way on these GPUs"
        yield Broken("run", told(outline.program), told(derived.program), message)
    for statement in _surplus(derived.others, outline.others):
        yield Broken("run", None, told(statement), "run lacks a statement")
    both = Counter(derived.others) & Counter(outline.others)
    if both == Counter(derived.others) and derived.others != tuple(
        statement for statement in outline.others if statement in both
    ):
        expected = "; ".join(map(told, derived.others))
        yield Broken("run", "another order", expected, "statements build on each other")
    if outline.expansions != derived.expansions:
        message = "the command takes other arrays in"
        yield Broken("run", told(outline.expansions), told(derived.expansions), message)


def _automodel(context: Context, outline: Outline) -> Iterator[Broken]:
    gpu = context.recipe.gpu
    text = told(outline.program)
    if not _AUTOMODEL.fullmatch(text) or outline.expansions:
        expected = "automodel FILE.yaml, or torchrun ... -m nemo_automodel.cli.app FILE.yaml"
        yield Broken("run", text, expected, "the engine is started in another way")
    sizes = {"nproc": min(gpu.per_node, gpu.count), "nnodes": max(1, gpu.count // gpu.per_node)}
    for name, value in _TORCHRUN.findall(text):
        expected = str(sizes[name[:5] if name.startswith("nproc") else name])
        if value != expected:
            yield Broken("run", f"--{name} {value}", expected, "the recipe has other GPUs")


def _quoting(context: Context) -> Iterator[Broken]:
    script, derived = context.script, context.derived_script
    if script is None:
        return
    said = {} if derived is None else dict(_spelled(derived))
    for name, (values, exact) in _spelled(script):
        known, spelled = said.get(name, ((), exact))
        another = known == values and spelled != exact
        if another or not all(map(is_inert, exact)):
            expected = f"--{_quoted(spelled)}" if known else "plain or quoted text"
            yield _active(f"--{told(exact)}", expected)
    for word in script.outline.exports:
        if not is_inert(word):
            yield _active(f"export {shown(word)}", "quoted text")


def _spelled(script: Script) -> Iterator[tuple[str, tuple[tuple[str, ...], tuple[str, ...]]]]:
    """Each flag's values, and its name and values as a shell takes them."""
    for (name, values), (exact, words) in zip(script.flags, script.outline.flags, strict=True):
        yield name, (values, (exact, *words))


def _quoted(words: tuple[str, ...]) -> str:
    name, *values = map(shown, words)
    return " ".join([name, *(f'"{value}"' for value in values)])


def _active(found: str, expected: str) -> Broken:
    message = "a shell makes something else of it than the recipe says; quote it"
    return Broken("run", found, expected, message)


def _order(context: Context) -> Iterator[Broken]:
    """Doubled exports, and exports that stand before one that they look up."""
    outline, env = context.outline, context.recipe.env or {}
    if outline is None:
        return
    names = [shown(word).partition("=")[0] for word in outline.exports]
    for name, count in Counter(names).items():
        if count > 1:
            yield Broken(f"env.{name}", f"{count} exports", "one", f"run exports {name} twice")
    in_env = list(env)
    for name, value in env.items():
        for other in references(value):
            both = {name, other} <= env.keys() & set(names)
            if both and _before(name, other, names) != _before(name, other, in_env):
                message = f"{name} looks {other} up, and run exports them in another order"
                yield Broken(f"env.{name}", value, f"{other} as in env", message)


def _before(one: str, other: str, names: list[str]) -> bool:
    return names.index(one) < names.index(other)


STATEMENT_RULES = (
    LintRule(
        "run-statements",
        "error",
        "run holds exports, the statements that the engine needs, and its training command; "
        "nothing else is started, set, sourced, redirected or changed",
        _statements,
    ),
    LintRule(
        "run-program",
        "error",
        "run starts the engine's program as gpu and model give it, word by word: program, "
        "processes per node, nodes, the lines that read the model's arguments (an engine that is "
        "not known: a warning)",
        _program,
    ),
    LintRule(
        "run-quoting",
        "error",
        "a shell does nothing with the values in run but look up quoted variables",
        _quoting,
    ),
    LintRule(
        "run-exports",
        "error",
        "run exports each variable once, and one that another looks up in the order of env",
        _order,
    ),
)
