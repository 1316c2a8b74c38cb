"""Where cells run: this process, processes of their own, Ray; nobody is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

from conftest import ROOT
from crosszone.analyse.sweep import sweep
from crosszone.analyse.sweep_cells import Cells, SweepCell, compute_cells
from crosszone.errors import CrossZoneError, InputError, InvalidError
from crosszone.inputs.scenario import Scenario, load_scenario
from crosszone.plan.search import CancelledError
from processes import descendants
from waiting import wait_until

pytestmark = pytest.mark.slow

GBPS = "cluster.links[*].gbps"
POINTS = [(float(gbps), None) for gbps in (1, 2, 5, 10, 20, 50)]
RAY = ROOT / ".venv-ray" / "bin" / "python"


@pytest.fixture
def cities() -> Scenario:
    return load_scenario(ROOT / "examples" / "three-cities.yaml")


class Dying(Cells):
    """Ends its process at the third point."""

    def compute_many(self, points, cancelled=None):
        if any(x >= 5 for x, _ in points):
            os._exit(7)
        return super().compute_many(points, cancelled)


class Failing(Cells):
    """Meets a mistake of ours."""

    def compute_many(self, points, cancelled=None):
        raise ZeroDivisionError("by hand")


class Slow(Cells):
    """Never comes to an end."""

    def compute_many(self, points, cancelled=None):
        time.sleep(600)
        return super().compute_many(points, cancelled)


def quick(scenario: Scenario, kind: type[Cells] = Cells) -> Cells:
    return kind(scenario=scenario, fields=(GBPS,), mode="predict")


@pytest.mark.slow
def test_processes_find_what_this_one_finds_in_the_same_order(cities):
    told: list[tuple[str, int, int]] = []
    alone = compute_cells(quick(cities), POINTS, workers=1)
    together = compute_cells(quick(cities), POINTS, workers=2, progress=lambda *said: told.append(said))
    assert together == alone and [cell.x for cell in together] == [x for x, _ in POINTS]
    assert told[-1] == ("sweeping", 6, 6) and [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert active_children() == []


@pytest.mark.slow
def test_plans_on_two_processes_are_the_same(cities):
    one, two = (sweep(cities, f"{GBPS}=2,20", workers=workers) for workers in (1, 2))
    assert one.cells == two.cells and one.flips == two.flips


def test_one_worker_starts_no_process(cities, monkeypatch):
    monkeypatch.setattr("crosszone.analyse.sweep_cells.get_context", lambda _: pytest.fail("a process was started"))
    assert len(compute_cells(quick(cities), POINTS, workers=1)) == len(POINTS)
    assert len(compute_cells(quick(cities), POINTS[:3])) == 3  # so few are not worth a process


def test_a_worker_that_dies_is_told_and_the_others_are_ended(cities):
    with pytest.raises(CrossZoneError) as died:
        compute_cells(quick(cities, Dying), POINTS, workers=2)
    assert died.value.notices[0].code == "sweep_worker_died" and "7" in died.value.notices[0].message()
    assert active_children() == []


def test_a_mistake_in_a_worker_comes_here_as_it_is(cities):
    with pytest.raises(ZeroDivisionError, match="by hand"):
        compute_cells(quick(cities, Failing), POINTS, workers=2)
    assert active_children() == []


def test_a_cancelled_sweep_ends_its_workers_at_once(cities):
    asked: list[None] = []
    with pytest.raises(CancelledError):
        compute_cells(quick(cities, Slow), POINTS, workers=2, cancelled=lambda: asked.append(None) or len(asked) > 5)
    assert active_children() == []


def test_a_cancelled_sweep_ends_without_processes_too(cities):
    seen: list[SweepCell] = []
    with pytest.raises(CancelledError):
        compute_cells(
            quick(cities), POINTS, workers=1, progress=lambda *_: seen.append(_), cancelled=lambda: len(seen) == 2
        )
    assert len(seen) == 2


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks processes up in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_a_sweep_that_is_stopped_leaves_nobody_behind(tmp_path, how):
    script = tmp_path / "long.py"
    script.write_text(
        textwrap.dedent(
            f"""
            from crosszone.analyse.sweep import sweep
            from crosszone.inputs.scenario import load_scenario

            if __name__ == "__main__":
                scenario = load_scenario({str(ROOT / "examples" / "three-cities.yaml")!r})
                said = lambda *_: print("going", flush=True)
                sweep(scenario, "{GBPS}=1:100:log2000", workers=2, progress=said)
            """
        ),
        encoding="utf-8",
    )
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as running:
        assert running.stdout.readline() == b"going\n"
        started = descendants(running.pid)
        assert len(started) >= 2
        os.killpg(running.pid, how) if how == signal.SIGINT else running.send_signal(how)
        running.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))


@pytest.mark.parametrize(("on", "workers"), [("moon", None), ("cores", 0)])
def test_places_there_are_not_are_refused(cities, on, workers):
    with pytest.raises(InvalidError):
        compute_cells(quick(cities), POINTS, on=on, workers=workers)


def test_without_ray_the_extra_is_named(cities, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError) as missing:
        compute_cells(quick(cities), POINTS, on="ray")
    (notice,) = missing.value.notices
    assert notice.code == "ray_missing" and "crosszone install ray" in notice.hint()


@pytest.mark.long
@pytest.mark.framework
def test_ray_finds_what_the_cores_find(tmp_path):
    if not RAY.exists():
        pytest.skip("Ray's own environment (.venv-ray) is made by ./test")
    script = tmp_path / "on_ray.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import json
            from crosszone.analyse.sweep import sweep
            from crosszone.errors import InputError
            from crosszone.inputs.scenario import load_scenario

            if __name__ == "__main__":
                scenario = load_scenario({str(ROOT / "examples" / "three-cities.yaml")!r})
                axes = "{GBPS}=1:100:log4", "cluster.links[*].rtt_ms=5,60"
                told = []
                ray = sweep(scenario, *axes, on="ray", workers=2, progress=lambda *said: told.append(said))
                here = sweep(scenario, *axes, workers=1)
                assert told[-1] == ("sweeping", 8, 8), told
                assert ray.cells == here.cells and ray.flips == here.flips
                try:
                    sweep(scenario, axes[0], on="ray://127.0.0.1:1")
                except InputError as error:
                    print(json.dumps(dict(cells=len(ray.cells), code=error.notices[0].code)))
            """
        ),
        encoding="utf-8",
    )
    done = subprocess.run(
        [RAY, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"cells": 8, "code": "ray_unreachable"}
