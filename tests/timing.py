"""Where the time of a test run goes: its slowest tests, and CPU seconds by folder of tests.

CPU time of child processes counts for the test in which they are waited for; what fixtures of the whole session start
(servers, browsers, daemons) ends with the session and stands in a line of its own.
"""

from __future__ import annotations

import resource
import time
from collections import defaultdict

import pytest

SLOWEST = 15
CPU = "cpu_s"
_BEFORE = pytest.StashKey[float]()


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    item.stash[_BEFORE] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    """Attach the CPU time of each phase: reports travel from the workers, items do not."""
    report = yield
    now = cpu_seconds()
    report.user_properties = [*report.user_properties, (CPU, now - item.stash[_BEFORE])]
    item.stash[_BEFORE] = now
    return report


class Timing:
    """Adds up, in the process that prints, what the reports of all workers say."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.wall: dict[str, float] = defaultdict(float)
        self.cpu: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report):
        self.wall[report.nodeid] += report.duration
        self.cpu[report.nodeid] += dict(report.user_properties).get(CPU, 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter, config):
        if not self.wall:
            return
        say = terminalreporter.write_line
        terminalreporter.write_sep("=", f"{SLOWEST} slowest tests (s)")
        for name in sorted(self.wall, key=self.wall.__getitem__, reverse=True)[:SLOWEST]:
            say(f"{self.wall[name]:7.1f}  {name}")
        by_folder: dict[str, float] = defaultdict(float)
        for name, seconds in self.cpu.items():
            parts = name.split("::")[0].split("/")
            by_folder[parts[1] if len(parts) > 2 else "(top)"] += seconds
        total = cpu_seconds()  # the workers are children of this process, and have ended
        by_folder["start, collection, session fixtures"] = total - sum(by_folder.values())
        terminalreporter.write_sep("=", "CPU seconds by folder")
        for folder, seconds in sorted(by_folder.items(), key=lambda item: item[1], reverse=True):
            say(f"{seconds:7.1f}  {folder}")
        seed = config.getoption("randomly_seed", None)
        say(
            f"{total:7.1f}  CPU s in all, {time.monotonic() - self.begin:.0f} s of wall time, order by --randomly-seed={seed}"
        )


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Timing(), "crosszone-timing")
