"""Kineto events: what matters of a profiler's trace, gathered into columns in one pass.

    events = gather(iterate_members(iterate_chunks(file)))
    events.kernel_start, events.kernel_end, events.launch_at, events.steps

Of two GB of text some hundred MB of columns are left: kernels with what launched them, host operators with the thread
they ran on, annotations, collectives with their group. Times are seconds from the first event.

Kineto groups: which way of splitting a collective of a profiler's trace belongs to.

    way_of_name("TENSOR_MODEL_PARALLEL_GROUP")            # "tensor", as Megatron calls its groups
    way_of_name("mesh_dp_shard")                          # "data", as a device mesh calls them
    way_of_use({("all_gather", "forward"), ("reduce_scatter", "backward")})       # "data": sharded parameters

What the user says of a group comes first, then its name, then its ranks, then what it is used for: the last is a
guess, and is told as one.

Kineto spans: intervals of a trace as arrays: what lies within what, and who owns each moment.

inside(starts, intervals)                 # which moments lie in any of the intervals
shares(start, end, sort, 0.0, 1.0, 3)     # seconds that each sort owns of a second; they add up with the gap
runs(start, end, sort, 3, join_s=1e-5)    # the same as stretches of time, one after the other
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crosszone.calibrate.kineto_json import EVENTS, CutOffError
from crosszone.errors import FileError, InvalidError, Notice

# Ways of splitting whose messages are told apart.
WAYS = ("tensor", "context", "experts", "pipeline", "data", "other")
SHORT = {"tp": "tensor", "cp": "context", "ep": "experts", "pp": "pipeline", "dp": "data"}
_DATA = {"dp", "ddp", "edp", "data", "fsdp", "hsdp", "replicate", "replica", "shard", "zero"}
_PIPELINE = {"pp", "pipeline", "pipe", "embedding", "embd", "embed"}
_EXPERTS = {"ep", "expert", "experts", "moe"}
_TENSOR = {"tp", "tensor"}
_CONTEXT = {"cp", "context", "ring", "ulysses", "sequence"}
_COLLECTIVES = (
    ("all_to_all", ("alltoall", "a2a")),
    ("reduce_scatter", ("reducescatter",)),
    ("all_gather", ("allgather",)),
    ("all_reduce", ("allreduce",)),
    ("send", ("sendrecv", "send", "recv", "isend", "irecv", "p2p")),
    ("broadcast", ("broadcast", "bcast")),
    ("reduce", ("reduce",)),
    ("gather", ("gather",)),
    ("scatter", ("scatter",)),
    ("barrier", ("barrier",)),
)


@dataclass(frozen=True)
class Group:
    """A process group as a trace names it; what it does not say is empty."""

    name: str = ""
    about: str = ""
    """What the framework calls it."""
    size: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def shown(self) -> str:
        """What a reader calls it."""
        return self.about if self.about not in ("", "undefined") else self.name or "unnamed"


def collective_of(text: str) -> str:
    """The plain name of a collective from how a kernel or an annotation spells it; empty: none.

    `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`, `nccl:_reduce_scatter_base`, `allgather_into_tensor_coalesced`.
    """
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    return next((name for name, parts in _COLLECTIVES if any(part in plain for part in parts)), "")


def way_of_name(text: str) -> str | None:
    """The way of splitting that a group's name tells; None: it does not."""
    words = set(re.split(r"[^a-z0-9]+|(?<=[a-z])(?=\d)", text.lower()))
    if words & _DATA:
        return "data"
    if words & _PIPELINE:
        return "pipeline"
    if words & _EXPERTS:
        return "tensor" if words & _TENSOR and "model" not in words else "experts"
    if words & _TENSOR:
        return "tensor"
    return "context" if words & _CONTEXT else None


