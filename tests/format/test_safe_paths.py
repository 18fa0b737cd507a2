"""Paths in manifests stay where they belong."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.errors import CorruptTable
from tiltyard.format.safe_text import check_base, check_relative

SOURCE = "_versions/1.manifest"


@pytest.mark.parametrize("path", ["a.lance", "0101abc.lance", "sub/dir/x.lance", "..a", "a..", "...", "a b", "é.lance", "x=1/y", "a%20b"])
def test_paths_that_stay(path: str) -> None:
    assert check_relative(path, SOURCE) == path


ESCAPES = [
    "",
    "/",
    "/etc/passwd",
    "..",
    ".",
    "../x",
    "a/../../x",
    "a/..",
    "a//b",
    "a/",
    "./a",
    "C:\\x",
    "C:/x",
    "c:x",
    "\\\\host\\share",
    "a\\..\\b",
    "s3://bucket/x",
    "file:/x",
    "a\0b",
    "a\nb",
    "%2e%2e/x",
    "a%2F..%2Fb",
    "a%5cb",
    "x" * 5000,
]


@pytest.mark.parametrize("path", ESCAPES)
def test_paths_that_leave(path: str) -> None:
    with pytest.raises(CorruptTable) as caught:
        check_relative(path, SOURCE)
    assert caught.value.file == SOURCE
    assert len(str(caught.value)) < 300


@given(st.text(alphabet=st.sampled_from("./\\ab:%2e"), max_size=12))
def test_what_passes_stays_below(path: str) -> None:
    try:
        check_relative(path, SOURCE)
    except CorruptTable:
        return
    joined = posixpath.normpath(posixpath.join("/root/data", path))
    assert joined == f"/root/data/{path}"


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/lake/t", "/lake"),
        ("/lake", "/lake/"),
        ("/lake/t/", "file:///lake"),
        ("file:///lake/t", "/lake"),
        ("s3://bucket/a/b", "s3://bucket/a"),
        ("s3://bucket", "s3://bucket/"),
        ("S3://bucket/a", "s3://bucket"),
        ("/anything", "/"),
    ],
)
def test_bases_below_an_allowed_root(path: str, root: str) -> None:
    assert check_base(path, ["/other", root]) == path


@pytest.mark.parametrize(
    ("path", "root"),
    [
        ("/lakes/t", "/lake"),
        ("/lake", "/lake/t"),
        ("/lake/../etc", "/lake"),
        ("/lake/./t", "/lake"),
        ("/lake//t", "/lake"),
        ("lake/t", "/lake"),
        ("", "/lake"),
        ("s3://bucket2/a", "s3://bucket"),
        ("s3://bucket/ab", "s3://bucket/a"),
        ("s3://Bucket/a", "s3://bucket/a"),
        ("gs://bucket/a", "s3://bucket"),
        ("s3://user:secret@bucket/a", "s3://bucket"),
        ("s3://bucket/a?x=../..", "s3://bucket"),
        ("s3:///a", "s3://bucket"),
        ("/lake/%2e%2e/etc", "/lake"),
        ("/lake/\0", "/lake"),
        ("/bucket/a", "s3://bucket"),
    ],
)
def test_bases_elsewhere(path: str, root: str) -> None:
    with pytest.raises(CorruptTable) as caught:
        check_base(path, [root], SOURCE)
    assert caught.value.file == SOURCE
    assert "secret" not in str(caught.value)


def test_no_root_allows_nothing() -> None:
    with pytest.raises(CorruptTable, match="outside the allowed roots"):
        check_base("/lake", [])
