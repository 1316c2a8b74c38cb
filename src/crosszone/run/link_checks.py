"""Link checks: whether ranks can meet, and whether the links are as fast as the prediction takes them to be."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from crosszone.cost.tiers import figure
from crosszone.errors import Level, MachineError, Notice
from crosszone.inputs.environment import MeasuredLink, pair_id
from crosszone.inputs.links import zone_links
from crosszone.inputs.scenario import parse_scenario
from crosszone.run.checks import Outcome, Subject, beside
from crosszone.run.probe import End, measured

TRY_S = 8.0  # How long a machine tries to reach the port at which ranks meet
# How many times slower than assumed a link is told, and stops the launch.
SLOWER_WARNING, SLOWER_ERROR = 1.25, 2.0
LATER_MS = 2.0  # Round-trip time that is always forgiven: a busy machine takes as long
# How long a direction is measured: connections need some round trips to find their speed.
LEAST_S, MOST_S, ROUND_TRIPS = 1.0, 3.0, 40


def chosen_port(subject: Subject, wanted: int | None) -> int | None:
    """A port that is free on the first machine: the wanted one if it is; None: a single launcher meets nobody."""
    machine = subject.machines.get(subject.master)
    if machine is None or sum(len(node.ranks) for node in subject.work.nodes) < 2:
        return None
    fixed = subject.fixed_port
    first = fixed if fixed is not None else wanted
    return int(machine.call("link.choose_port", preferred=first, fixed=fixed is not None)["port"])


def ports(subject: Subject, port: int | None) -> Iterator[Outcome]:
    """Whether the port is free on the first machine, and open to every other."""
    master = subject.master
    if port is None:
        return
    address = subject.environments[master].address
    callers = [id for id in subject.machines if id != master]
    if not callers:
        yield Outcome(check="port", environments=(master,), measured={"port": port})
        return
    if address is None:
        yield _no_address("port", master)
        return
    asked: dict[str, Any] = {"port": port, "secret": secrets.token_hex(16)}
    with ThreadPoolExecutor(max_workers=1) as pool:
        door = pool.submit(
            subject.machines[master].call, "link.listen_for_probes", callers=len(callers), open_s=2 * TRY_S, **asked
        )
        found = beside(
            lambda id: subject.machines[id].call("link.probe_port", address=address, try_s=TRY_S, **asked), callers
        )
        try:
            door.result()
        except MachineError as error:
            yield Outcome(check="port", environments=(master,), measured={"port": port}, notice=error.notices[0])
            return
    yield Outcome(check="port", environments=(master,), measured={"port": port})
    for id, told in found.items():
        notice, seen = None, {"port": port, "address": address}
        if isinstance(told, MachineError):
            notice = told.notices[0]
        elif not told["reached"]:
            params = {"machine": id, "other": master, "reason": told["reason"], **seen}
            notice = Notice(code="preflight_port_closed", params=params)
        else:
            seen["ms"] = told["ms"]
        yield Outcome(check="port", environments=(id, master), measured=seen, notice=notice)


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """What a prediction takes for granted between two environments."""

    first: str
    second: str
    rtt_ms: float | None
    gbps: float | None
    """Payload, from the first to the second."""
    gbps_back: float | None


def links(subject: Subject) -> Iterator[Outcome]:
    """One pair of environments of each two zones, and pairs within zones that were measured before: one at a time."""
    for assumed in _pairs(subject):
        pair = (assumed.first, assumed.second)
        ends = [End(id, subject.environments[id].address, subject.machines[id]) for id in pair]
        missing = next((end.id for end in ends if end.address is None), None)
        if missing is not None:
            yield _no_address("link", missing)
            continue
        if ends[0].address == ends[1].address:
            continue  # one machine: nothing lies between
        seconds = min(MOST_S, max(LEAST_S, ROUND_TRIPS * (assumed.rtt_ms or 0.0) / 1e3))
        try:
            found = measured(ends[0], ends[1], seconds=seconds)
        except MachineError as error:
            yield Outcome(check="link", environments=pair, notice=error.notices[0])
            continue
        yield _compared(assumed, found)


def _compared(assumed: Assumed, found: MeasuredLink) -> Outcome:
    pair = (assumed.first, assumed.second)
    seen: dict[str, Any] = {"rtt_ms": round(found.rtt_ms, 3), "gbps": found.gbps, "gbps_back": found.gbps_back}
    seen["assumed"] = {"rtt_ms": assumed.rtt_ms, "gbps": assumed.gbps, "gbps_back": assumed.gbps_back}
    worst: Notice | None = None
    if assumed.rtt_ms is not None and found.rtt_ms > assumed.rtt_ms + LATER_MS:
        worst = _slower("preflight_link_late", pair, found.rtt_ms, assumed.rtt_ms, found.rtt_ms / (assumed.rtt_ms or 1))
    for ends, rate, expected in (
        (pair, found.gbps, assumed.gbps),
        (pair[::-1], found.gbps_back, assumed.gbps_back),
    ):
        if expected is not None and rate is not None:
            notice = _slower("preflight_link_slow", ends, rate, expected, expected / rate)
            worst = notice if notice is not None and (worst is None or worst.level != "error") else worst
    return Outcome(check="link", environments=pair, measured=seen, notice=worst)


def _slower(code: str, pair: tuple[str, ...], found: float, assumed: float, factor: float) -> Notice | None:
    if factor <= SLOWER_WARNING:
        return None
    level: Level = "error" if factor > SLOWER_ERROR else "warning"
    params = {"machine": pair[0], "other": pair[1], "found": round(found, 4), "assumed": round(assumed, 4)}
    return Notice(code=code, params={**params, "factor": round(factor, 1)}, level=level)


def _pairs(subject: Subject) -> Iterator[Assumed]:
    """Pairs to measure, with what is assumed of them."""
    there = [id for id in subject.environments if id in subject.machines]
    known = {link.id: link for link in subject.links}
    by_zone: dict[str, list[str]] = {}
    for id in there:
        by_zone.setdefault(subject.environments[id].zone, []).append(id)
    cluster = parse_scenario(subject.work.scenario, "plan.yaml").scenario.cluster if len(by_zone) > 1 else None
    efficiency = figure("tcp", "efficiency")
    for (first, second), link in (zone_links(cluster) if cluster else {}).items():
        names = [cluster.zones[index].name for index in (first, second)] if cluster else []
        ends = [by_zone.get(name, []) for name in names]
        if not all(ends):
            continue
        pairs = [(one, other) for one in ends[0] for other in ends[1]]
        pair = next((pair for pair in pairs if pair_id(*pair) in known), pairs[0])
        stated = link.origins["gbps"] != "example"
        yield Assumed(
            first=pair[0],
            second=pair[1],
            rtt_ms=link.rtt_ms.high,
            gbps=link.gbps * efficiency if stated else None,
            gbps_back=link.gbps_back * efficiency if stated else None,
        )
    for ids in by_zone.values():
        for other in ids[1:]:
            before = known.get(pair_id(ids[0], other))
            if before is not None:
                yield _as_before(ids[0], other, before)


def _as_before(first: str, second: str, link: MeasuredLink) -> Assumed:
    there, back = (link.gbps, link.gbps_back) if link.first == first else (link.gbps_back, link.gbps)
    return Assumed(first=first, second=second, rtt_ms=link.rtt_ms, gbps=there, gbps_back=back)


def _no_address(check: str, id: str) -> Outcome:
    notice = Notice(code="environment_no_address", field="address", value=id)
    return Outcome(check=check, environments=(id,), notice=notice)