def way_of_ranks(group: Group, degrees: Mapping[str, int]) -> str | None:
    """The way whose degree and distance between ranks are those of the group. [K44]

    Ranks count over tensor, context, data, pipeline in this order: neighbours of a way lie as far apart as the
    product of the degrees before it. None: no way, or more than one, fits.
    """
    if len(group.ranks) < 2 or not degrees:
        return None
    apart = group.ranks[1] - group.ranks[0]
    tp, cp, dp, pp = (max(1, degrees.get(key, 1)) for key in ("tp", "cp", "dp", "pp"))
    fits = {
        "tensor": (tp, 1),
        "context": (cp, tp),
        "data": (dp, tp * cp),
        "pipeline": (pp, tp * cp * dp),
    }
    found = [way for way, (size, far) in fits.items() if size > 1 and (size, far) == (len(group.ranks), apart)]
    if not found and cp > 1 and (len(group.ranks), apart) == (dp * cp, tp):
        return "data"  # gradients are summed over context and data together
    return found[0] if len(found) == 1 else None


def way_of_use(uses: Collection[tuple[str, str]]) -> str:
    """The likely way of a group from the collectives it does, each with the pass it does them in. [K44]

    Messages between two ranks: pipeline. All-to-all: experts. Sums in the forward pass: tensor, for gradients are
    summed after it. Else data.
    """
    kinds = {collective for collective, _ in uses} - {"barrier", ""}
    if "all_to_all" in kinds:
        return "experts"
    if kinds and kinds <= {"send"}:
        return "pipeline"
    if any(kind in ("all_reduce", "reduce_scatter") and where in ("forward", "recompute") for kind, where in uses):
        return "tensor"
    return "data" if kinds else "other"


def parse_group_assignments(lines: Sequence[str] | None) -> dict[str, str]:
    """`NAME=WAY` lines as ways by group name; `InvalidError` for a way that is none."""
    found: dict[str, str] = {}
    for line in lines or ():
        name, equals, way = line.rpartition("=")
        if not equals or not name.strip():
            raise InvalidError(Notice(code="assignment_malformed", field="--group", value=line))
        word = SHORT.get(way.strip().lower(), way.strip().lower())
        if word not in WAYS:
            params = {"allowed": [*SHORT, "other"], "nearest": "tp"}
            raise InvalidError(Notice(code="not_one_of", field="--group", value=way, params=params))
        found[name.strip().lower()] = word
    return found


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NOBODY = -1


