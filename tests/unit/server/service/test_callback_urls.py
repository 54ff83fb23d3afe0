"""Which URLs may be called back: those that the operator allowed, and nothing that only looks like them."""

import pytest

from server.service.callback_urls import AllowedUrls
from tests.raising import refuses
from unlearning.errors import InvalidRequest

ALLOWED = AllowedUrls(
    ("https://tool.example/hook", "https://other.example:8443/calls/", "http://127.0.0.1:9/a")
)


@pytest.mark.parametrize(
    "url",
    [
        "https://tool.example/hook",
        "https://TOOL.example:443/hook",
        "https://other.example:8443/calls/",
        "https://other.example:8443/calls/a/b?c=d",
        "http://127.0.0.1:9/a",
    ],
)
def test_what_is_allowed_may_be_called(url: str) -> None:
    """Itself, or all below a path that ends in a slash."""
    ALLOWED.check(url)


@pytest.mark.parametrize(
    "url",
    [
        "https://tool.example/hook/more",
        "https://tool.example/hook?x=1",
        "https://tool.example/",
        "https://tool.example:444/hook",
        "http://tool.example/hook",
        "https://tool.example.evil.example/hook",
        "https://tool.example@evil.example/hook",
        "https://evil.example/hook#https://tool.example/hook",
        "https://other.example:8443/calls/../admin",
        "https://other.example:8443/calls/%2e%2e/admin",
        "https://other.example:8443/calls/%252e%252e/admin",
        "https://other.example:8443/calls/..%2fadmin",
        "https://other.example:8443/calls/..\\admin",
        "https://other.example:8443/callsign",
        "https://other.example:8443",
        "http://127.0.0.1:9/b",
        "http://127.0.0.1:99/a",
        "http://169.254.169.254/latest",
        "http://[::1]:9/a",
        "http://localhost:9/a",
        "file:///etc/passwd",
        "gopher://127.0.0.1:9/a",
        "//tool.example/hook",
        "tool.example/hook",
        "",
        "https://",
        "https://tool.example:port/hook",
        "https://tool.example:99999/hook",
        "https://tööl.example/hook",
        "https://tool.example/hook\r\nHost: evil.example",
        " https://tool.example/hook",
        "https://tool.example/" + "a" * 3000,
    ],
)
def test_nothing_else_may_be_called(url: str) -> None:
    """Another host, port, path, scheme or spelling."""
    with pytest.raises(InvalidRequest):
        ALLOWED.check(url)


@pytest.mark.parametrize(
    "url", ["http://tool.example/", "https://a:b@tool.example/", "tool.example", "https://x/../"]
)
def test_the_operators_own_list_is_checked(url: str) -> None:
    """When the service starts, not when the first request comes."""
    with refuses("http-callback-url"):
        AllowedUrls((url,))
