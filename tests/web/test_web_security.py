"""The server answers to this machine and this page only, and gives away nothing but the page."""

import contextlib
import gzip
import http.client
import json
import os
import select
import socket
import threading
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from crosszone.web import security
from crosszone.web import server as serving
from crosszone.web.app import STATIC
from crosszone.web.page import PageFiles

DESCRIBE = "/api/v1/scenarios/describe"

pytestmark = pytest.mark.slow  # waits for slow and broken connections


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
     "/style", "/app.py", "/__init__.py", "/index.html%00.js", "/%00", "/" + "a" * 5000, "/pyproject.toml", "/server.py", "/%ff%fe",
     "/%2e%2e%2f%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/..%5c..%5capp.py", "/..%252f..%252fapp.py", "/%c0%ae%c0%ae/app.py", "/src/crosszone/web/app.py",
     "/etc/passwd", "/C:\\Windows\\win.ini", "/\\\\host\\share", "/.git/HEAD", "/.env", "/~root", "/proc/self/environ", "/vendor/%2e%2e/%2e%2e/app.py",
     "/static/", "/app.js/../../app.py", "/crosszone.db", "/token.sha256", "/file:///etc/passwd", "/;/etc/passwd"],
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


def test_a_link_out_of_the_folder_leads_nowhere(tmp_path):
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text("the page")
    (tmp_path / "secret.txt").write_text("secret")
    os.symlink(tmp_path / "secret.txt", tmp_path / "page" / "link.txt")
    os.symlink(tmp_path, tmp_path / "page" / "up")
    client = TestClient(PageFiles(tmp_path / "page"), raise_server_exceptions=False)
    assert client.get("/").text == "the page"
    for path in ("/link.txt", "/up/secret.txt", "/up/page/index.html/../../secret.txt"):
        answer = client.get(path)
        assert "secret" not in answer.text, path
        assert answer.status_code != 200


def test_routes_are_below_the_api_where_the_token_is_asked_for(client):
    paths = [path for path in client.get("/api/v1/openapi.json").json()["paths"] if not path.startswith("/api/v1/")]
    assert paths == []
    assert [
        route.path for route in client.app.routes if not getattr(route, "path", "/api/v1/").startswith("/api/v1")
    ] == []


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


def test_the_page_is_compressed_once_and_not_sent_again(tmp_path):
    script = tmp_path / "big.js"
    script.write_text("export const a = 1;\n" * 1000)
    page = PageFiles(tmp_path)
    client = TestClient(page)
    packed = client.get("/big.js", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert int(packed.headers["Content-Length"]) < 500
    assert packed.headers["Content-Type"].startswith("text/javascript")
    assert packed.text == script.read_text()
    plain = client.get("/big.js", headers={"Accept-Encoding": "identity"})
    assert "Content-Encoding" not in plain.headers
    assert plain.headers["ETag"] != packed.headers["ETag"]
    assert plain.headers["Vary"] == packed.headers["Vary"] == "Accept-Encoding"
    for answer, encoding in ((packed, "gzip"), (plain, "identity")):
        again = client.get("/big.js", headers={"Accept-Encoding": encoding, "If-None-Match": answer.headers["ETag"]})
        assert again.status_code == 304
        assert again.content == b""
    before = page._packed[str(script)]
    client.get("/big.js", headers={"Accept-Encoding": "gzip"})
    assert page._packed[str(script)] is before
    script.write_text("export const b = 2;\n" * 1001)
    changed = client.get("/big.js", headers={"Accept-Encoding": "gzip", "If-None-Match": packed.headers["ETag"]})
    assert changed.status_code == 200
    assert changed.text == script.read_text()


@pytest.mark.parametrize("path", ["/", "/app.js", "/style/tokens.css"])
def test_a_browser_asks_whether_the_page_changed(client, path):
    first = client.get(path)
    assert first.headers["Cache-Control"] == "no-cache"
    again = client.get(path, headers={"If-None-Match": first.headers["ETag"]})
    assert again.status_code == 304
    assert again.headers["Cache-Control"] == "no-cache"
    assert "Content-Security-Policy" in again.headers


def test_no_answer_of_the_api_is_kept_by_the_browser(client):
    assert client.get("/api/v1/examples").headers["Cache-Control"] == "no-store"


def echo(request):
    return PlainTextResponse("here")


async def stream(request):
    return PlainTextResponse(str(len(await request.body())))


@pytest.fixture
def impatient(monkeypatch):
    """A server that waits a fraction of a second for what real ones wait for longer; gives its port."""
    monkeypatch.setattr(serving, "HEAD_S", 0.5)
    monkeypatch.setattr(security, "BODY_S", 0.5)
    app = security.SecurityMiddleware(Starlette(routes=[Route("/", echo), Route("/", stream, methods=["POST"])]))
    config = uvicorn.Config(app, http=serving.TimedConnection, ws="none", log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)
    listener.close()
    assert not thread.is_alive()


def talk(port, sent, *, then=b"", trickle=b""):
    """All that the server says until it closes the connection; one that never does is met by the test's limit.

    `then` is sent after its first words, `trickle` again and again until it says something.
    """
    with socket.create_connection(("127.0.0.1", port)) as talking:
        talking.sendall(sent)
        heard = b""
        if then:
            heard = talking.recv(65536)
            talking.sendall(then)
        with contextlib.suppress(ConnectionError):  # closed while something was on its way
            while trickle and not select.select([talking], [], [], 0.1)[0]:
                talking.sendall(trickle)
            while part := talking.recv(65536):
                heard += part
    return heard


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


def error_of(heard):
    head, _, body = heard.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)["code"]


