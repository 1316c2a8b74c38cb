"""Many users at once; `python benchmarks/load.py` starts a server, plays 50 users and updates RESULTS.md.

Each user has the page open on the three-cities example and moves a slider every 5 s: the rate of a line, its RTT or the
batch. As the page does, a change is described, analysed for the way shown (`/analyse` with `way`), and planned anew
(`/plan` as a stream of events); when the best way is another one, that is analysed too. Who changes something before
the plan is there hangs up, and the search is cancelled; the time waited in vain counts like any other. Users, server
and workers share the cores of this machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from results import write_section

ROOT = Path(__file__).resolve().parents[1]
USERS, EVERY_S, SECONDS = 50, 5.0, 60.0
TARGET_S = 3.0
FIELDS: dict[str, tuple[float, ...]] = {
    "gbps": (1, 2, 5, 8, 10, 20, 40, 80, 100),
    "rtt_ms": (5, 10, 15, 20, 25, 30, 40, 60, 80),
    "global_batch": (512, 768, 1024, 1536, 2048),
}


@dataclass
class Log:
    """What all users saw."""

    seconds: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: Counter[str] = field(default_factory=Counter)
    hung_up: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record_answer(self, route: str, seconds: float, error: str = "") -> None:
        """One answer."""
        with self.lock:
            self.seconds[route].append(seconds)
            if error:
                self.errors[f"{route}: {error}"] += 1


class User(threading.Thread):
    """One user: changes something, waits, changes something else."""

    def __init__(self, number: int, port: int, log: Log, end: float) -> None:
        super().__init__(daemon=True)
        self.port, self.log, self.end = port, log, end
        self.random = random.Random(number)
        self.scenario: dict[str, Any] = yaml.safe_load((ROOT / "examples/three-cities.yaml").read_text("utf-8"))
        self.way: dict[str, Any] | None = None

    def run(self) -> None:
        """Play until the end."""
        time.sleep(self.random.uniform(0, EVERY_S))  # users do not move in step
        while (now := time.monotonic()) < self.end:
            self._move_slider()
            self._ask_all(now + EVERY_S)
            time.sleep(max(0.0, now + EVERY_S - time.monotonic()))

    def _move_slider(self) -> None:
        name = self.random.choice(list(FIELDS))
        value = self.random.choice(FIELDS[name])
        if name == "global_batch":
            self.scenario["job"][name] = value
        else:
            self.scenario["cluster"]["links"][0][name] = value

    def _ask_all(self, until: float) -> None:
        self._send("scenarios/describe", {})
        self._analyse()
        plans = self._plan(until)
        if plans is None or not plans["plans"]:
            return
        best = {key: plans["plans"][0][key] for key in ("framework", "strategy", "placement")}
        if best != self.way:
            self.way = best
            self._analyse()

    def _analyse(self) -> None:
        self._send("analyse", {"parts": ["traffic"], **({"way": self.way} if self.way else {})})

    def _send(self, route: str, more: dict[str, Any]) -> None:
        begun = time.monotonic()
        try:
            with self._open_request(route, more) as answer:
                answer.read()
                error = "" if answer.status == 200 else str(answer.status)
        except OSError as failure:
            error = type(failure).__name__
        self.log.record_answer(f"/{route}", time.monotonic() - begun, error)

    def _plan(self, until: float) -> dict[str, Any] | None:
        begun, result, error, name = time.monotonic(), None, "", ""
        try:
            with self._open_request("plan", {"top": 6}, {"Accept": "text/event-stream"}) as answer:
                error = "" if answer.status == 200 else str(answer.status)
                for line in answer:
                    if line.startswith(b"event: "):
                        name = line[7:].decode().strip()
                    elif line.startswith(b"data: ") and name == "result":
                        result = json.loads(line[6:])
                    elif line.startswith(b"data: ") and name == "error":
                        error = json.loads(line[6:])["code"]
                    if time.monotonic() > until and result is None and not error:
                        with self.log.lock:
                            self.log.hung_up += 1
                        self.log.record_answer("/plan", time.monotonic() - begun)
                        return None
        except OSError as failure:
            error = type(failure).__name__
        self.log.record_answer("/plan", time.monotonic() - begun, error or ("" if result else "no result"))
        return result

    @contextmanager
    def _open_request(self, route: str, more: dict[str, Any], headers: dict[str, str] | None = None) -> Iterator[Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body = json.dumps({"scenario": self.scenario, **more})
            sent = {"Content-Type": "application/json", "Accept-Encoding": "gzip", **(headers or {})}
            connection.request("POST", f"/api/v1/{route}", body, sent)
            yield connection.getresponse()
        finally:
            connection.close()


@contextmanager
def serve() -> Iterator[int]:
    """The port of `crosszone serve`, started for this and warm."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "crosszone", "serve", "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "CROSSZONE_HOME": home})
        try:
            assert process.stdout is not None
            process.stdout.readline()
            warm = Log()
            for number in range(os.cpu_count() or 1):
                User(number, port, warm, 0.0)._ask_all(time.monotonic() + 60)
            assert not warm.errors, warm.errors
            yield port
        finally:
            process.terminate()
            process.wait(20)


def find_quantile(values: list[float], part: float) -> float:
    """The value that this part of all values does not exceed."""
    return (
        statistics.quantiles(values, n=100, method="inclusive")[round(100 * part) - 1] if len(values) > 1 else values[0]
    )


def play(users: int, seconds: float) -> Log:
    """All users at once."""
    log = Log()
    with serve() as port:
        end = time.monotonic() + seconds
        playing = [User(number, port, log, end) for number in range(users)]
        for user in playing:
            user.start()
        for user in playing:
            user.join(seconds + 120)
    return log


def main() -> None:
    """Play and put the table into RESULTS.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--dry", action="store_true", help="print, and leave RESULTS.md as it is")
    arguments = parser.parse_args()
    log = play(arguments.users, arguments.seconds)
    rows = {route: log.seconds[route] for route in sorted(log.seconds)}
    rows["all"] = [value for values in rows.values() for value in values]
    lines = ["| what | answers | median ms | p95 ms | p99 ms | longest ms |", "|---|---|---|---|---|---|"]
    for route, values in rows.items():
        figures = (statistics.median(values), find_quantile(values, 0.95), find_quantile(values, 0.99), max(values))
        lines.append(f"| {route} | {len(values)} | " + " | ".join(f"{1000 * figure:,.0f}" for figure in figures) + " |")
    errors = ", ".join(f"{count} x {what}" for what, count in log.errors.items()) or "none"
    head = (
        f"`python benchmarks/load.py`, {os.cpu_count()} cores for server, workers and users together: "
        f"{arguments.users} users for {arguments.seconds:.0f} s, each changing the three-cities example every "
        f"{EVERY_S:.0f} s. Target: no error, p95 under {TARGET_S:.0f} s. Errors: {errors}. "
        f"Searches given up for the next change: {log.hung_up}."
    )
    text = head + "\n\n" + "\n".join(lines)
    print(text) if arguments.dry else write_section("Load", text)


if __name__ == "__main__":
    main()
