"""The server answers to this machine and this page only, and gives away nothing but the page."""

import gzip
import http.client
from urllib.parse import urlsplit

import pytest

from crosszone.web.app import STATIC

DESCRIBE = "/api/v1/scenarios/describe"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]", "[::1]:65535"])
def test_own_hosts_are_answered(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "127.0.0.1@evil.example", "127.0.0.2", "",
     "localhost:http", "0.0.0.0:8000", "127.0.0.1:8000, evil.example"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/app.js", "/api/v1/examples"])
def test_foreign_hosts_are_refused(client, host, path):
    answer = client.get(path, headers={"Host": host})
    assert answer.status_code == 421
    assert answer.json()["code"] == "host_foreign"


def test_the_own_origin_may_post(client, three_cities):
    for origin in ("http://127.0.0.1:8000", None):
        headers = {"Origin": origin} if origin else {}
        assert client.post(DESCRIBE, json={"text": three_cities}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "http://localhost:8000", "https://127.0.0.1:8000", "http://127.0.0.1:8001",
     "http://127.0.0.1:8000.evil.example"],
)  # fmt: skip
def test_another_origin_may_not_post(client, three_cities, origin):
    answer = client.post(DESCRIBE, json={"text": three_cities}, headers={"Origin": origin})
    assert answer.status_code == 403
    assert answer.json()["code"] == "origin_foreign"


def test_no_answer_lets_another_site_read_it(client):
    answer = client.get("/api/v1/examples", headers={"Origin": "http://evil.example"})
    assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/v1/examples", "/nope", "/api/v1/nope"])
def test_every_answer_carries_the_headers(client, path):
    headers = client.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "server" not in headers


def test_the_page_needs_no_inline_script_or_style():
    page = (STATIC / "index.html").read_text("utf-8")
    assert "<style" not in page
    assert " style=" not in page
    assert page.count("<script") == page.count("<script src=") + page.count('<script type="module" src=')
    assert "//" not in page.replace("<!doctype", "").split("<body>")[0].replace('href="/', "").replace('src="/', "")


@pytest.mark.parametrize(
    "path",
    ["/../app.py", "/..%2fapp.py", "/%2e%2e/app.py", "/static/../../app.py", "/..\\app.py", "/....//app.py",
     "/.git/config", "/%2egit/config", "//etc/passwd", "/%2fetc%2fpasswd", "/vendor/../../app.py", "/vendor/",
     "/style", "/app.py", "/__init__.py", "/index.html%00.js", "/%00", "/" + "a" * 5000, "/pyproject.toml", "/server.py", "/%ff%fe"],
)  # fmt: skip
def test_nothing_but_the_page_is_given_away(server, path):
    place = urlsplit(server)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
    try:
        connection.putrequest("GET", path, skip_host=False)
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status == 404
        assert b'"not_found"' in answer.read()
    finally:
        connection.close()


def test_50_megabytes_are_refused_and_the_server_lives_on(server):
    place = urlsplit(server)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=30)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", DESCRIBE, body=b'{"text": "' + b"a" * 50_000_000 + b'"}', headers=headers)
        answer = connection.getresponse()
        assert answer.status == 413
        assert b'"body_too_large"' in answer.read()
        chunks = (b"x" * 100_000 for _ in range(60))
        connection.request("POST", DESCRIBE, body=chunks, headers=headers, encode_chunked=True)
        answer = connection.getresponse()
        assert answer.status == 413
        answer.read()
        connection.request("GET", "/api/v1/examples")
        assert connection.getresponse().status == 200
    finally:
        connection.close()


def test_large_answers_are_compressed(server):
    place = urlsplit(server)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=10)
    try:
        connection.request("GET", "/api/v1/catalogue/models", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        assert answer.headers["Content-Encoding"] == "gzip"
        packed = answer.read()
        assert len(packed) < len(gzip.decompress(packed)) / 5
    finally:
        connection.close()
