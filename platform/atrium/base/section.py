"""Building blocks of settings: sections, shared ranges, and axes with one class per value.

A settings class is frozen, strict and closed, so an instance always holds valid settings. The class declares
the meaning and the range of each setting; messages, help, docs and the code that uses the settings all read
this one class.
"""

from __future__ import annotations

import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, field_validator

SMALLEST = 1e-30
"""Smallest magnitude of a setting other than 0; float32, used for most computations, ends at 1e-38."""

Count = Annotated[int, Field(ge=1, le=10**9)]
"""A count of at least one."""
CountOrZero = Annotated[int, Field(ge=0, le=10**9)]
"""A count that may be zero."""
Parallel = Annotated[int, Field(ge=1, le=1024)]
"""A number of parallel threads, processes or machines."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A random seed."""
Frac = Annotated[float, Field(ge=0.0, le=1.0)]
"""A share or a probability."""
PositiveFrac = Annotated[float, Field(gt=0.0, le=1.0)]
"""A share greater than 0."""
Positive = Annotated[float, Field(gt=0.0, le=1e6)]
"""A quantity greater than 0."""
Rate = Annotated[float, Field(gt=0.0, le=1e20)]
"""A learning rate; with an absurd one the policy diverges, which ends a run cleanly."""
Exponent = Annotated[float, Field(gt=0.0, le=80.0)]
"""A bound on an exponent: float32 overflows at exp(88)."""
Wait = Annotated[float, Field(ge=1e-3, le=3 * 86_400.0)]
"""A timeout in seconds, at most three days: some systems count 2^31 milliseconds, 24.8 days."""
NonNegative = Annotated[float, Field(ge=0.0, le=1e6)]
"""A quantity of at least 0."""
Number = Annotated[float, Field(ge=-1e6, le=1e6)]
"""A quantity of either sign."""
AboveOne = Annotated[float, Field(gt=1.0, le=1e6)]
"""A ratio greater than 1."""
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
    """A validated group of settings. Unknown keys, wrong types, NaN, inf and denormal numbers are errors.

    Every number declares a range, by one of the types above or its own. A value outside it fails here with
    one line instead of an overflow, hang or crash later.
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
            raise ValueError(f"0 if its range includes it, or at least {SMALLEST:g} in absolute value")
        return value


class Axis(Section):
    """A choice with several values: one class per value, identified by `kind`.

    `class Reduction(Axis, axis=True)` creates an axis. A subclass that declares the field `kind` as a literal
    is one of its values and is listed in `Reduction.kinds`. As the type of a field, `Reduction` accepts any
    of its values. `tag` names the field if it is not `kind`.
    """

    kinds: ClassVar[dict[str, type[Axis]]] = {}
    tag: ClassVar[str] = "kind"

    if TYPE_CHECKING:  # every value declares its own literal
        kind: str

    def __init_subclass__(cls, *, axis: bool = False, tag: str = "kind") -> None:
        super().__init_subclass__()
        if axis:
            cls.kinds, cls.tag = {}, tag

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Register a class with a `kind` on its axis.

        Raises `TypeError` for a class with a missing method, and for a kind that is already declared.
        """
        for kind in cls.own_kinds():
            if missing := ", ".join(sorted(cls.__abstractmethods__)):
                raise TypeError(f"{cls.__qualname__} must define {missing}")
            known = cls.kinds.setdefault(kind, cls)
            if known is not cls:
                raise TypeError(f"{kind} is declared by both {known.__qualname__} and {cls.__qualname__}")

    @classmethod
    def named(cls, kind: str) -> type[Self]:
        """Return the class of this axis with this `kind`; `KeyError` if there is none."""
        return cast("type[Self]", cls.kinds[kind])

    @classmethod
    def build(cls, kind: str, **settings: object) -> Self:
        """Create the value of this axis with this `kind`; `KeyError` if there is none."""
        return cls.named(kind).model_validate({cls.tag: kind, **settings})

    @classmethod
    def is_axis(cls) -> bool:
        """Return whether the class is an axis, and so stands for any of its values."""
        return "kinds" in vars(cls)

    @classmethod
    def own_kinds(cls) -> tuple[str, ...]:
        """Return the kinds that the class itself stands for; none for an axis."""
        field = cls.model_fields.get(cls.tag)
        return get_args(field.annotation) if field is not None else ()

    @classmethod
    def values(cls) -> tuple[type[Axis], ...]:
        """Return the classes of the axis, in the order of their declaration."""
        return tuple(dict.fromkeys(cls.kinds.values()))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> Any:  # noqa: ANN401 - a private type of pydantic's
        """Validate a field typed as an axis as any of its values, and one typed as a value as itself."""
        if not cls.is_axis() or not cls.kinds:
            return handler(source)
        return handler.generate_schema(Annotated[reduce(or_, cls.values()), Field(discriminator=cls.tag)])
