from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from atrium.views.dashboard.guard import Guard, host_names

GUARD = Guard(lambda *_: None, host_names=host_names("127.0.0.1"), token="secret")


def refusal(method="GET", **headers):
    return GUARD.refusal(method, Headers({name.replace("_", "-"): value for name, value in headers.items()}))


@pytest.mark.parametrize("host", ["127.0.0.1:8600", "localhost:1234", "LOCALHOST", "[::1]:8600"])
def test_the_server_answers_to_its_own_names(host):
    assert refusal(host=host) is None


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "evil.example:8600", "localhost.evil.example", "127.0.0.1.evil.example", "[::"],
)
def test_other_names_are_refused_even_for_reading(host):
    assert "Host" in refusal(host=host)


def test_a_name_that_was_allowed_is_accepted():
    guard = Guard(lambda *_: None, host_names=host_names("0.0.0.0", ["lab.example"]), token="secret")
    assert guard.refusal("GET", Headers({"host": "lab.example:8600"})) is None
    assert guard.refusal("GET", Headers({"host": "0.0.0.0:8600"})) is not None


def test_writing_takes_this_origin_and_the_token():
    good = {"host": "127.0.0.1:8600", "origin": "http://127.0.0.1:8600", "x_atrium_token": "secret"}
    assert refusal("PATCH", **good) is None
    for change in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:9999"},
        {"x_atrium_token": "wrong"},
        {"x_atrium_token": ""},
        {"x_atrium_token": "sécret"},
        {"host": "evil.example", "origin": "http://evil.example"},
    ):
        assert refusal("PATCH", **(good | change)) is not None, change


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_method_but_reading_goes_without_a_token(method):
    assert refusal(method, host="localhost") is not None
