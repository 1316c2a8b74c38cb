"""Host tuning shows what it would set, sets it when told, and leaves out what it is told to leave out."""

from __future__ import annotations

import subprocess

from crosszone.deploy.deploy import build_bundle
from crosszone.inputs.scenario import read_scenario
from deploy.conftest import scenario


def script(tmp_path, **talk):
    strategy = {"dp": 4, **({"communication": talk} if talk else {})}
    made = build_bundle(read_scenario(scenario(zones=2, strategy=strategy, job={"framework": "ddp"})))
    path = tmp_path / "tune-host.sh"
    path.write_text(made.get_text("tune-host.sh"))
    return path


def shown(path, *arguments):
    return subprocess.run(["bash", str(path), *arguments], capture_output=True, text=True, check=True).stdout


def test_buffers_are_twice_the_bandwidth_delay_product(tmp_path):
    """10 Gbit/s x 20 ms = 25e6 bytes; twice that, in whole MiB: 48."""
    assert f"net.core.rmem_max={48 * 2**20}" in shown(script(tmp_path))


def test_without_apply_nothing_is_set(tmp_path):
    lines = shown(script(tmp_path)).splitlines()
    assert lines
    assert all(line.startswith("would run: sysctl -w net.") for line in lines)


def test_what_is_skipped_is_not_run(tmp_path):
    told = shown(script(tmp_path), "--skip", "congestion")
    assert "skipped: congestion" in told
    assert "tcp_congestion_control" not in told


def test_what_the_plan_asks_for_is_what_is_set(tmp_path):
    told = shown(script(tmp_path, congestion="reno", socket_buffer_mb=64.0))
    assert "tcp_congestion_control=reno" in told
    assert "net.core.wmem_max=64000000" in told


def test_one_zone_needs_none():
    made = build_bundle(read_scenario(scenario(strategy={"dp": 2}, job={"framework": "ddp"})))
    assert "tune-host.sh" not in {one.path for one in made.files}
