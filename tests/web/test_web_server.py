"""`crosszone serve`: starts with an address, or says why it cannot."""

import os
import socket
import subprocess
import sys

import pytest


def serve(*arguments, language="en"):
    environment = {**os.environ, "CROSSZONE_LANG": language}
    command = [sys.executable, "-m", "crosszone", "serve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)


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
