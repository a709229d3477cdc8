"""Removal of secrets from text: values of environment variables, and patterns of well-known keys.

Redaction removes anything that looks like a secret, including some harmless text. It cannot detect a secret
that looks like an ordinary word.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

REDACTED = "[redacted]"
MIN_SECRET_LENGTH = 8

_CLEAR_WORDS = (
    r"api[_-]?key|access[_-]?key|private[_-]?key|secret[_-]?key|secret|password|passwd|passphrase"
    r"|credentials?"
)
_UNCLEAR_WORDS = r"token|auth|key|pat"  # in this field, tokens are mostly not secrets
# An unambiguous word needs no underscore before it, as in PGPASSWORD.
_SECRET_VARIABLE = re.compile(rf"(?:{_CLEAR_WORDS}|(?:^|_)(?:{_UNCLEAR_WORDS}))(?:_|$)", re.IGNORECASE)
_PATTERNS = (
    # Whole key files.
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S),
    # API keys with the prefixes of well-known services.
    re.compile(r"\b(?:hf|hf_oauth|api_org)_[A-Za-z0-9]{16,}"),
    re.compile(r"\bwandb_v1_[A-Za-z0-9_-]{16,}"),
    re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,})"),
    re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"),
    re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"),
    re.compile(r"\bpypi-[A-Za-z0-9_-]{30,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
)
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*):[^\s/@]+@", re.IGNORECASE)
_QUERY_PASSWORD = re.compile(rf"([?&][\w.-]*(?:{_CLEAR_WORDS})=)[^&#\s\"']+", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{12,}", re.IGNORECASE)
_NAMED = r"""(?P<name>\b[\w.-]*?(?:{words})["']?\s*[=:]\s*|--[\w-]*?(?:{words})[ =])"""
_ASSIGNMENTS = (
    # `password: …`, `--api-key …`, but not code that calls something (`secret = read_secret()`).
    re.compile(
        _NAMED.format(words=_CLEAR_WORDS)
        + r"""(?:"[^"\n]{6,}"|'[^'\n]{6,}'|[^\s"'(){}\[\],;]{8,}(?![\w(.\[]))""",
        re.IGNORECASE,
    ),
    # `token = …` if the value is long and contains letters and digits.
    re.compile(
        _NAMED.format(words=_UNCLEAR_WORDS)
        + r"""["']?(?=[\w./+=-]*\d)(?=[\w./+=-]*[A-Za-z])[\w./+=-]{16,}["']?(?![\w(.\[])""",
        re.IGNORECASE,
    ),
)


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables whose names suggest a secret and whose values could be one."""
    return {
        name: value
        for name, value in environment.items()
        if _SECRET_VARIABLE.search(name) and _could_be_secret(value)
    }


def _could_be_secret(value: str) -> bool:
    """Return whether a value has at least 8 characters and is not a plain word of fewer than 20 letters."""
    is_word = value.isalpha() and (value.islower() or value.isupper() or value.istitle())
    return len(value) >= MIN_SECRET_LENGTH and not (is_word and len(value) < 20)


def redact(text: str, environment: Mapping[str, str]) -> str:
    """Return the text with secrets replaced by `[redacted]`.

    Secrets are the values of secret environment variables, and text that has the form of a key, token or
    password.
    """
    for value in sorted(secrets_of(environment).values(), key=len, reverse=True):
        text = text.replace(value, REDACTED)
    for pattern in _PATTERNS:
        text = pattern.sub(REDACTED, text)
    text = _URL_PASSWORD.sub(rf"\1:{REDACTED}@", text)
    text = _QUERY_PASSWORD.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1\2{REDACTED}", text)
    for assignment in _ASSIGNMENTS:
        text = assignment.sub(lambda match: match["name"] + REDACTED, text)
    return text


def find_secret(value: object, environment: Mapping[str, str], key: str = "") -> tuple[str, str] | None:
    """Find the value of a secret environment variable in nested settings.

    Returns (dotted key, name of the variable), or None if there is none. `key` is the dotted key of `value`
    itself, empty for the root.
    """
    match value:
        case str():
            for variable, secret in secrets_of(environment).items():
                if secret in value:
                    return key, variable
        case Mapping():
            for name, item in value.items():
                if found := find_secret(item, environment, f"{key}.{name}" if key else str(name)):
                    return found
        case list() | tuple():
            for index, item in enumerate(value):
                if found := find_secret(item, environment, f"{key}[{index}]"):
                    return found
    return None
