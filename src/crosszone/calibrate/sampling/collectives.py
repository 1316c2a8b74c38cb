"""Time collectives between the ranks of a job: one file that needs torch and the standard library, to copy anywhere.

    torchrun --nproc-per-node 4 collectives.py -o collectives.csv --zones a,a,b,b --sizes 4k,1m,64m --budget 90s
    torchrun --nnodes 4 --node-rank 0 --nproc-per-node 8 --master-addr HOST --master-port 29500 collectives.py ...

Ranks of one torchrun agent are a node; without torchrun, ranks of one host name. `--zones` names the zone of every node
(or of every rank, to play several zones on one machine; a node then ends where the zone changes); the variable
CROSSZONE_ZONE of a node does the same. Measured in every zone: groups inside a node, groups over nodes; and between
every two zones groups of one rank each. Each first alone, then with all groups of its kind at once, as in training.

Columns: device, torch, backend, dtype; op; scope (node | network | a>b: zone a to zone b; collectives go both ways);
zone (of a node or network group); nodes, gpus_per_node, ranks of one group; groups at the same time; bytes; time_us;
spread_pct; reps; bus_gb_per_s; flag. `bytes` is the tensor each rank passes in: for all_gather one rank's share (the
result is `ranks` times as large), for all others the whole. `bus_gb_per_s`, 1e9 B/s over the busiest link of a ring:
all_reduce 2(n-1)/n bytes/t, all_gather (n-1) bytes/t, reduce_scatter and all_to_all (n-1)/n bytes/t, send_recv bytes/t.
`flag`: empty = good; `noisy` = the median is uncertain by more than 10 %; `failed` = no time (the reason is printed).

A time is the median over repetitions (outliers left out) of the slowest rank's time of one call, several calls in a row
where one is short, with a barrier of all ranks before each repetition. Of send_recv it is the way there: a message and
one element back, less half of the shortest round trip of one element. The budget counts from the start; what would not
fit is not begun, and is printed. Gloo may build reduce_scatter from an all_reduce: the time is what the library takes.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import platform
import re
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

BEGAN = time.monotonic() - time.time() + float(os.environ.get("CROSSZONE_BEGAN") or time.time())  # before torch loads

try:
    import torch  # type: ignore[import-not-found]
    import torch.distributed as dist  # type: ignore[import-not-found]
except ImportError:  # `main` says so
    torch = dist = None

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
COLUMNS = (
    *("device", "torch", "backend", "dtype", "op", "scope", "zone", "nodes", "gpus_per_node", "ranks", "groups"),
    *("bytes", "time_us", "spread_pct", "reps", "bus_gb_per_s", "flag"),
)
SIZES = tuple(4096 * 4**power for power in range(10))  # 4 KiB to 1 GiB
# A time is noisy whose median is uncertain by more than this: 1.25 / 2.56 x spread / sqrt(repetitions).
NOISY_PCT, MEDIAN_ERROR = 10.0, 0.49
# Spreads (median absolute deviations, scaled to a standard deviation) beyond which a repetition is left out.
OUTLIER_DEVIATIONS = 5.0
LEAST_REPS, MOST_REPS, LEAST_CALLS, MOST_CALLS, TRIES = 5, 25, 3, 20, 4
# Seconds one repetition should last, so that starting it matters little; those a small size may take too.
REPETITION_S, CELL_S = 0.02, 0.3
# A collective this long is timed one by one, a shorter one some times in a row, for ranks do not start it together.
SLOW_S, PATIENCE = 0.5, timedelta(minutes=10)
# Share of the free memory that buffers may take; elements that a receiver of a message sends back.
MEMORY_SHARE, ACK_ELEMENTS = 0.3, 1


@dataclass(frozen=True)
class CollectiveCase:
    """Groups that run at the same time, and how they lie."""

    scope: str
    zone: str
    nodes: int
    gpus_per_node: int
    groups: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> int:
        """Ranks of one group."""
        return len(self.groups[0])

    def select_ops(self, requested: Sequence[str]) -> list[str]:
        """What is measured: messages between two; between zones, collectives once for both directions."""
        allowed = [op for op in requested if op != "send_recv" or self.ranks == 2]
        if self.scope in ("node", "network") or self.groups[0][0] < self.groups[0][1]:
            return allowed
        return [op for op in allowed if op == "send_recv"]


@dataclass
class World:
    """One process among all: who it is, how groups are made, and how all agree."""

    backend: str
    device: torch.device
    name: str
    control: Any
    nodes: list[list[int]]
    zones: list[str]
    """Zone of each node, empty where none was named."""
    groups_by_members: dict[tuple[int, ...], Any] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """Number of this process."""
        return int(dist.get_rank())

    @property
    def dtype(self) -> torch.dtype:
        """As gradients travel: 2 bytes on GPUs; 4 bytes on CPUs, where sums of 2 bytes are slow."""
        return torch.float32 if self.device.type == "cpu" else torch.bfloat16

    def group(self, members: tuple[int, ...]) -> Any:
        """The process group of some ranks; all ranks must ask in the same order."""
        if members not in self.groups_by_members:
            self.groups_by_members[members] = dist.new_group(list(members), backend=self.backend)
        return self.groups_by_members[members]

    def reduce_max(self, values: Sequence[float]) -> list[float]:
        """The largest of each value over all ranks."""
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control)
        return [float(value) for value in tensor]

    def wait_for_all(self) -> None:
        """Wait for this device, then for all ranks."""
        self.wait()
        dist.barrier(group=self.control)

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def plan_cases(nodes: list[list[int]], zones: list[str]) -> list[CollectiveCase]:
    """Everything to measure: inside nodes, over nodes of a zone, between zones; alone, then all groups at once."""
    planned: list[CollectiveCase] = []
    names = list(dict.fromkeys(zones))
    by_zone = {zone: [ranks for ranks, its in zip(nodes, zones, strict=True) if its == zone] for zone in names}
    for zone, zone_nodes in by_zone.items():
        ranks_per_node = min(map(len, zone_nodes))
        for width in _list_widths(ranks_per_node):
            groups = [
                tuple(ranks[at : at + width]) for ranks in zone_nodes for at in range(0, len(ranks) - width + 1, width)
            ]
            planned += _build_alone_and_together("node", zone, 1, width, groups)
        for count in _list_widths(len(zone_nodes)):
            groups = [tuple(ranks[at] for ranks in zone_nodes[:count]) for at in range(ranks_per_node)]
            planned += _build_alone_and_together(
                "network", zone, count, 1, groups if count == len(zone_nodes) else groups[:1]
            )
            if ranks_per_node > 1:
                all_ranks = tuple(rank for ranks in zone_nodes[:count] for rank in ranks[:ranks_per_node])
                planned += _build_alone_and_together("network", zone, count, ranks_per_node, [all_ranks])
    for first in names:
        for second in (zone for zone in names if zone != first):
            sides = [[rank for ranks in by_zone[zone] for rank in ranks] for zone in (first, second)]
            planned += _build_alone_and_together(f"{first}>{second}", "", 2, 1, list(zip(*sides, strict=False)))
    return planned


def _build_alone_and_together(
    scope: str, zone: str, nodes: int, width: int, groups: list[tuple[int, ...]]
) -> list[CollectiveCase]:
    alone = CollectiveCase(scope, zone, nodes, width, tuple(groups[:1]))
    return [alone] if len(groups) == 1 else [alone, CollectiveCase(scope, zone, nodes, width, tuple(groups))]


def _list_widths(limit: int) -> list[int]:
    """2, 4, 8 ... and the most there is."""
    return sorted({2**power for power in range(1, limit.bit_length()) if 2**power <= limit} | ({limit} - {0, 1}))


def count_bus_bytes(op: str, size: int, ranks: int) -> float:
    """Bytes over the busiest link of a ring."""
    share = {"all_reduce": 2 * (ranks - 1) / ranks, "all_gather": ranks - 1, "send_recv": 1}
    return share.get(op, (ranks - 1) / ranks) * size


def summarize_times(times: Sequence[float]) -> tuple[float, float, int]:
    """Median, spread ((p90 - p10) / median, %) and number of times that are no outliers."""
    median = statistics.median(times)
    deviation = 1.4826 * statistics.median(abs(value - median) for value in times)
    inliers = sorted(
        value for value in times if abs(value - median) <= OUTLIER_DEVIATIONS * max(deviation, 0.01 * median)
    )
    median = statistics.median(inliers)
    tenths = statistics.quantiles(inliers, n=10, method="inclusive")
    spread = 100 * (tenths[-1] - tenths[0]) / median if median else 0.0
    return median, spread, len(inliers)


def build_call(op: str, world: World, group: Any, members: tuple[int, ...], count: int) -> Callable[[], None]:
    """One call of a collective over `count` elements passed in by each rank of the group."""
    ranks = len(members)
    tensor = torch.zeros(count, dtype=world.dtype, device=world.device)
    if op == "all_reduce":
        return lambda: dist.all_reduce(tensor, group=group) and None
    if op == "all_gather":
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        gathered = torch.empty(count * ranks, dtype=world.dtype, device=world.device)
        return lambda: gather(gathered, tensor, group=group) and None
    if op == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        scattered = torch.empty(count // ranks, dtype=world.dtype, device=world.device)
        return lambda: scatter(scattered, tensor, group=group) and None
    if op == "all_to_all":
        received = torch.empty(count, dtype=world.dtype, device=world.device)
        return lambda: dist.all_to_all_single(received, tensor, group=group) and None
    return _build_message(world, group, members, tensor)


def _build_message(world: World, group: Any, members: tuple[int, ...], tensor: torch.Tensor) -> Callable[[], None]:
    """A message from the first of two ranks to the second, and one element back."""
    reply = torch.zeros(ACK_ELEMENTS, dtype=world.dtype, device=world.device)
    sends = world.rank == members[0]
    first, acknowledge, peer = (dist.send, dist.recv, members[1]) if sends else (dist.recv, dist.send, members[0])

    def send_and_return() -> None:
        first(tensor, peer, group=group)
        acknowledge(reply, peer, group=group)

    return send_and_return


@dataclass
class Sampler:
    """Measures cases one after the other within a budget; every rank runs the same calls in the same order."""

    world: World
    ends: float
    """When the budget is spent, by rank 0's clock."""
    left_out: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    last_s: dict[tuple[CollectiveCase, str], tuple[int, float, float]] = field(default_factory=dict)
    """Bytes of the size before, its seconds, and seconds that each further byte took."""
    refused: set[tuple[str, int]] = field(default_factory=set)
    most_bytes: float = math.inf

    def measure(self, case: CollectiveCase, op: str, size: int, share_of_left: float) -> dict[str, Any] | None:
        """One row, or None where it is left out; `left_out` says why. `part`: of the time left that it may take."""
        count = self._count_elements(op, size, case.ranks)
        tensor_bytes = count * self.world.dtype.itemsize
        if (op, case.ranks) in self.refused:
            return None
        fits = tensor_bytes * (1 + case.ranks if op == "all_gather" else 2) <= self.most_bytes
        share_s = self._allocate_s(case, op, tensor_bytes, share_of_left) if fits else 0.0
        if share_s <= 0:
            reason = "no time left in the budget (--budget)" if fits else "not enough free memory"
            self.left_out.setdefault(reason, []).append((size, op))
            return None
        row = self._describe_case(case, op, tensor_bytes)
        members = next((group for group in case.groups if self.world.rank in group), None)
        call, reason = self._prepare_call(op, members, count)
        if reason:
            self.refused.add((op, case.ranks))
            self.left_out.setdefault(reason, []).append((size, op))
            return {**row, "flag": "failed"}
        return_s = 0.0
        if op == "send_recv":
            least = (
                None
                if members is None
                else build_call(op, self.world, self.world.group(members), members, ACK_ELEMENTS)
            )
            return_s = min(self._measure_repetitions(least, members, share_s / 4, message=True)) / 2
        times = self._measure_repetitions(call, members, share_s, message=op == "send_recv")
        return self._format_row(row, case, op, tensor_bytes, times, return_s)

    def _prepare_call(
        self, op: str, members: tuple[int, ...] | None, count: int
    ) -> tuple[Callable[[], None] | None, str]:
        """The call, done once; or why it cannot be done, on which all ranks agree before anyone waits for another."""
        call: Callable[[], None] | None = None
        for prepare in (True, False):
            reason = ""
            try:
                if prepare and members is not None:
                    call = build_call(op, self.world, self.world.group(members), members, count)
                elif call is not None:
                    call()
                    self.world.wait()
            except (RuntimeError, ValueError, NotImplementedError, AttributeError) as error:
                reason = f"{type(error).__name__}: {(str(error) or '-').splitlines()[0]}"
            if self.world.reduce_max([float(bool(reason))])[0]:
                return None, reason or "refused on another rank"
        return call, ""

    def _format_row(
        self, row: dict[str, Any], case: CollectiveCase, op: str, tensor_bytes: int, times: list[float], return_s: float
    ) -> dict[str, Any]:
        """The row with its time; of a message, without the way back of one element. [K13]"""
        median, spread, inliers = summarize_times(times)
        previous_bytes, previous_s, _ = self.last_s.get((case, op), (0, 0.0, 0.0))
        self.last_s[case, op] = (
            tensor_bytes,
            median,
            max(0.0, median - previous_s) / max(tensor_bytes - previous_bytes, 1),
        )
        one_way_s = median - return_s
        if one_way_s <= 0:
            self.left_out.setdefault("faster than the way back of one element", []).append((tensor_bytes, op))
            return {**row, "flag": "failed"}
        spread *= median / one_way_s
        return {
            **row,
            "time_us": f"{one_way_s * 1e6:.2f}",
            "spread_pct": f"{spread:.1f}",
            "reps": inliers,
            "bus_gb_per_s": f"{count_bus_bytes(op, tensor_bytes, case.ranks) / one_way_s / 1e9:.5g}",
            "flag": "noisy" if MEDIAN_ERROR * spread / math.sqrt(inliers) > NOISY_PCT else "",
        }

    def _describe_case(self, case: CollectiveCase, op: str, tensor_bytes: int) -> dict[str, Any]:
        world, dtype = self.world, str(self.world.dtype).removeprefix("torch.")
        about = (world.name, torch.__version__, world.backend, dtype, op, case.scope, case.zone)
        counts = (case.nodes, case.gpus_per_node, case.ranks, len(case.groups), tensor_bytes)
        return dict(zip(COLUMNS, (*about, *counts), strict=False))

    def _count_elements(self, op: str, size: int, ranks: int) -> int:
        """Elements passed in, enough to be cut among the ranks."""
        count = max(1, size // int(self.world.dtype.itemsize))
        return -(-count // ranks) * ranks if op in ("reduce_scatter", "all_to_all") else count

    def _allocate_s(self, case: CollectiveCase, op: str, tensor_bytes: int, share_of_left: float) -> float:
        """Seconds this case may take; 0: what is left is not enough. What it does not need is left to larger sizes."""
        previous_bytes, previous_s, s_per_byte = self.last_s.get((case, op), (tensor_bytes, 0.0, 0.0))
        call_s = previous_s + s_per_byte * (tensor_bytes - previous_bytes)  # and LEAST_REPS times it, after TRIES
        needed_s = (LEAST_REPS * (1 if op == "send_recv" or call_s > SLOW_S else LEAST_CALLS) + TRIES) * call_s
        left_s = self.ends - time.monotonic()
        return self.world.reduce_max(
            [max(left_s * share_of_left, needed_s) if left_s > needed_s and self.world.rank == 0 else 0.0]
        )[0]

    def _measure_repetitions(
        self, call: Callable[[], None] | None, members: tuple[int, ...] | None, share_s: float, *, message: bool
    ) -> list[float]:
        """Seconds of one call, the slowest rank's, for every repetition; of a message its sender's."""
        counts = call is not None and (not message or (members is not None and members[0] == self.world.rank))
        call_s = self.world.reduce_max([self._measure_calls(call, 1)])[0]
        call_s = self.world.reduce_max([self._measure_calls(call, 1)])[0] if call_s < share_s / 4 else call_s
        least_calls = 1 if message or call_s > SLOW_S else LEAST_CALLS
        calls = min(MOST_CALLS, max(least_calls, math.ceil(REPETITION_S / max(call_s, 1e-6))))
        left_s = self.world.reduce_max([self.ends - time.monotonic() if self.world.rank == 0 else -math.inf])[0]
        calls = 1 if LEAST_REPS * calls * call_s > left_s else calls  # slower than smaller sizes let expect
        reps = int(min(MOST_REPS, max(LEAST_REPS, share_s / max(call_s * calls, 1e-6))))
        times = [self._measure_calls(call, calls) for _ in range(reps)]
        return self.world.reduce_max(times if counts else [0.0] * reps)

    def _measure_calls(self, call: Callable[[], None] | None, calls: int) -> float:
        self.world.wait_for_all()
        began = time.perf_counter()
        if call is not None:
            for _ in range(calls):
                call()
            self.world.wait()
        return (time.perf_counter() - began) / calls


def describe_left_out(reason: str, cells: Sequence[tuple[int, str]]) -> str:
    """One line: how many, why, and which ops of which sizes."""
    ops = {size: [op for its, op in dict.fromkeys(cells) if its == size] for size, _ in sorted(cells)}
    sizes = "; ".join(f"{size / 2**20:.4g} MiB {', '.join(names)}" for size, names in ops.items())
    return f"collectives: left out ({len(cells)}): {reason}: {sizes}"


def join_world(backend: str, zone_names: str | None) -> World:
    """Meet the other ranks, and learn who lies where."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    cuda = torch.cuda.is_available() and torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if backend == "auto":
        backend = "nccl" if cuda and dist.is_nccl_available() else "gloo"
    if backend == "nccl" and not cuda:
        raise SystemExit("collectives: nccl needs a GPU for each rank of a node; use --backend gloo")
    device = torch.device("cuda", local) if backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=PATIENCE)
    control = dist.new_group(backend="gloo", timeout=PATIENCE) if backend != "gloo" else dist.group.WORLD
    agent = os.environ.get("GROUP_RANK", socket.gethostname())
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, (agent, os.environ.get("CROSSZONE_ZONE", "")), group=control)
    agents = [answer[0] for answer in answers]
    place_of_rank = list(
        zip(agents, _resolve_zones(zone_names, agents, [answer[1] for answer in answers]), strict=True)
    )
    places = list(dict.fromkeys(place_of_rank))
    nodes = [[rank for rank, place in enumerate(place_of_rank) if place == node] for node in places]
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else _read_cpu_name()
    return World(backend, device, name, control, nodes, [zone for _, zone in places])


def _resolve_zones(zone_names: str | None, agents: list[str], zones_of_ranks: list[str]) -> list[str]:
    """The zone of every rank."""
    names = zones_of_ranks if zone_names is None else [name.strip() for name in zone_names.split(",")]
    order = list(dict.fromkeys(agents))
    if zone_names is None and any(zones_of_ranks) != all(zones_of_ranks):
        raise SystemExit("collectives: CROSSZONE_ZONE is set on some nodes and not on others")
    bad = next((name for name in names if re.search(r"[>,\"\s]", name) or (zone_names is not None and not name)), None)
    if bad is not None:
        raise SystemExit(f"collectives: {bad!r} cannot be the name of a zone")
    if len(names) == len(order) and zone_names is not None:
        return [names[order.index(agent)] for agent in agents]
    if len(names) == len(agents):
        return names
    raise SystemExit(f"collectives: --zones names {len(names)}, not {len(order)} nodes or {len(agents)} ranks")


def _read_cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    text = path.read_text("utf-8", "replace") if path.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip().replace(",", " ") if match else platform.processor() or platform.machine() or "cpu"


def _measure_free_bytes(world: World) -> float:
    """Bytes of buffers a rank may hold, the same on all ranks."""
    free = float(torch.cuda.mem_get_info()[0]) if world.device.type == "cuda" else 0.0
    if world.device.type != "cuda":
        pages = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else 2**20
        free = float(pages * os.sysconf("SC_PAGE_SIZE")) / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return -world.reduce_max([-free * MEMORY_SHARE])[0]


def parse_size(text: str) -> int:
    """`4k`, `64MiB`, `1g` or `4096` in bytes; units are powers of 1024."""
    match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)i?b?", text.strip().lower())
    if not match or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 4k, 64m, 1g or bytes")
    return int(match[1]) * int(1024 ** " kmg".index(match[2] or " "))


def parse_duration(text: str) -> float:
    """`90`, `90s`, `5m` or `1h` in seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([smh]?)", text.strip().lower())
    if not match or not float(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 90s, 5m or 1h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file that rank 0 writes")
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto")
    parser.add_argument("--zones", help="zone of every node (or of every rank), e.g. a,a,b,b")
    parser.add_argument(
        "--sizes", type=lambda text: [parse_size(part) for part in text.split(",")], default=list(SIZES)
    )
    parser.add_argument("--ops", default=",".join(OPS), help=f"of {','.join(OPS)}")
    parser.add_argument("--budget", type=parse_duration, default=300.0, help="time to take, e.g. 90s, 5m")
    parser.add_argument("--force", action="store_true", help="overwrite the output")
    arguments = parser.parse_args(argv)
    arguments.ops = [part.strip() for part in arguments.ops.split(",")]
    for unknown in (part for part in arguments.ops if part not in OPS):
        parser.error(f"--ops: {unknown!r} is none of {', '.join(OPS)}")
    if arguments.output.exists() and not arguments.force and os.environ.get("RANK", "0") == "0":
        parser.error(f"{arguments.output} exists already; choose another name, or add --force")
    return arguments


def run(world: World, arguments: argparse.Namespace) -> None:
    """Measure all cases, small sizes first; rank 0 writes each row as soon as it is measured."""
    planned = plan_cases(world.nodes, world.zones)
    for members in (group for case in planned for group in case.groups):
        world.group(members)
    ends = max(BEGAN + arguments.budget, time.monotonic() + arguments.budget / 2)
    sampler = Sampler(world, ends, most_bytes=_measure_free_bytes(world))
    cells = [
        (size, case, op)
        for size in sorted(set(arguments.sizes))
        for case in planned
        for op in case.select_ops(arguments.ops)
    ]
    parts = _compute_shares([size for size, _, _ in cells], arguments.budget)
    rows, file = 0, arguments.output.open("w", encoding="utf-8", newline="") if world.rank == 0 else None
    writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n") if file else None
    if writer:
        writer.writeheader()
    for done, (size, case, op) in enumerate(cells):
        row = sampler.measure(case, op, size, parts[done])
        if writer and file and row is not None:
            rows += 1
            writer.writerow(row)
            file.flush()
            _show_progress(done + 1, len(cells), f"{op} {case.scope} {case.nodes}x{case.gpus_per_node} {size} B")
    if file:
        file.close()
        print(f"collectives: {rows} rows in {arguments.output}", file=sys.stderr)
        for reason, left_out in sampler.left_out.items():
            print(describe_left_out(reason, left_out), file=sys.stderr)


def _compute_shares(sizes: Sequence[int], budget_s: float) -> list[float]:
    """Part of the time left that each case may take: twice as much for every next size, and a little for each."""
    order = sorted(set(sizes))
    grown = [2.0 ** order.index(size) for size in sizes]
    floor = min(CELL_S, budget_s / max(len(sizes), 1) / 2) * sum(grown) / budget_s
    weights = [growth + floor for growth in grown]
    return [weight / sum(weights[at:]) for at, weight in enumerate(weights)]


def _show_progress(done: int, of: int, what: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(
            f"\r[{'#' * (30 * done // of):<30}] {done}/{of} {what[:60]:<60}" + ("\n" if done == of else "")
        )
        sys.stderr.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run under torchrun; 0: rows were written."""
    arguments = _parse_arguments(argv)
    problem = f"{sys.executable} has no torch" if torch is None else ""
    if problem or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        print(f"collectives: {problem or 'at least two ranks are needed: --nproc-per-node 2 ...'}", file=sys.stderr)
        return 2
    world = join_world(arguments.backend, arguments.zones)
    try:
        run(world, arguments)
        dist.barrier(group=world.control)
    finally:
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
