"""Recorded values of any kind are read without an error."""

from __future__ import annotations

import os

from atrium.base.recorded import as_finite, as_number, read_object


def test_integer_that_is_too_large_for_a_float_is_no_number():
    assert as_number(10**400) is None
    assert as_finite(-(10**400)) is None
    assert as_number(10**300) == 1e300


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    assert read_object(tmp_path / "config.json")[1] == "config.json cannot be read: it is not a regular file"
    (tmp_path / "status.json").mkdir()
    assert read_object(tmp_path / "status.json")[1].startswith("status.json cannot be read: ")
