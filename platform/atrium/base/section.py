"""Base classes and types of settings: sections, common ranges, and axes with one class per value.

A settings class is frozen, strict, and forbids unknown keys, so every instance is valid. The class declares
the meaning and the range of each setting, from which error messages, help and docs are built.
"""

from __future__ import annotations

import datetime
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationInfo,
    field_validator,
)

SMALLEST = 1e-30
"""Smallest magnitude of a nonzero setting; float32, used in most computations, ends at 1e-38."""

Count = Annotated[int, Field(ge=1, le=10**9)]
"""A count of at least one."""
CountOrZero = Annotated[int, Field(ge=0, le=10**9)]
"""A count that may be zero."""
Parallel = Annotated[int, Field(ge=1, le=1024)]
"""A number of parallel threads, processes or machines."""
Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A random seed."""
Frac = Annotated[float, Field(ge=0.0, le=1.0)]
"""A fraction or a probability."""
PositiveFrac = Annotated[float, Field(gt=0.0, le=1.0)]
"""A fraction greater than 0."""
Positive = Annotated[float, Field(gt=0.0, le=1e6)]
"""A quantity greater than 0."""
Rate = Annotated[float, Field(gt=0.0, le=1e20)]
"""A learning rate. Absurd values are allowed; the policy diverges, which ends the run with an error."""
Exponent = Annotated[float, Field(gt=0.0, le=80.0)]
"""A bound on an exponent, at most 80, since exp(88) overflows in float32."""
Wait = Annotated[float, Field(ge=1e-3, le=3 * 86_400.0)]
"""A timeout in seconds, at most three days, since some systems limit timeouts to 2^31 ms (24.8 days)."""
NonNegative = Annotated[float, Field(ge=0.0, le=1e6)]
"""A quantity of at least 0."""
Number = Annotated[float, Field(ge=-1e6, le=1e6)]
"""A quantity that may be negative."""
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
    """A validated group of settings.

    Unknown keys, wrong types, NaN, infinities, and nonzero numbers of magnitude below `SMALLEST` (except in
    lists) are errors. Every numeric setting declares a range. A value outside the range is rejected here with
    a one-line error, instead of causing an overflow, a hang or a crash later.
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
    def _check_size(cls, value: object, info: ValidationInfo) -> object:
        if isinstance(value, float) and 0.0 < abs(value) < SMALLEST:
            raise ValueError(
                f"{info.field_name} must be 0 or at least {SMALLEST:g} in absolute value, got {value:g}"
            )
        return value


class Choice(Section):
    """Base class of axes. The value of an axis is one of several classes, identified by its `kind`.

    `class Reduction(Choice, axis=True)` creates the axis `Reduction`. A subclass of `Reduction` that declares
    the field `kind` as a literal is a value of the axis and is registered in `Reduction.kinds`. A field of
    type `Reduction` accepts any value of the axis. `tag` is the name of the identifying field, by default
    `kind`.
    """

    kinds: ClassVar[dict[str, type[Choice]]] = {}
    tag: ClassVar[str] = "kind"

    if TYPE_CHECKING:  # each value declares `kind` with its own literal type
        kind: str

    def __init_subclass__(cls, *, axis: bool = False, tag: str = "kind") -> None:
        super().__init_subclass__()
        if axis:
            cls.kinds, cls.tag = {}, tag

    @classmethod
    def __pydantic_init_subclass__(cls, **_: object) -> None:
        """Register the class with its axis if it declares a `kind`.

        Raises `TypeError` if the class lacks an abstract method, or if another class declares the same kind.
        """
        for kind in cls.own_kinds():
            if missing := ", ".join(sorted(cls.__abstractmethods__)):
                raise TypeError(f"the class {cls.__qualname__} must define {missing}")
            known = cls.kinds.setdefault(kind, cls)
            if known is not cls:
                both = " and ".join(f"{one.__module__}.{one.__qualname__}" for one in (known, cls))
                raise TypeError(
                    f"the kind {kind} is declared by both {both}; rename one of them, or load one only"
                )

    @classmethod
    def named(cls, kind: str) -> type[Self]:
        """Return the axis's class with the given `kind`; raise `KeyError` for an unknown kind."""
        return cast("type[Self]", cls.kinds[kind])

    @classmethod
    def build(cls, kind: str, **settings: object) -> Self:
        """Create an instance of the class with the given `kind`; raise `KeyError` for unknown kinds."""
        return cls.named(kind).model_validate({cls.tag: kind, **settings})

    @classmethod
    def is_axis(cls) -> bool:
        """Return whether the class is an axis rather than one of the choices on an axis."""
        return "kinds" in vars(cls)

    @classmethod
    def own_kinds(cls) -> tuple[str, ...]:
        """Return the kinds that the class declares, or an empty tuple for an axis."""
        field = cls.model_fields.get(cls.tag)
        return get_args(field.annotation) if field is not None else ()

    @classmethod
    def values(cls) -> tuple[type[Choice], ...]:
        """Return the classes that are values of the axis, in the order in which they were declared."""
        return tuple(dict.fromkeys(cls.kinds.values()))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: GetCoreSchemaHandler) -> Any:  # noqa: ANN401 - a private type of pydantic's
        """Return the schema of the class.

        The schema of an axis accepts an instance of any class on the axis. The schema of any other class
        accepts only instances of this class.
        """
        if not cls.is_axis() or not cls.kinds:
            return handler(source)
        return handler.generate_schema(Annotated[reduce(or_, cls.values()), Field(discriminator=cls.tag)])
