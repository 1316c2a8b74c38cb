"""Calling a machine: the same functions here, in a process of their own, and over a real ssh."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import io
import os
import socket
import sys
import tarfile

import pytest

from crosszone.errors import MachineError
from crosszone.run.machine import BOOT, MODULES, Local, Ssh, read_modules, run_request
from deploy.test_slurm import free_ports
from run.sshd import keys, needs_sshd, serving
from waiting import wait_until


def packed(**files: bytes | tuple[str, bytes]) -> bytes:
    """A tar of files; a pair gives the member's own name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for key, value in files.items():
            name, data = value if isinstance(value, tuple) else (key, value)
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


class Spawned:
    """This machine, every call through a process, as ssh would do it."""

    name = "spawned"

    def call(self, what: str, *, payload: bytes = b"", wait_s: float = 60, **arguments):
        return run_request(self.name, [sys.executable, "-I", "-c", BOOT], what, payload, wait_s, arguments)


@pytest.fixture(scope="module", params=["local", "spawned", pytest.param("ssh", marks=needs_sshd)])
def machine(request, tmp_path_factory):
    if request.param == "local":
        yield Local()
    elif request.param == "spawned":
        yield Spawned()
    else:
        folder = tmp_path_factory.mktemp("ssh")
        with serving("127.0.0.1", free_ports(1)[0], keys(folder), folder / "daemon") as reached:
            yield dataclasses.replace(reached, python=sys.executable)


def test_a_bundle_is_put_once_and_results_stay(machine, tmp_path):
    folder = str(tmp_path / "it's $(touch pwned)\n任务")
    first, second = packed(a=b"one"), packed(a=b"two", b=("sub/b.sh", b"echo"))
    arguments = {"folder": folder}
    for bundle, fresh in ((first, True), (first, False), (second, True)):
        answer = machine.call(
            "files.put_bundle", payload=bundle, checksum=hashlib.sha256(bundle).hexdigest(), **arguments
        )
        assert answer == {"put": fresh}
        out = tmp_path / "it's $(touch pwned)\n任务" / "bundle" / "out"
        out.mkdir(exist_ok=True)
        (out / "kept").write_text("kept")
    bundle = out.parent
    assert (bundle / "a").read_text() == "two"
    assert (bundle / "sub" / "b.sh").read_text() == "echo"
    assert (out / "kept").read_text() == "kept"
    assert not list(tmp_path.rglob("pwned")) and not os.path.exists("pwned")


@pytest.mark.parametrize("name", ["../out", "/tmp/crosszone-out", "a/../../out"])
def test_nothing_is_written_outside_the_folder(machine, tmp_path, name):
    bundle = packed(a=(name, b"x"))
    with pytest.raises(MachineError) as refused:
        machine.call(
            "files.put_bundle", payload=bundle, checksum=hashlib.sha256(bundle).hexdigest(), folder=str(tmp_path / "t")
        )
    assert refused.value.notices[0].code == "agent_path"
    assert not (tmp_path / "out").exists()


def test_a_torn_bundle_is_refused(machine, tmp_path):
    with pytest.raises(MachineError) as refused:
        machine.call("files.put_bundle", payload=b"torn", checksum="0" * 64, folder=str(tmp_path / "t"))
    assert refused.value.notices[0].code == "agent_torn"


def test_reading_stays_inside_and_pages(machine, tmp_path):
    (tmp_path / "t" / "logs").mkdir(parents=True)
    (tmp_path / "t" / "logs" / "node.log").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "secret").write_text("secret")
    read = {"folder": str(tmp_path / "t")}
    answer, data = machine.call("files.read_bytes", name="logs/node.log", offset=10_000, max_bytes=1000, **read)
    assert (answer["size"], answer["offset"], len(data)) == (10_240, 10_000, 240)
    assert machine.call("files.read_bytes", name="none", **read) == ({"size": 0, "offset": 0}, b"")
    (tmp_path / "t" / "way-out").symlink_to(tmp_path / "secret")
    for name in ("../secret", str(tmp_path / "secret"), "way-out"):
        with pytest.raises(MachineError) as refused:
            machine.call("files.read_bytes", name=name, **read)
        assert refused.value.notices[0].code == "agent_path"


