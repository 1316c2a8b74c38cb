"""Where others can reach the server, only who knows the token is answered; the token itself is nowhere to be found."""

import hashlib
import stat

import pytest
from starlette.testclient import TestClient

from crosszone.errors import InputError
from crosszone.web import tokens
from crosszone.web.app import create_app
from crosszone.web.security import SESSION_COOKIE
from crosszone.web.tokens import (
    MOST_TRIES,
    SESSION_S,
    TRIES_S,
    TokenAuth,
    get_token_file,
    load_token,
    read_environment_token,
)

TOKEN = "a-token-of-this-test-0123456789"
EXAMPLES = "/api/v1/examples"
SESSION = "/api/v1/session"


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(scope="module")
def guarded_app(tmp_path_factory):
    return create_app(
        store=str(tmp_path_factory.mktemp("store") / "crosszone.db"), workers=1, auth=TokenAuth(digest=b"")
    )


@pytest.fixture
def guarded(guarded_app, clock):
    """A client of a server that asks for `TOKEN`, under a name of its own."""
    auth = guarded_app.user_middleware[0].kwargs["auth"]
    auth.__init__(digest=hashlib.sha256(TOKEN.encode()).digest(), now=clock)
    return TestClient(guarded_app, base_url="http://planner.example:8000")


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.slow
def test_without_the_token_nothing_of_the_api_is_answered(guarded):
    document = TestClient.get(guarded, "/api/v1/openapi.json", headers=bearer(TOKEN)).json()
    opened = []
    for path, operations in document["paths"].items():
        for method in operations:
            answer = guarded.request(method, path.replace("{language}", "en"))
            if answer.status_code != 401:
                opened.append((method, path))
                continue
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            assert answer.json()["code"] == "token_needed"
            assert answer.json()["hint"]
    assert sorted(opened) == [("delete", SESSION), ("get", "/api/v1/text/{language}"), ("post", SESSION)]
    assert guarded.get("/api/v1/openapi.json").status_code == 401


def test_the_page_itself_is_open(guarded):
    for path in ("/", "/app.js", "/style/tokens.css", "/api/v1/text/zh"):
        assert guarded.get(path).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/text/../examples",
        "/api/v1/session/../examples",
        "/api/v1//examples",
        "//api/v1/examples",
        "/API/v1/examples",
        "/api/v1/text/%2e%2e/examples",
    ],
)
def test_no_spelling_of_a_path_goes_around_the_gate(guarded, path):
    answer = guarded.get(path)
    assert answer.status_code in (401, 404)
    assert "three-cities" not in answer.text


