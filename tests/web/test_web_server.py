"""`crosszone serve`: starts with an address, or says why it cannot."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from commands import call

pytestmark = pytest.mark.slow  # starts servers, or plans in worker processes


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve(*arguments, language="en"):
    """`crosszone serve` of what it refuses, so that it comes back."""
    return call("serve", *arguments, CROSSZONE_LANG=language)


@pytest.mark.parametrize(("language", "words"), [("en", "is taken by another program"), ("zh", "已被其他程序占用")])
def test_a_taken_port_is_said_plainly(language, words):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = serve("--port", str(port), language=language)
    assert done.returncode == 1
    assert words in done.stderr
    assert str(port) in done.stderr
    assert f"--port {port + 1}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_not_there_is_bad_input(tmp_path):
    done = serve(str(tmp_path / "nope.yaml"))
    assert done.returncode == 2
    assert "nope.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_read_is_bad_input(tmp_path):
    (tmp_path / "bytes.yaml").write_bytes(b"name: \xff\xfe")
    for path in (tmp_path, tmp_path / "bytes.yaml"):
        done = serve(str(path))
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


@contextmanager
def serving(tmp_path, *arguments, **environment):
    """`crosszone serve --json` while it runs; gives what it printed."""
    variables = {**os.environ, "CROSSZONE_HOME": str(tmp_path / "home"), "CROSSZONE_LANG": "en", **environment}
    command = [sys.executable, "-m", "crosszone", "serve", "--json", "--port", str(free_port()), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
    try:
        printed = ""
        while not printed.endswith("}\n"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            printed += line
        yield json.loads(printed)
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=30)
        assert errors == ""
        assert process.returncode in (0, -signal.SIGTERM)


def status(address, path="/api/v1/examples", token=None):
    request = urllib.request.Request(address.partition("/#")[0] + path)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    for _ in range(100):
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            time.sleep(0.1)
    raise AssertionError("the server does not answer")


def test_on_this_machine_alone_no_token_is_asked_for(tmp_path):
    with serving(tmp_path) as said:
        assert said == {"address": said["address"], "token": None, "token_needed": False}
        assert said["address"].startswith("http://127.0.0.1:")
        assert status(said["address"]) == 200
    assert not (tmp_path / "home" / "token.sha256").exists()


def test_for_others_a_token_is_made_once_and_told_once(tmp_path):
    with serving(tmp_path, "--host", "0.0.0.0") as said:
        token = said["token"]
        assert said["address"].endswith(f"/#token={token}")
        assert said["token_needed"]
        here = f"http://127.0.0.1:{said['address'].partition('/#')[0].rpartition(':')[2]}"
        assert status(here) == 401
        assert status(here, "/") == 200
        assert status(here, token=token) == 200
    with serving(tmp_path, "--host", "0.0.0.0") as said:
        assert said["token"] is None
        assert said["token_needed"]
        here = f"http://127.0.0.1:{said['address'].rpartition(':')[2]}"
        assert status(here, token=token) == 200
    with serving(tmp_path, "--new-token") as said:
        assert said["token"] not in (None, token)
        assert status(said["address"], token=token) == 401
        assert status(said["address"], token=said["token"]) == 200


def test_a_token_of_the_environment_is_asked_for_on_any_address(tmp_path):
    token = "from-the-environment-of-this-test"
    with serving(tmp_path, CROSSZONE_TOKEN=token) as said:
        assert said["token"] is None
        assert status(said["address"]) == 401
        assert status(said["address"], token=token) == 200
    assert not (tmp_path / "home" / "token.sha256").exists()


def test_things_are_saved_where_the_user_says(tmp_path):
    with serving(tmp_path, "--db", str(tmp_path / "elsewhere.db")) as said:
        assert status(said["address"]) == 200
    assert (tmp_path / "elsewhere.db").stat().st_size
    assert not (tmp_path / "home" / "crosszone.db").exists()


@pytest.mark.parametrize(
    ("arguments", "exit_status", "code"),
    [
        (["--host", "no.such.host.invalid"], 1, "host_unknown"),
        (["--host", "a" * 300], 1, "host_unknown"),
        (["--host", "192.0.2.77"], 1, "port_refused"),
        (["--host", ""], 1, "host_unknown"),
        (["--port", "0"], 2, "usage"),
        (["--db", "mysql://somewhere/else"], 2, "store_url"),
    ],
)
def test_what_cannot_be_served_is_said_plainly(tmp_path, monkeypatch, arguments, exit_status, code):
    monkeypatch.setenv("CROSSZONE_HOME", str(tmp_path / "home"))
    port = [] if "--port" in arguments else ["--port", str(free_port())]
    done = serve(*port, *arguments, "--json")
    assert "Traceback" not in done.stderr
    assert (done.returncode, json.loads(done.stdout)["errors"][0]["code"]) == (exit_status, code)


def test_two_tokens_are_one_too_many(monkeypatch):
    monkeypatch.setenv("CROSSZONE_TOKEN", "from-the-environment-of-this-test")
    done = serve("--new-token", "--port", str(free_port()), "--json")
    assert (done.returncode, json.loads(done.stdout)["errors"][0]["code"]) == (2, "token_twice")
