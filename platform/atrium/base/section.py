"""What is declared: sections of settings, the ranges that they share, and axes with a class per value.

A declared class is frozen, strict and closed, so that whoever holds one holds settings that are right. It
says what its settings mean and which values they take, and everything that reads it (messages, help, docs,
the code that executes it) reads the one class.
"""

from __future__ import annotations

import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, field_validator

SMALLEST = 1e-30
"""What is nearer to 0 than this is no setting: float32, in which most are computed with, ends at 1e-38."""

Count = Annotated[int, Field(ge=1, le=10**9)]
"""A number of things of which at least one is needed."""
CountOrZero = Annotated[int, Field(ge=0, le=10**9)]
"""A number of things of which there may be none."""
Parallel = Annotated[int, Field(ge=1, le=1024)]
"""A number of threads, processes or machines that work at once."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""The start of a sequence of random choices."""
Frac = Annotated[float, Field(ge=0.0, le=1.0)]
"""A share or a probability."""
PositiveFrac = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share of something that may not be empty."""
Positive = Annotated[float, Field(gt=0.0, le=1e6)]
"""A quantity above 0."""
Rate = Annotated[float, Field(gt=0.0, le=1e20)]
"""A learning rate; of an absurd one the policy diverges, which ends a run in order."""
Exponent = Annotated[float, Field(gt=0.0, le=80.0)]
"""A bound on what is exponentiated: float32 ends at exp(88)."""
Wait = Annotated[float, Field(ge=1e-3, le=3 * 86_400.0)]
"""Seconds that something is waited for, at most three days: systems count 2^31 milliseconds, 24.8 days."""
NonNegative = Annotated[float, Field(ge=0.0, le=1e6)]
"""A quantity of at least 0."""
Number = Annotated[float, Field(ge=-1e6, le=1e6)]
"""A quantity of either sign."""
AboveOne = Annotated[float, Field(gt=1.0, le=1e6)]
"""A ratio that only moves away from 1 reach."""
Text = Annotated[str, Field(min_length=1)]
"""Text that is not empty."""


def _check_day(value: str) -> str:
    datetime.date.fromisoformat(value)
    return value


Day = Annotated[Text, Field(pattern=r"^\d{4}-\d{2}-\d{2}$"), AfterValidator(_check_day)]
"""A day as YYYY-MM-DD."""
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
"""A name that can be a folder: letters, digits, dots, dashes and underscores."""


class Section(BaseModel):
    """A validated group of settings. Unknown keys, wrong types, NaN, inf and vanishing numbers are errors.

    Every number declares a range, by one of the types above or its own: what lies beyond it fails here, in
    one line, and not as an overflow, a hang or a crash of whatever computes with it.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @field_validator("*")
    @classmethod
    def _check_size(cls, value: object) -> object:
        if isinstance(value, float) and 0.0 < abs(value) < SMALLEST:
            raise ValueError(f"0, where that is in its range, or at least {SMALLEST:g} in size")
        return value


class Axis(Section):
    """One question that a method, or a run, has several answers to: a class per answer, told apart by `kind`.

    `class Reduction(Axis, axis=True)` opens an axis; a subclass of it that declares the field `kind` as a
    literal is one of its values, and is then known by `Reduction.kinds`. As the type of a field, `Reduction`
    stands for any of its values. `tag` names the field, where it is another than `kind`.
    """

    kinds: ClassVar[dict[str, type[Axis]]] = {}
    tag: ClassVar[str] = "kind"

    if TYPE_CHECKING:  # every value declares it, as a literal of its own
        kind: str

    def __init_subclass__(cls, *, axis: bool = False, tag: str = "kind") -> None:
        super().__init_subclass__()
        if axis:
            cls.kinds, cls.tag = {}, tag

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Make a class with a `kind` known to its axis.

        Raises `TypeError` for a class that leaves a method out, and for a kind that is declared already.
        """
        for kind in cls.own_kinds():
            if missing := ", ".join(sorted(cls.__abstractmethods__)):
                raise TypeError(f"{cls.__qualname__} must define {missing}")
            known = cls.kinds.setdefault(kind, cls)
            if known is not cls:
                raise TypeError(f"{kind} is declared by {known.__qualname__} and by {cls.__qualname__}")

    @classmethod
    def named(cls, kind: str) -> type[Self]:
        """The class of this axis that is called `kind`; `KeyError` where there is none."""
        return cast("type[Self]", cls.kinds[kind])

    @classmethod
    def build(cls, kind: str, **settings: object) -> Self:
        """The value of this axis that is called `kind`; `KeyError` where there is none."""
        return cls.named(kind).model_validate({cls.tag: kind, **settings})

    @classmethod
    def is_axis(cls) -> bool:
        """Whether the class opens an axis, and so stands for any of its values."""
        return "kinds" in vars(cls)

    @classmethod
    def own_kinds(cls) -> tuple[str, ...]:
        """The kinds that the class itself stands for; none for a class that opens an axis."""
        field = cls.model_fields.get(cls.tag)
        return get_args(field.annotation) if field is not None else ()

    @classmethod
    def values(cls) -> tuple[type[Axis], ...]:
        """The classes of the axis, in the order in which they are declared."""
        return tuple(dict.fromkeys(cls.kinds.values()))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> Any:  # noqa: ANN401 - a private type of pydantic's
        """As the type of a field, an axis is any of its values; a value is itself."""
        if not cls.is_axis() or not cls.kinds:
            return handler(source)
        return handler.generate_schema(Annotated[reduce(or_, cls.values()), Field(discriminator=cls.tag)])