def test_the_token_opens_every_request_that_carries_it(guarded):
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert guarded.get(EXAMPLES, headers={"Authorization": f"{scheme} {TOKEN}"}).status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic abc",
        TOKEN,
        f"Token {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        "Bearer \u00ff",
    ],
)
def test_anything_else_does_not(guarded, header):
    answer = guarded.get(EXAMPLES, headers={"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401


def test_a_session_lasts_until_it_is_ended(guarded, clock):
    answer = guarded.post(SESSION, json={"token": TOKEN})
    assert answer.status_code == 204
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "Path=/api/", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert TOKEN not in cookie
    assert guarded.get(EXAMPLES).status_code == 200
    stolen = guarded.cookies[SESSION_COOKIE]
    assert guarded.delete(SESSION).status_code == 204
    assert SESSION_COOKIE not in guarded.cookies
    assert guarded.get(EXAMPLES).status_code == 401
    guarded.cookies.set(SESSION_COOKIE, stolen, domain="planner.example", path="/api/")
    assert guarded.get(EXAMPLES).status_code == 401


def test_a_session_ends_by_itself(guarded, clock):
    guarded.post(SESSION, json={"token": TOKEN})
    clock.now += SESSION_S - 1
    assert guarded.get(EXAMPLES).status_code == 200
    clock.now += 2
    assert guarded.get(EXAMPLES).status_code == 401


def test_behind_tls_the_cookie_never_travels_without(guarded_app, guarded):
    client = TestClient(guarded_app, base_url="https://planner.example")
    assert "Secure" in client.post(SESSION, json={"token": TOKEN}).headers["Set-Cookie"]
    assert "Secure" not in guarded.post(SESSION, json={"token": TOKEN}).headers["Set-Cookie"]


def test_another_site_cannot_use_the_session(guarded, three_cities):
    guarded.post(SESSION, json={"token": TOKEN})
    body = {"text": three_cities}
    for origin in ("http://evil.example", "null", "http://planner.example:8001", "http://planner.example"):
        answer = guarded.post("/api/v1/scenarios/describe", json=body, headers={"Origin": origin})
        assert (answer.status_code, answer.json()["code"]) == (403, "origin_foreign")
    own = {"Origin": "http://planner.example:8000"}
    assert guarded.post("/api/v1/scenarios/describe", json=body, headers=own).status_code == 200


def test_wrong_tries_are_limited_for_their_address_only(guarded, guarded_app, clock):
    elsewhere = TestClient(guarded_app, base_url="http://planner.example:8000", client=("203.0.113.9", 1))
    inside = TestClient(guarded_app, base_url="http://planner.example:8000")
    inside.post(SESSION, json={"token": TOKEN})
    for number in range(MOST_TRIES):
        if number % 2:
            assert guarded.post(SESSION, json={"token": "wrong"}).json()["code"] == "token_wrong"
        else:
            assert guarded.get(EXAMPLES, headers=bearer("wrong")).json()["code"] == "token_wrong"
    for answer in (guarded.post(SESSION, json={"token": TOKEN}), guarded.get(EXAMPLES, headers=bearer(TOKEN))):
        assert answer.status_code == 429
        assert answer.json()["code"] == "tries_too_many"
        assert answer.headers["Retry-After"] == str(TRIES_S)
    assert elsewhere.get(EXAMPLES, headers=bearer(TOKEN)).status_code == 200
    assert inside.get(EXAMPLES).status_code == 200
    clock.now += TRIES_S + 1
    assert guarded.get(EXAMPLES, headers=bearer(TOKEN)).status_code == 200


def test_asking_without_a_token_is_no_try(guarded):
    for _ in range(3 * MOST_TRIES):
        guarded.get(EXAMPLES)
    assert guarded.get(EXAMPLES, headers=bearer(TOKEN)).status_code == 200


def refused_code(call):
    with pytest.raises(InputError) as refusal:
        call()
    return refusal.value.notices[0].code


def test_one_network_of_ipv6_counts_as_one_address(clock):
    auth = TokenAuth(digest=b"", now=clock)
    for number in range(MOST_TRIES):
        assert refused_code(lambda host=f"2001:db8::{number:x}": auth.open_session("x", host)) == "token_wrong"
    assert refused_code(lambda: auth.open_session("x", "2001:db8::ffff")) == "tries_too_many"
    assert refused_code(lambda: auth.open_session("x", "2001:db8:0:1::")) == "token_wrong"


def test_what_the_gate_remembers_is_bounded(clock, monkeypatch):
    monkeypatch.setattr(tokens, "MOST_SESSIONS", 3)
    monkeypatch.setattr(tokens, "MOST_ADDRESSES", 3)
    auth = TokenAuth(digest=hashlib.sha256(b"t").digest(), now=clock)
    sessions = [auth.open_session("t", "") for _ in range(5)]
    assert refused_code(lambda: auth.check(authorization=None, session=sessions[0], address="")) == "token_needed"
    auth.check(authorization=None, session=sessions[-1], address="")
    for number in range(20):
        refused_code(lambda host=f"192.0.2.{number}": auth.open_session("x", host))
    assert len(auth._sessions) == len(auth._tries) == 3


def test_only_the_hash_is_kept_and_only_for_its_owner(home):
    made = load_token()
    assert made.fresh
    assert len(made.fresh) >= 40
    assert stat.S_IMODE(get_token_file().stat().st_mode) == 0o600
    assert get_token_file().read_text().strip() == hashlib.sha256(made.fresh.encode()).hexdigest() == made.digest.hex()
    assert all(made.fresh not in path.read_text() for path in home.rglob("*") if path.is_file())
    again = load_token()
    assert again.fresh is None
    assert again.digest == made.digest
    anew = load_token(replace=True)
    assert anew.fresh
    assert anew.digest != made.digest
    assert load_token().digest == anew.digest
    assert [path.name for path in home.iterdir()] == ["token.sha256"]


def test_a_broken_file_is_said_plainly(home):
    home.mkdir()
    for broken in (b"", b"abc", b"\xff" * 64, b"g" * 64):
        get_token_file().write_bytes(broken)
        assert refused_code(load_token) == "token_unreadable"
    load_token(replace=True)
    assert load_token().fresh is None


def test_a_folder_that_cannot_be_written_is_said_plainly(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CROSSZONE_HOME", str(tmp_path / "file" / "home"))
    assert refused_code(lambda: load_token(replace=True)) == "home_unwritable"


def test_the_environment_may_give_a_token_and_it_is_not_stored(home, monkeypatch):
    assert read_environment_token() is None
    monkeypatch.setenv("CROSSZONE_TOKEN", TOKEN)
    given = read_environment_token()
    assert given.digest == hashlib.sha256(TOKEN.encode()).digest()
    assert given.fresh is None
    assert not home.exists()
    for weak in (
        "short",
        "with spaces in the middle of it",
        "x" * 201,
        "\u4ee4\u724c" * 10,
        "tab\tand more characters",
    ):
        monkeypatch.setenv("CROSSZONE_TOKEN", weak)
        with pytest.raises(InputError) as refusal:
            read_environment_token()
        assert refusal.value.notices[0].code == "token_weak"
        assert weak not in str(refusal.value)


def test_a_server_without_a_gate_takes_any_token(client):
    answer = client.post(SESSION, json={"token": "anything"})
    assert answer.status_code == 204
    assert "Set-Cookie" not in answer.headers
    assert client.delete(SESSION).status_code == 204