def test_a_request_that_never_comes_is_not_waited_for(impatient):
    for sent in (b"", b"GET / HTT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "):
        assert talk(impatient, sent) == b""


def test_a_second_request_that_never_comes_is_not_waited_for(impatient):
    heard = talk(impatient, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", then=b"GET / HTT")
    assert heard.count(b"200 OK") == 1


def test_headers_that_trickle_in_are_not_waited_for(impatient):
    assert talk(impatient, b"GET / HTTP/1.1\r\n", trickle=b"X-A: b\r\n") == b""


def test_a_slow_body_is_refused(impatient):
    for head in (b"Content-Length: 1000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"):
        heard = talk(impatient, HEAD + head, trickle=b"1\r\na\r\n")
        assert error_of(heard) == (408, "body_slow")
        assert b"connection: close" in heard.lower()


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 9e9\r\n\r\n",
        HEAD + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nnot a chunk\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"".join(b"X-%d: %s\r\n" % (number, b"a" * 100) for number in range(1000)) + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 20_000,
        b"GET\r\n\r\n",
    ],
)
def test_what_is_not_http_is_a_clear_error(impatient, sent):
    heard = talk(impatient, sent)
    status, _ = error_of(heard) if heard else (400, "")
    assert status in (400, 413, 431)
    assert heard or len(sent) > 16_384  # what was still on its way may cut the answer off


def test_a_body_shorter_than_it_says_is_dropped_and_the_server_lives_on(impatient):
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", impatient), timeout=5) as talking:
            talking.sendall(HEAD + b"Content-Length: 1000\r\n\r\nhalf")
    heard = talk(impatient, b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert heard.endswith(b"here")


def test_a_body_longer_than_it_says_is_another_request(impatient):
    heard = talk(impatient, HEAD + b"Content-Length: 2\r\n\r\nhello there\r\n\r\n")
    assert b"200 OK" in heard
    assert b"400" in heard


def test_a_body_of_chunks_that_grows_too_large_is_refused(impatient, monkeypatch):
    monkeypatch.setattr(security, "MAX_BODY", 1000)
    chunks = b"100\r\n" + b"a" * 256 + b"\r\n"
    heard = talk(
        impatient, HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n" + 5 * chunks + b"0\r\n\r\n"
    )
    assert error_of(heard) == (413, "body_too_large")


def test_an_upgrade_is_not_offered(impatient):
    asked = (
        b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    heard = talk(impatient, b"GET / HTTP/1.1\r\nHost: localhost\r\n" + asked)
    assert b"200 OK" in heard


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=a",
        "application/xml",
        "",
        "json",
        "application/jsonx",
        "a" * 5000,
    ],
)
def test_another_content_type_is_refused(client, three_cities, kind):
    answer = client.post(DESCRIBE, content=json.dumps({"text": three_cities}), headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert answer.json()["code"] == "not_json_type"


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"scenario":' * 5000, b'{"text": "' + b"[" * 100_000 + b'"}', b'{"scenario": {"model": ' + b"[" * 150 + b"]" * 150 + b"}}",
     b"", b"\xff\xfe", b"null", b"NaN", b'{"scenario": {"a": NaN}}', b'{"scenario": {"a": 1e999}}', b'{"text": "\\ud800"}',
     b'{"text": "a", "text": "b"}', b'{"scenario": {"a": ' + b"9" * 5000 + b"}}"],
)  # fmt: skip
def test_odd_json_is_refused(client, body):
    answer = client.post(DESCRIBE, content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert set(answer.json()) == {"code", "message", "field", "hint", "errors"}