def merged(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """The union of intervals: those that touch become one, in the order of their start."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]


def inside(moments: Floats, intervals: tuple[Floats, Floats]) -> NDArray[np.bool_]:
    """Whether each moment lies in one of the intervals, which do not overlap and are in order."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(moments), bool)
    at = np.searchsorted(start, moments, side="right") - 1
    return np.asarray((at >= 0) & (moments <= end[np.maximum(at, 0)]))


def inside_by(key: Any, moments: Floats, of: Any, start: Floats, end: Floats) -> NDArray[np.bool_]:
    """Whether each moment lies in an interval of the same key: of its own thread."""
    found = np.zeros(len(moments), bool)
    for one in np.unique(of):
        here, there = key == one, of == one
        found[here] = inside(moments[here], merged(start[there], end[there]))
    return found


def total_s(start: Floats, end: Floats) -> float:
    """Seconds that any of the intervals covers."""
    begun, ended = merged(start, end)
    return float((ended - begun).sum())


def shares(start: Floats, end: Floats, sort: Ints, low: float, high: float, sorts: int) -> Floats:
    """Seconds between two times that each sort owns, and last those that nobody owns; they add up. [K42]

    Where several run at once the moment belongs to the sort with the smallest number.
    """
    found = np.zeros(sorts + 1)
    at, owner = _owners(np.clip(start, low, high), np.clip(end, low, high), sort, sorts)
    if len(at):
        length = np.diff(at)
        for one in range(sorts):
            found[one] = length[owner == one].sum()
    found[sorts] = max(0.0, (high - low) - found[:sorts].sum())
    return found


def runs(start: Floats, end: Floats, sort: Ints, sorts: int, join_s: float = 0.0) -> tuple[Floats, Floats, Ints]:
    """Stretches of time with one owner, in order; pauses of at most `join_s` within a stretch belong to it."""
    at, owner = _owners(start, end, sort, sorts)
    if not len(at):
        return np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
    begin, close = at[:-1], at[1:]
    owned = (owner != NOBODY) & (close > begin)
    begin, close, owner = begin[owned], close[owned], owner[owned]
    if not len(begin):
        return begin, close, owner
    first = np.concatenate([[True], (owner[1:] != owner[:-1]) | (begin[1:] - close[:-1] > join_s)])
    last = np.concatenate([first[1:], [True]])
    return begin[first], close[last], owner[first]


def _owners(start: Floats, end: Floats, sort: Ints, sorts: int) -> tuple[Floats, Ints]:
    """Times at which something begins or ends, and who owns the time from each to the next."""
    lasting = end > start
    start, end, sort = start[lasting], end[lasting], sort[lasting]
    if not len(start):
        return np.zeros(0), np.zeros(0, np.int64)
    at = np.concatenate([start, end])
    order = np.argsort(at, kind="stable")
    step = np.concatenate([np.ones(len(start), np.int8), np.full(len(end), -1, np.int8)])[order]
    kind = np.concatenate([sort, sort])[order]
    owner = np.full(len(at) - 1, NOBODY, np.int64)
    for one in range(sorts - 1, -1, -1):
        if (kind == one).any():
            running = np.cumsum(np.where(kind == one, step, 0), dtype=np.int32)[:-1] > 0
            owner[running] = one
    return at[order], owner


MOST_TOLD = 20
MOST_NAMES = 100_000  # Names of kernels remembered at once
MOST_COLUMNS = 40_000_000  # Events of one sort
MOST_NOTED = 200_000  # Steps, annotations of updates, threads or streams: each is an object of its own
MOST_RANKS = 4_000_000  # Collectives that occur, each with the ranks of its group
MOST_NAME = 1000  # Characters of a name that are looked at
# Host operators: any; run by the backward engine; recorded for a backward pass to come; a call of a collective.
PLAIN, ENGINE, FRESH, COLLECTIVE = 0, 1, 2, 3
# Device events: a kernel that computes, one that communicates, a copy between host and device.
WORK, MESSAGE, COPY = 0, 1, 2
_ENGINE = "autograd::engine::evaluate_function"
_MESSAGES = re.compile(r"nccl|rccl|oneccl|hccl|nvshmem", re.IGNORECASE)
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,9})")
_COMMUNICATES = re.compile(r"(nccl|gloo|mpi|ucc|xccl|hccl):", re.IGNORECASE)
_UPDATE = re.compile(r"Optimizer\.(step|zero_grad)#|\boptimi[sz]er\b", re.IGNORECASE)
_HOST_COPY = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost", re.IGNORECASE)
_DEVICE = {"kernel": WORK, "gpu_memcpy": COPY, "gpu_memset": WORK, "memcpy": COPY, "memset": WORK}
_LAUNCH = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "xpu_runtime", "privateuse1_runtime"}
_OPERATOR = {"cpu_op", "operator"}
_REMARK = {"user_annotation"}


