from __future__ import annotations

import pytest

from atrium.runs.redaction import REDACTED, find_secret, redact, secrets_of

ENVIRONMENT = {
    "HF_TOKEN": "opensesame-42",
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "DB_PASSWORD": "tr0ub4dor&3",
    "PGPASSWORD": "c0rrect-horse",
    "HOME": "/home/someone",
    "TOKENIZERS_PARALLELISM": "false-and-more-1",
    "API_KEY": "default",
    "PATH": "/usr/bin:/bin-1",
}

SECRETS = [
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_11ABCDEFG0123456789_abcdefghij",
    "sk-proj-abcdefghijklmnop0123456789",
    "xoxb-1234567890-abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "glpat-abcdefghij0123456789",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    'password = "letmein-please"',
    "PASSWORD: letmein-please",
    "--api-key 0a1b2c3d4e5f6071",
    "aws_secret_access_key=wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    'token: "0123456789abcdef0123456789abcdef01234567"',
    "Authorization: Bearer abcdef0123456789.xyz",
    "mysql://root:s3cretpw@db.example:3306/optuna",
    "postgresql://db.example/optuna?user=me&password=s3cretpw&sslmode=require",
    "postgresql://db.example/optuna?sslpassword=s3cretpw",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
]

HARMLESS = [
    "num_tokens = 128",
    "max_new_tokens: 64",
    "stop_token = '<eos>'",
    "eos_token_id=tokenizer.eos_token_id",
    "token = read_token()",
    "secret = os.environ['HF_TOKEN']",
    "index 3f2a9c1..8b7d6e5 100644",
    "commit 0123456789abcdef0123456789abcdef01234567",
    "key = (seed, purpose)",
    "for key, value in settings.items():",
    "https://github.com/atrium-rl/atrium",
    "token_logprobs = logits.log_softmax(-1)",
]


@pytest.mark.parametrize("text", SECRETS)
def test_text_that_looks_like_a_secret_is_removed_from_a_diff(text):
    redacted = redact(f"+before\n+{text}\n+after", {})
    assert REDACTED in redacted
    assert redacted.startswith("+before\n")
    assert redacted.endswith("+after")
    for part in (
        "AbCdEf",
        "0123456789",
        "abcdefghij",
        "IOSFODNN",
        "letmein",
        "0a1b2c3d",
        "wJalr",
        "s3cretpw",
        "MIIE",
    ):
        assert part not in redacted


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_lines_of_this_field_stay(text):
    assert redact(text, {}) == text


def test_variables_with_secret_names_are_secrets_unless_their_values_are_plain_words():
    assert set(secrets_of(ENVIRONMENT)) == {"HF_TOKEN", "WANDB_API_KEY", "DB_PASSWORD", "PGPASSWORD"}


def test_values_of_secret_variables_are_removed_anywhere_in_a_text():
    text = "x=opensesame-42 y=tr0ub4dor&3/more 0123456789abcdef0123456789abcdef01234567"
    assert redact(text, ENVIRONMENT) == f"x={REDACTED} y={REDACTED}/more {REDACTED}"


def test_redacting_twice_changes_nothing_more():
    for text in SECRETS:
        once = redact(text, ENVIRONMENT)
        assert redact(once, ENVIRONMENT).replace(REDACTED, "") == once.replace(REDACTED, "")


def test_a_secret_in_nested_settings_is_found_with_its_key():
    settings = {"model": {"source": "Qwen/x"}, "tracking": {"uris": ["a", "http://opensesame-42@host"]}}
    assert find_secret(settings, ENVIRONMENT) == ("tracking.uris[1]", "HF_TOKEN")
    assert find_secret({"model": {"source": "/home/someone"}, "seed": 0}, ENVIRONMENT) is None
