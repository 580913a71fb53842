"""The base of every block of a recipe, and the one way to declare a field in it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, Strict

#: Numbers that arithmetic on figures cannot take out of range, and sizes that loops can take.
LARGEST, LEAST = 2**63 - 1, 1e-9
MOST_GPUS, MOST_ROW_TOKENS = 2**20, 2**31

#: A YAML list that becomes a tuple, so that blocks stay hashable; its items are still strict.
Strings = Annotated[tuple[str, ...], Strict(False)]
Layers = Annotated[
    tuple[Annotated[int, Field(ge=0, le=2**16)], ...], Strict(False), Field(min_length=1)
]
Step = Annotated[int, Field(ge=0, le=LARGEST)]


class Block(BaseModel):
    """A block of the document: unknown keys, wrong types, NaN and infinity are errors.

    Blocks are immutable and hashable; ``block()`` gives them back as plain YAML data.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=False,
        populate_by_name=True,
        serialize_by_alias=True,
    )

    def block(self) -> dict[str, Any]:
        """The block as plain data (strings, numbers, lists, maps), keys in the schema's order.

        Keys that were never given are left out; a key given as ``None`` stays.
        """
        data: dict[str, Any] = _lists(self.model_dump(exclude_unset=True, by_alias=True))
        return data


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_lists(item) for item in value]
    return value


def field(
    description: str,
    *,
    example: Any,
    unit: str | None = None,
    default: Any = ...,
    **constraints: Any,
) -> Any:
    """A field with what the schema's reader needs: meaning, unit and an example.

    Args:
        description: what the field means, one or two sentences.
        example: a valid value.
        unit: the unit of a number, ``"1"`` where it has none.
        default: the value where the key is absent; required when not given.
        constraints: pydantic's own (``ge``, ``pattern``, ``alias``, ...). A number is at most
            ``LARGEST`` where no ``le`` says otherwise, and one above 0 (``gt=0``) at least
            ``LEAST``.
    """
    if constraints.keys() & {"ge", "gt"}:
        constraints.setdefault("le", LARGEST)
    if constraints.get("gt") == 0:
        constraints["ge"] = LEAST
        del constraints["gt"]
    extra: dict[str, Any] = {} if unit is None else {"unit": unit}
    return Field(
        default,
        description=description,
        examples=[example],
        json_schema_extra=extra or None,
        **constraints,
    )
