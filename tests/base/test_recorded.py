"""Recorded values of any kind are read without an error."""

from __future__ import annotations

from atrium.base.recorded import as_finite, as_number


def test_integer_that_is_too_large_for_a_float_is_no_number():
    assert as_number(10**400) is None
    assert as_finite(-(10**400)) is None
    assert as_number(10**300) == 1e300
