from __future__ import annotations

import pytest

from tiltyard.redact import redact, redact_options, secret_values


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://me:hunter2@db:5432/lake", "postgresql://***@db:5432/lake"),
        ("http://key@host/x and http://a:b@c/d", "http://***@host/x and http://***@c/d"),
        ("http://a:p@ss@host/x", "http://***@host/x"),
        ("s3://bucket/path?X-Amz-Signature=abc&x=1", "s3://bucket/path?X-Amz-Signature=***&x=1"),
        ("https://h/c?sv=2020&sig=abc%2F", "https://h/c?sv=***&sig=***"),
        ("aws_secret_access_key=abc, region=eu", "aws_secret_access_key=***, region=eu"),
        ("{'aws_session_token': 'abc'}", "{'aws_session_token': '***'}"),
        ('"account_key": "a+b/c=="', '"account_key": "***"'),
        ("password='a b c' user=me", "password='***' user=me"),
        ('{"token": "a, b; c", "region": "eu"}', '{"token": "***", "region": "eu"}'),
        ('{"token": "say \\"a b\\"", "x": "y"}', '{"token": "***", "x": "y"}'),
        ('{\\"token\\": \\"a b\\", \\"x\\": \\"y\\"}', '{\\"token\\": \\"***\\", \\"x\\": \\"y\\"}'),
        ("password='it''s mine' user=me", "password='***' user=me"),
        ("secret=b'a b' x=1", "secret=b'***' x=1"),
        ("token='never closed, a b", "token='***"),
        ("token='' x='1 2'", "token='' x='1 2'"),
        ("password=a\\b c", "password=*** c"),
        ("Authorization: Bearer abc.def-g", "Authorization: Bearer ***"),
        ("{'Authorization': 'Basic a b', 'x': 'y'}", "{'Authorization': '***', 'x': 'y'}"),
        ("authorization=abc, region=eu", "authorization=***, region=eu"),
        ("sent Bearer abc= to host", "sent Bearer *** to host"),
        ("token: Bearer abc", "token: *** ***"),
        ("X-Api-Key: abc", "X-Api-Key: ***"),
        ("The authorization header is malformed", "The authorization header is malformed"),
        ("abfss://container@account.dfs.core.windows.net/x", "abfss://container@account.dfs.core.windows.net/x"),
        ("plain s3://bucket/path at http://127.0.0.1:9000", "plain s3://bucket/path at http://127.0.0.1:9000"),
        ("/data/lake/orders.lance/_versions/1.manifest", "/data/lake/orders.lance/_versions/1.manifest"),
    ],
)
def test_what_is_hidden_and_what_stays(text: str, expected: str) -> None:
    assert redact(text) == expected


@pytest.mark.parametrize("text", ["password='a b'", "Authorization: Bearer abc", 'token="abc d', "http://a:b@c/d?token=x"])
def test_hiding_twice_changes_nothing(text: str) -> None:
    assert redact(redact(text)) == redact(text)


def test_given_values_are_hidden_wherever_they_stand() -> None:
    assert redact("a hunter2-and-more b hunter2", ["hunter2", "hunter2-and-more"]) == "a *** b ***"


def test_secrets_among_options_are_found() -> None:
    options = {
        "aws_access_key_id": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "s3cr3t",
        "aws_endpoint": "http://user:pass@host",
        "aws_region": "eu",
        "sse_customer_key_base64": "b64",
        "azure_storage_sas_token": "sas1",
        "aws_skip_signature": "true",
    }
    assert set(secret_values(options)) == {"AKIA", "s3cr3t", "user", "pass", "b64", "sas1"}
    assert redact_options(options)["aws_region"] == "eu"
    assert redact_options(options)["aws_endpoint"] == "http://***@host"
    assert "s3cr3t" not in str(redact_options(options))
    assert secret_values(None) == ()
