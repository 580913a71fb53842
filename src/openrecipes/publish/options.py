"""What a person says when publishing, kept in the evidence so that the recipe can be made again."""

from __future__ import annotations

from datetime import date as Date
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from openrecipes.errors import InputError


class Price(BaseModel):
    """Price of one GPU for an hour, whose it is, and of which day."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    usd_per_gpu_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    source: str = "given by the author"
    date: Date | None = None


class Options(BaseModel):
    """Everything in a recipe that no run record tells.

    Attributes:
        author_name: who publishes.
        author_url: page, paper or profile of the author.
        window: measured steps, ``first:last``; by default all after the fifth.
        instance: cloud instance, where the record does not name it.
        price: what the cost was computed with, from the catalogue or given by a person.
        path: the recipe's place in its registry, named in its first line.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    author_name: str | None = None
    author_url: str | None = None
    window: str | None = None
    instance: str | None = None
    price: Price | None = None
    path: str | None = None

    @classmethod
    def read(cls, document: Any, file: str) -> Options:
        """The options of an evidence's ``publish.json``; raises InputError where they are wrong."""
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise InputError(
                "publish the recipe again",
                file=file,
                field=".".join(map(str, first["loc"])) or None,
                found=first.get("input"),
                expected=first["msg"],
            ) from None