def test_only_a_folder_of_ours_is_deleted(machine, tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis").touch()
    with pytest.raises(MachineError) as refused:
        machine.call("files.delete_folder", folder=str(tmp_path / "precious"), expected_name="precious")
    assert refused.value.notices[0].code == "agent_not_ours"
    mine = tmp_path / "node-000"
    machine.call("supervisor.stop", folder=str(mine), token="t.1")
    with pytest.raises(MachineError):
        machine.call("files.delete_folder", folder=str(mine), expected_name="node-001")
    assert machine.call("files.delete_folder", folder=str(mine), expected_name="node-000") == {"cleaned": True}
    assert not mine.exists()
    assert (tmp_path / "precious" / "thesis").exists()


def test_what_a_machine_is_can_be_asked(machine, tmp_path):
    facts = machine.call("survey.collect_facts", folder=str(tmp_path / "not" / "yet"), python=sys.executable)
    assert facts["cpus"] >= 1
    assert facts["memory_gib"] > 0.1
    assert facts["disk_free_gib"] > 0
    assert facts["interfaces"]["lo"] == "127.0.0.1"
    assert facts["software"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["gpus"] == [] or facts["driver"]
    assert "missing" in machine.call("survey.collect_facts", folder="/", python="/no/python")["software"]


def test_a_port_in_use_is_refused(machine):
    (port,) = free_ports(1)
    assert machine.call("link.find_free_port", address="127.0.0.1", port=port) == {"port": port}
    with socket.create_server(("127.0.0.1", port)):
        with pytest.raises(MachineError) as refused:
            machine.call("link.find_free_port", address="127.0.0.1", port=port)
        assert refused.value.notices[0].code == "machine_port_taken"


def test_every_message_names_the_machine(machine):
    with pytest.raises(MachineError) as refused:
        machine.call("link.find_free_port", address="192.0.2.1", port=1)
    for language in ("en", "zh"):
        assert machine.name in refused.value.notices[0].message(language)


@pytest.mark.parametrize("words", [["false"], ["/no/such/ssh"], ["sh", "-c", "echo noise; echo why >&2; exit 255"]])
def test_a_machine_that_does_not_answer(words):
    with pytest.raises(MachineError) as refused:
        run_request("far", words, "survey.collect_facts", b"", 5, {"folder": "/"})
    assert "far" in refused.value.notices[0].message()


def test_a_machine_that_hangs():
    with pytest.raises(MachineError) as refused:
        run_request("far", ["sleep", "60"], "survey.collect_facts", b"", 0.2, {"folder": "/"})
    assert refused.value.notices[0].code == "machine_silent"


@pytest.mark.parametrize("known", [pytest.param("nobody", marks=needs_sshd)])
def test_an_unknown_host_key_is_not_trusted(tmp_path, known):
    with serving("127.0.0.1", free_ports(1)[0], keys(tmp_path), tmp_path / "daemon") as reached:
        (tmp_path / known).touch()
        stranger = dataclasses.replace(reached, known_hosts=str(tmp_path / known))
        with pytest.raises(MachineError) as refused:
            stranger.call("survey.collect_facts", folder="/")
    assert refused.value.notices[0].code == "machine_unreachable"
    assert "host" in refused.value.notices[0].message().lower()


def test_a_command_line_holds_nothing_of_the_request():
    machine = Ssh(name="far", address="192.0.2.1", user="ml", port=2222)
    assert machine.command[-1] == f"python3 -c '{BOOT}'"
    assert "StrictHostKeyChecking=yes" in machine.command
    with pytest.raises(MachineError):
        Ssh(name="far", address="192.0.2.1", python="python3; reboot").call("survey.collect_facts", folder="/")


@pytest.mark.parametrize("name", MODULES)
def test_remote_code_is_plain_enough_for_an_old_python(name):
    text = read_modules()[name]
    ast.parse(text, feature_version=(3, 8))
    imported = {
        (node.module or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    third_party = {module for module in imported if module.split(".")[0] not in sys.stdlib_module_names}
    sent = MODULES[: MODULES.index(name)]
    assert third_party <= {f"crosszone.run.remote.{module}" for module in sent}


def test_a_process_list_shows_no_secret(tmp_path):
    secret = "s3cret-token-of-a-start"
    watch = "import subprocess; print(subprocess.run(['ps', '-eo', 'args'], capture_output=True, text=True).stdout)"
    node = {"folder": str(tmp_path / "node")}
    Spawned().call("supervisor.start", token=secret, command=[sys.executable, "-c", watch], **node)
    wait_until(lambda: Local().call("supervisor.poll", **node)["state"] == "ended")
    listed = (tmp_path / "node" / "logs" / "node.log").read_text()
    assert "python" in listed
    assert secret not in listed
