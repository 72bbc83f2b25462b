"""`url_for`: whatever a client asks for, the URL stays on the cell's host and below its base path."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote, urlsplit

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bulkhead.cells import Cell, CellRouter, UnsafePathError

BASES = ("http://cell.example:8080", "https://cell.example/app", "http://[::1]:81/a/b/", "http://10.0.0.1/")
PIECES = (
    *"/\\.@:?#%&=;+ \t\r\n\0~é日\x7f\x85\u2028",
    *(
        "..",
        "//",
        "%2e",
        "%2E%2e",
        "%252e%252e",
        "%2f",
        "%5c",
        "%00",
        "%0d%0a",
        "..;",
        "http:",
        "https://evil",
        "evil.com",
    ),
    *("@evil", "%c0%ae", "%25", "%2", "%zz", "a", "orders", "\ud800", "\uff0e\uff0e", "[::1]", ":99"),
)
paths = st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=30)


def router(base: str) -> CellRouter:
    return CellRouter([Cell("a", base)])


@pytest.mark.no_cover
@given(st.sampled_from(BASES), paths)
@example(BASES[1], ".")
@example(BASES[1], "//evil.com/x")
@example(BASES[1], "/%2e%2e/x")
@example(BASES[1], "..%2f..%5c")
def test_no_path_leaves_the_host_or_the_base_path(base: str, path: str) -> None:
    try:
        url = router(base).url_for("acme", path)
    except UnsafePathError:
        return
    cell, below = urlsplit(base), base.rstrip("/") + "/"
    assert url.startswith(below)
    assert url[len(below) : len(below) + 1] != "/"
    assert url.isascii()
    assert url.isprintable()
    assert not set(url) & set(' \\#"<>\x7f')
    assert url.count("#") == 0
    found, seen = urlsplit(url), httpx.URL(url)
    assert (found.scheme, found.netloc, found.fragment) == (cell.scheme, cell.netloc, "")
    assert (seen.scheme, seen.netloc, seen.fragment) == (cell.scheme, cell.netloc.encode(), "")
    path_seen = seen.raw_path.decode()
    assert (path_seen + "/").startswith(cell.path.rstrip("/") + "/"), "httpx takes /app/. for /app"
    text = found.path
    for _ in range(4):  # servers that decode once, twice, and then again
        for form in (text, text.replace("\\", "/")):
            assert posixpath.normpath(form + "/x").startswith(cell.path.rstrip("/") + "/")
            assert ".." not in form.split("/")
        text = unquote(text)


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        ("http://h", "", "http://h/"),
        ("http://h", "/", "http://h/"),
        ("http://h/", "/", "http://h/"),
        ("http://h/", "orders", "http://h/orders"),
        ("http://h/app/", "/orders/7?full=1&a=b", "http://h/app/orders/7?full=1&a=b"),
        ("http://h/app", "orders/", "http://h/app/orders/"),
        ("http://h/app", "//evil.com/x", "http://h/app/evil.com/x"),
        ("http://h/app", "///x", "http://h/app/x"),
        ("http://h", "@evil.com/x", "http://h/@evil.com/x"),
        ("http://h", "http://evil.com/x", "http://h/http://evil.com/x"),
        ("http://h", "\\\\evil.com\\x", "http://h/%5C%5Cevil.com%5Cx"),
        ("http://h", "/a b/ü", "http://h/a%20b/%C3%BC"),
        ("http://h", "/a%20b/%C3%BC", "http://h/a%20b/%C3%BC"),
        ("http://h", "/100%/x%zz", "http://h/100%25/x%25zz"),
        ("http://h", "/docs#intro", "http://h/docs%23intro"),
        ("http://h", "/a//b", "http://h/a//b"),
        ("http://h", "/a...b/..c/d../...", "http://h/a...b/..c/d../..."),
        ("http://h", "/x?next=../../etc", "http://h/x?next=../../etc"),
        ("http://h", "?q=1", "http://h/?q=1"),
        ("http://h", "/%0d%0aX: y", "http://h/%0d%0aX:%20y"),
    ],
)
def test_a_path_stays_text(base: str, path: str, url: str) -> None:
    assert router(base).url_for("acme", path) == url


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "/..",
        "/../x",
        "/a/../b",
        "/a/..",
        "/%2e%2e/x",
        "/.%2E/x",
        "/%252e%252e/x",
        "/%25252e%2e/x",
        "/%%32e%%32e/x",
        "/..%2fx",
        "/a%2f..%2fx",
        "\\..\\x",
        "/..%5cx",
        "/..;jsessionid=1/x",
        "/%c0%ae%c0%ae/x",
        "/..%c0%afx",
        "/..%3fx",
        "/..%00/x",
        "/..%20/x",
        "/%2525252525252525252525252525252541/x",
    ],
)
def test_two_dots_are_refused_however_they_are_written(path: str) -> None:
    with pytest.raises(UnsafePathError, match=r'segment "\.\."'):
        router("http://h/app").url_for("acme", path)


@pytest.mark.parametrize("path", ["/a\r\nHost: evil", "/a\0", "\n", "/\t/evil", "/a\x7f", "/x?a=\r\n"])
def test_control_characters_are_refused(path: str) -> None:
    with pytest.raises(UnsafePathError, match="control character") as caught:
        router("http://h/app").url_for("acme", path)
    assert str(caught.value) == "this path holds a control character"  # and nothing of the path


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(UnsafePathError, match="surrogate"):
        router("http://h").url_for("acme", "/\udc80")