@dataclass
class Columns:
    """Numbers of events of one sort, appended one by one."""

    forms: str
    columns: tuple[array[Any], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.columns = tuple(array(form) for form in self.forms)

    def __len__(self) -> int:
        return len(self.columns[0])

    def add(self, *values: float) -> None:
        """One event."""
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The columns, without a copy."""
        return tuple(np.frombuffer(c, c.typecode) if len(c) else np.zeros(0, c.typecode) for c in self.columns)


@dataclass(frozen=True)
class Remark:
    """An annotation of the host: a step, an update, a collective."""

    name: str
    thread: int
    start_s: float
    end_s: float


@dataclass(eq=False)
class Events:
    """What a trace holds."""

    operators: Columns = field(default_factory=lambda: Columns("iddb"))
    """Thread, start, end, sort."""
    launches: Columns = field(default_factory=lambda: Columns("qid"))
    """Correlation, thread, start."""
    kernels: Columns = field(default_factory=lambda: Columns("iddqqbi"))
    """Stream, start, end, correlation, external id, sort, collective."""
    collectives: Columns = field(default_factory=lambda: Columns("iddqi"))
    """Host calls: thread, start, end, external id, collective."""
    remarks: list[Remark] = field(default_factory=list)
    steps: list[tuple[int, Remark]] = field(default_factory=list)
    """Number and annotation of each step that the profiler was told of."""
    backward_threads: set[int] = field(default_factory=set)
    """Threads on which arrows from forward operators end."""
    kinds: list[tuple[str, Group]] = field(default_factory=list)
    """Collectives that occur: name and group."""
    about: dict[str, Any] = field(default_factory=dict)
    """Members of the document besides its events."""
    count: int = 0
    bad: int = 0
    notices: list[Notice] = field(default_factory=list)
    first_us: float | None = None
    """Time that 0 s stands for, in the clock of the trace."""


class _Gatherer:
    """Takes events one by one."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found = Events()
        self.threads: dict[Any, int] = {}
        self.streams: dict[Any, int] = {}
        self.kind_at: dict[tuple[str, Group], int] = {}
        self.sort_of: dict[str, tuple[int, str]] = {}
        self.ranks = 0
        """Collectives that occur and the ranks of their groups, together."""

    def batch(self, events: list[Any]) -> None:
        """A list of events, as the reader gives them."""
        found = self.found
        for event in events:
            found.count += 1
            try:
                mark = event["ph"]
            except (TypeError, KeyError):
                self.wrong("kineto_event_form", event if isinstance(event, str | int | float) else None)
                continue
            if mark == "X":
                sort = event.get("cat")
                sort = sort.lower() if isinstance(sort, str) else ""
                if sort in _OPERATOR or sort in _DEVICE or sort in _LAUNCH or sort in _REMARK:
                    self.lasting(event, sort)
            elif mark == "f" and event.get("cat") == "fwdbwd":
                found.backward_threads.add(self.thread(event))

    def lasting(self, event: Mapping[str, Any], sort: str) -> None:
        """An event with a start and a length, in microseconds."""
        start, length = event.get("ts"), event.get("dur", 0)
        try:
            start, length = float(start), float(length)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            self.wrong("kineto_no_time", event.get("name"))
            return
        if not (0 <= length < 1e15 and abs(start) < 1e18):  # not true of what is no number either
            self.wrong("kineto_negative" if length < 0 else "kineto_no_time", event.get("name"), dur=length)
            return
        found = self.found
        if found.first_us is None:
            found.first_us = start
        begin = (start - found.first_us) * 1e-6
        end = begin + length * 1e-6
        name, args = event.get("name"), event.get("args")
        name = name[:MOST_NAME] if isinstance(name, str) else ""
        args = args if isinstance(args, dict) else {}
        if sort in _OPERATOR:
            self.operator(event, name, args, begin, end)
        elif sort in _LAUNCH:
            found.launches.add(_whole(args.get("correlation")), self.thread(event), begin)
        elif sort in _DEVICE:
            self.kernel(event, name, args, begin, end, _DEVICE[sort])
        else:
            self.remark(event, name, args, begin, end)

    def operator(self, event: Mapping[str, Any], name: str, args: dict[str, Any], begin: float, end: float) -> None:
        thread = self.thread(event)
        if name.startswith(_ENGINE):
            sort = ENGINE
        elif name.startswith(("c10d::", "_c10d_functional::")) or name == "record_param_comms":
            sort = COLLECTIVE
            if name == "record_param_comms" and "Collective name" in args:
                kind = self.kind(str(args["Collective name"]), args)
                self.found.collectives.add(thread, begin, end, _whole(args.get("External id")), kind)
        else:
            sort = FRESH if "Sequence number" in args and not args.get("Fwd thread id") else PLAIN
        self.found.operators.add(thread, begin, end, sort)

    def kernel(
        self, event: Mapping[str, Any], name: str, args: dict[str, Any], begin: float, end: float, sort: int
    ) -> None:
        stream = (_key(event.get("pid")), _key(event.get("tid")))
        at = self.streams.setdefault(stream, len(self.streams))
        kind = -1
        if sort == WORK:
            sort, collective = self.sort(name)
            if sort == MESSAGE:
                kind = self.kind(str(args.get("Collective name") or collective), args)
        elif not _HOST_COPY.search(name):
            sort = WORK
        ids = _whole(args.get("correlation")), _whole(args.get("External id"))
        self.found.kernels.add(at, begin, end, *ids, sort, kind)

    def remark(self, event: Mapping[str, Any], name: str, args: dict[str, Any], begin: float, end: float) -> None:
        thread = self.thread(event)
        step = _STEP.match(name)
        if step:
            self.found.steps.append((int(step[1]), Remark(name, thread, begin, end)))
        elif _COMMUNICATES.match(name):
            kind = self.kind(name.partition(":")[2], args)
            self.found.collectives.add(thread, begin, end, _whole(args.get("External id")), kind)
        elif _UPDATE.search(name):
            self.found.remarks.append(Remark(name, thread, begin, end))

    def sort(self, name: str) -> tuple[int, str]:
        """Whether a kernel computes or communicates, and what it then does."""
        found = self.sort_of.get(name)
        if found is None:
            if len(self.sort_of) > MOST_NAMES:
                self.sort_of.clear()
            found = (MESSAGE, collective_of(name)) if _MESSAGES.search(name) else (WORK, "")
            self.sort_of[name] = found
        return found

    def kind(self, collective: str, args: Mapping[str, Any]) -> int:
        """Position of a collective with its group among those seen."""
        ranks = args.get("Process Group Ranks")
        group = Group(
            name=str(args.get("Process Group Name", ""))[:MOST_NAME],
            about=str(args.get("Process Group Description", ""))[:MOST_NAME],
            size=max(0, _whole(args.get("Group size"), 0)),
            ranks=tuple(map(int, re.findall(r"\d{1,9}", ranks)[:65536])) if isinstance(ranks, str) else (),
        )
        key = (collective_of(collective) or collective[:40], group)
        at = self.kind_at.setdefault(key, len(self.kind_at))
        if at == len(self.found.kinds):
            self.found.kinds.append(key)
            self.ranks += 1 + len(group.ranks)
        return at

    def thread(self, event: Mapping[str, Any]) -> int:
        """Position of an event's thread among those seen."""
        return self.threads.setdefault(_key(event.get("tid")), len(self.threads))

    def check_size(self) -> None:
        """`FileError` where more has been gathered than can be held."""
        found = self.found
        columns = (found.operators, found.kernels, found.launches, found.collectives)
        noted: tuple[Sized, ...] = (found.remarks, found.steps, self.threads, self.streams)
        sizes = ((max(map(len, columns)), MOST_COLUMNS), (max(map(len, noted)), MOST_NOTED), (self.ranks, MOST_RANKS))
        for size, limit in sizes:
            if size > limit:
                raise FileError(
                    Notice(code="kineto_too_many", value=self.file, params={"limit": limit}, file=self.file)
                )

    def wrong(self, code: str, value: Any, **params: Any) -> None:
        """Count and tell an event that cannot be used."""
        found = self.found
        found.bad += 1
        value = value[:MOST_NAME] if isinstance(value, str) else value
        if len(found.notices) < MOST_TOLD:
            about = {"event": found.count, **params}
            told = Notice(code=code, field=f"{EVENTS}[{found.count - 1}]", value=value, params=about, level="warning")
            found.notices.append(told.at(self.file, None))


def gather(members: Iterable[tuple[str, Any]], file: str = "<file>") -> Events:
    """The events of a trace; `FileError` where it is no trace.

    A file that ends in the middle gives what came before, and a notice.
    """
    taker = _Gatherer(file)
    found = taker.found
    cut: list[Notice] = []
    seen = False
    try:
        for name, value in members:
            if name == EVENTS:
                seen = True
                taker.batch(value if isinstance(value, list) else [value])
                taker.check_size()
            elif len(found.about) < 200:
                found.about[name[:100]] = value
    except CutOffError as error:
        cut = [Notice(code="kineto_cut", level="warning", value=file, params=error.notices[0].params, file=file)]
    if not seen and not cut:
        raise FileError(Notice(code="kineto_no_events", value=file, file=file))
    if not len(found.kernels) and not len(found.operators):
        raise InvalidError(Notice(code="kineto_empty", value=file, params={"events": found.count}, file=file), *cut)
    if found.bad:
        params = {"count": found.bad, "told": len(found.notices)}
        told = Notice(code="kineto_events_bad", level="warning", params=params, file=file)
        found.notices.insert(0, told)
    found.notices += cut
    return found


def _key(value: Any) -> int | str | None:
    """A process or a thread as a trace names it; None where it has no name."""
    return value[:MOST_NAME] if isinstance(value, str) else value if isinstance(value, int) else None


def _whole(value: Any, missing: int = -1) -> int:
    return value if isinstance(value, int) and abs(value) < 2**62 else missing
