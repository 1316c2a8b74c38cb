"""Events of a Kineto trace (PyTorch profiler): gathered into columns in one pass, their groups, and intervals.

    events = gather(iterate_members(iterate_chunks(file)))
    events.kernels.to_arrays(), events.launches.to_arrays(), events.steps

Of two GB of text some hundred MB of columns are left: kernels with what launched them, host operators with the thread
they ran on, annotations, collectives with their group. Times are seconds from the first event.

The parallel dimension of a collective is inferred from its process group:

    infer_dimension_from_name("TENSOR_MODEL_PARALLEL_GROUP")    # "tensor", as Megatron calls its groups
    infer_dimension_from_name("mesh_dp_shard")                  # "data", as a device mesh calls them
    infer_dimension_from_use({("reduce_scatter", "backward")})  # "data": gradients of sharded parameters

What the user says of a group comes first, then its name, then its ranks, then what it is used for: the last is a
guess, and a notice says so.

Intervals of a trace are arrays of starts and ends:

    find_inside(moments, intervals)                   # which moments lie in any of the intervals
    measure_owned_s(start, end, kinds, 0.0, 1.0, 3)   # seconds of one that each kind owns, and those of nobody
    list_stretches(start, end, kinds, 3, join_s=1e-5) # the same as stretches of time, one after the other
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
from crosszone.errors import FileError, InvalidError, Notice, build_choice_error

# Parallel dimensions whose messages are reported apart.
DIMENSIONS = ("tensor", "context", "experts", "pipeline", "data", "other")
SHORT_DIMENSIONS = {"tp": "tensor", "cp": "context", "ep": "experts", "pp": "pipeline", "dp": "data"}
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
class ProcessGroup:
    """A process group as a trace names it; what it does not say is empty."""

    name: str = ""
    about: str = ""
    """What the framework calls it."""
    size: int = 0
    ranks: tuple[int, ...] = ()

    @property
    def display_name(self) -> str:
        """The name to show: the framework's where it has one."""
        return self.about if self.about not in ("", "undefined") else self.name or "unnamed"


def parse_collective_name(text: str) -> str:
    """The plain name of a collective from how a kernel or an annotation spells it; empty: none.

    `ncclDevKernel_AllReduce_Sum_bf16_RING_LL`, `nccl:_reduce_scatter_base`, `allgather_into_tensor_coalesced`.
    """
    plain = re.sub(r"[^a-z0-9]", "", text.lower())
    return next((name for name, parts in _COLLECTIVES if any(part in plain for part in parts)), "")


def infer_dimension_from_name(text: str) -> str | None:
    """The parallel dimension that a group's name says; None: it says none."""
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


def infer_dimension_from_ranks(group: ProcessGroup, degrees: Mapping[str, int]) -> str | None:
    """The dimension whose degree and distance between ranks are those of the group. [K44]

    Ranks count over tensor, context, data, pipeline in this order: neighbours of a dimension lie as far apart as the
    product of the degrees before it. None: no dimension, or more than one, fits.
    """
    if len(group.ranks) < 2 or not degrees:
        return None
    distance = group.ranks[1] - group.ranks[0]
    tp, cp, dp, pp = (max(1, degrees.get(key, 1)) for key in ("tp", "cp", "dp", "pp"))
    expected = {
        "tensor": (tp, 1),
        "context": (cp, tp),
        "data": (dp, tp * cp),
        "pipeline": (pp, tp * cp * dp),
    }
    fitting = [
        dimension
        for dimension, (size, expected_distance) in expected.items()
        if size > 1 and (size, expected_distance) == (len(group.ranks), distance)
    ]
    if not fitting and cp > 1 and (len(group.ranks), distance) == (dp * cp, tp):
        return "data"  # gradients are summed over context and data together
    return fitting[0] if len(fitting) == 1 else None


def infer_dimension_from_use(uses: Collection[tuple[str, str]]) -> str:
    """The likely dimension of a group from the collectives it does, each with the pass it does them in. [K44]

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
    """`NAME=DIMENSION` lines as dimensions by group name; `InvalidError` for an unknown dimension."""
    by_group: dict[str, str] = {}
    for line in lines or ():
        name, equals, dimension = line.rpartition("=")
        if not equals or not name.strip():
            raise InvalidError(Notice(code="assignment_malformed", field="--group", value=line))
        dimension_name = SHORT_DIMENSIONS.get(dimension.strip().lower(), dimension.strip().lower())
        if dimension_name not in DIMENSIONS:
            raise build_choice_error("--group", dimension, [*SHORT_DIMENSIONS, "other"])
        by_group[name.strip().lower()] = dimension_name
    return by_group


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NO_OWNER = -1


def merge_intervals(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """The union of intervals: those that touch become one, in the order of their start."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], reach[last]


def find_inside(moments: Floats, intervals: tuple[Floats, Floats]) -> NDArray[np.bool_]:
    """Whether each moment lies in one of the intervals, which do not overlap and are in order."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(moments), bool)
    at = np.searchsorted(start, moments, side="right") - 1
    return np.asarray((at >= 0) & (moments <= end[np.maximum(at, 0)]))


def find_inside_by_key(key: Any, moments: Floats, interval_keys: Any, start: Floats, end: Floats) -> NDArray[np.bool_]:
    """Whether each moment lies in an interval of the same key: of its own thread."""
    is_inside = np.zeros(len(moments), bool)
    for owner_key in np.unique(interval_keys):
        moments_of_key, intervals_of_key = key == owner_key, interval_keys == owner_key
        is_inside[moments_of_key] = find_inside(
            moments[moments_of_key], merge_intervals(start[intervals_of_key], end[intervals_of_key])
        )
    return is_inside


def measure_covered_s(start: Floats, end: Floats) -> float:
    """Seconds that any of the intervals covers."""
    begun, ended = merge_intervals(start, end)
    return float((ended - begun).sum())


def measure_owned_s(start: Floats, end: Floats, kinds: Ints, low: float, high: float, kind_count: int) -> Floats:
    """Seconds between two times that each kind owns, and last those that nobody owns; they add up. [K42]

    Where several run at once the moment belongs to the kind with the smallest number.
    """
    owned_s = np.zeros(kind_count + 1)
    times, owner = _find_owners(np.clip(start, low, high), np.clip(end, low, high), kinds, kind_count)
    if len(times):
        length = np.diff(times)
        for kind in range(kind_count):
            owned_s[kind] = length[owner == kind].sum()
    owned_s[kind_count] = max(0.0, (high - low) - owned_s[:kind_count].sum())
    return owned_s


def list_stretches(
    start: Floats, end: Floats, kinds: Ints, kind_count: int, join_s: float = 0.0
) -> tuple[Floats, Floats, Ints]:
    """Stretches of time with one owner, in order; pauses of at most `join_s` within a stretch belong to it."""
    times, owner = _find_owners(start, end, kinds, kind_count)
    if not len(times):
        return np.zeros(0), np.zeros(0), np.zeros(0, np.int64)
    begin, close = times[:-1], times[1:]
    owned = (owner != NO_OWNER) & (close > begin)
    begin, close, owner = begin[owned], close[owned], owner[owned]
    if not len(begin):
        return begin, close, owner
    first = np.concatenate([[True], (owner[1:] != owner[:-1]) | (begin[1:] - close[:-1] > join_s)])
    last = np.concatenate([first[1:], [True]])
    return begin[first], close[last], owner[first]


def _find_owners(start: Floats, end: Floats, kinds: Ints, kind_count: int) -> tuple[Floats, Ints]:
    """Times at which something begins or ends, and who owns the time from each to the next."""
    lasting = end > start
    start, end, kinds = start[lasting], end[lasting], kinds[lasting]
    if not len(start):
        return np.zeros(0), np.zeros(0, np.int64)
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    step = np.concatenate([np.ones(len(start), np.int8), np.full(len(end), -1, np.int8)])[order]
    kinds_in_order = np.concatenate([kinds, kinds])[order]
    owner = np.full(len(times) - 1, NO_OWNER, np.int64)
    for kind in range(kind_count - 1, -1, -1):
        if (kinds_in_order == kind).any():
            running = np.cumsum(np.where(kinds_in_order == kind, step, 0), dtype=np.int32)[:-1] > 0
            owner[running] = kind
    return times[order], owner


MOST_NOTICES = 20
MOST_NAMES = 100_000  # Names of kernels remembered at once
MOST_COLUMNS = 40_000_000  # Events of one kind
MOST_OBJECTS = 200_000  # Steps, annotations of updates, threads or streams: each is an object of its own
MOST_RANKS = 4_000_000  # Collectives that occur, each with the ranks of its group
MOST_NAME = 1000  # Characters of a name that are looked at
# Host operators: any; run by the backward engine; recorded for a backward pass to come; a call of a collective.
PLAIN_OPERATOR, ENGINE_OPERATOR, FORWARD_OPERATOR, COLLECTIVE_OPERATOR = 0, 1, 2, 3
# Device events: a kernel that computes, one that communicates, a copy between host and device.
COMPUTE_KERNEL, MESSAGE_KERNEL, COPY_KERNEL = 0, 1, 2
_ENGINE_PREFIX = "autograd::engine::evaluate_function"
_MESSAGE_KERNEL = re.compile(r"nccl|rccl|oneccl|hccl|nvshmem", re.IGNORECASE)
_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,9})")
_COMMUNICATES = re.compile(r"(nccl|gloo|mpi|ucc|xccl|hccl):", re.IGNORECASE)
_UPDATE = re.compile(r"Optimizer\.(step|zero_grad)#|\boptimi[sz]er\b", re.IGNORECASE)
_HOST_COPY = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost", re.IGNORECASE)
_DEVICE = {
    "kernel": COMPUTE_KERNEL,
    "gpu_memcpy": COPY_KERNEL,
    "gpu_memset": COMPUTE_KERNEL,
    "memcpy": COPY_KERNEL,
    "memset": COMPUTE_KERNEL,
}
_LAUNCH = {"cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "xpu_runtime", "privateuse1_runtime"}
_OPERATOR = {"cpu_op", "operator"}
_ANNOTATION = {"user_annotation"}


@dataclass
class EventColumns:
    """Numbers of events of one kind, appended one by one."""

    typecodes: str
    columns: tuple[array[Any], ...] = field(init=False)

    def __post_init__(self) -> None:
        self.columns = tuple(array(form) for form in self.typecodes)

    def __len__(self) -> int:
        return len(self.columns[0])

    def add(self, *values: float) -> None:
        """One event."""
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)

    def to_arrays(self) -> tuple[NDArray[Any], ...]:
        """The columns, without a copy."""
        return tuple(np.frombuffer(c, c.typecode) if len(c) else np.zeros(0, c.typecode) for c in self.columns)


@dataclass(frozen=True)
class HostAnnotation:
    """An annotation of the host: a step, an update, a collective."""

    name: str
    thread: int
    start_s: float
    end_s: float


@dataclass(eq=False)
class Events:
    """What a trace holds, as columns."""

    operators: EventColumns = field(default_factory=lambda: EventColumns("iddb"))
    """Thread, start, end, kind of operator."""
    launches: EventColumns = field(default_factory=lambda: EventColumns("qid"))
    """Correlation, thread, start."""
    kernels: EventColumns = field(default_factory=lambda: EventColumns("iddqqbi"))
    """Stream, start, end, correlation, external id, kind of kernel, collective."""
    collectives: EventColumns = field(default_factory=lambda: EventColumns("iddqi"))
    """Host calls: thread, start, end, external id, collective."""
    updates: list[HostAnnotation] = field(default_factory=list)
    steps: list[tuple[int, HostAnnotation]] = field(default_factory=list)
    """Number and annotation of each step that `profiler.step()` marked."""
    backward_threads: set[int] = field(default_factory=set)
    """Threads on which arrows from forward operators end."""
    kinds: list[tuple[str, ProcessGroup]] = field(default_factory=list)
    """Collectives that occur: name and group."""
    about: dict[str, Any] = field(default_factory=dict)
    """Members of the document besides its events."""
    count: int = 0
    bad: int = 0
    notices: list[Notice] = field(default_factory=list)
    first_us: float | None = None
    """Time that 0 s stands for, in the clock of the trace."""


class _EventGatherer:
    """Takes the events of a trace one by one and appends what matters to columns."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.events = Events()
        self.threads: dict[Any, int] = {}
        self.streams: dict[Any, int] = {}
        self.collective_numbers: dict[tuple[str, ProcessGroup], int] = {}
        self.kernel_cache: dict[str, tuple[int, str]] = {}
        self.ranks = 0
        """Collectives that occur and the ranks of their groups, together."""

    def add_batch(self, events: list[Any]) -> None:
        """Add a list of events, as the reader gives them."""
        gathered = self.events
        for event in events:
            gathered.count += 1
            try:
                mark = event["ph"]
            except (TypeError, KeyError):
                self.add_bad_event("kineto_event_form", event if isinstance(event, str | int | float) else None)
                continue
            if mark == "X":
                category = event.get("cat")
                category = category.lower() if isinstance(category, str) else ""
                if category in _OPERATOR or category in _DEVICE or category in _LAUNCH or category in _ANNOTATION:
                    self.add_complete_event(event, category)
            elif mark == "f" and event.get("cat") == "fwdbwd":
                gathered.backward_threads.add(self.register_thread(event))

    def add_complete_event(self, event: Mapping[str, Any], category: str) -> None:
        """Add a complete event ("X"): one with a start and a length, in microseconds."""
        start, length = event.get("ts"), event.get("dur", 0)
        try:
            start, length = float(start), float(length)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            self.add_bad_event("kineto_no_time", event.get("name"))
            return
        if not (0 <= length < 1e15 and abs(start) < 1e18):  # a NaN fails this test too
            self.add_bad_event("kineto_negative" if length < 0 else "kineto_no_time", event.get("name"), dur=length)
            return
        gathered = self.events
        if gathered.first_us is None:
            gathered.first_us = start
        begin = (start - gathered.first_us) * 1e-6
        end = begin + length * 1e-6
        name, args = event.get("name"), event.get("args")
        name = name[:MOST_NAME] if isinstance(name, str) else ""
        args = args if isinstance(args, dict) else {}
        if category in _OPERATOR:
            self.add_operator(event, name, args, begin, end)
        elif category in _LAUNCH:
            gathered.launches.add(_parse_integer(args.get("correlation")), self.register_thread(event), begin)
        elif category in _DEVICE:
            self.add_kernel(event, name, args, begin, end, _DEVICE[category])
        else:
            self.add_annotation(event, name, args, begin, end)

    def add_operator(self, event: Mapping[str, Any], name: str, args: dict[str, Any], begin: float, end: float) -> None:
        thread = self.register_thread(event)
        if name.startswith(_ENGINE_PREFIX):
            operator_kind = ENGINE_OPERATOR
        elif name.startswith(("c10d::", "_c10d_functional::")) or name == "record_param_comms":
            operator_kind = COLLECTIVE_OPERATOR
            if name == "record_param_comms" and "Collective name" in args:
                collective = self.register_collective(str(args["Collective name"]), args)
                self.events.collectives.add(thread, begin, end, _parse_integer(args.get("External id")), collective)
        else:
            is_forward = "Sequence number" in args and not args.get("Fwd thread id")
            operator_kind = FORWARD_OPERATOR if is_forward else PLAIN_OPERATOR
        self.events.operators.add(thread, begin, end, operator_kind)

    def add_kernel(
        self, event: Mapping[str, Any], name: str, args: dict[str, Any], begin: float, end: float, kernel_kind: int
    ) -> None:
        stream = (_parse_id(event.get("pid")), _parse_id(event.get("tid")))
        at = self.streams.setdefault(stream, len(self.streams))
        number = -1
        if kernel_kind == COMPUTE_KERNEL:
            kernel_kind, collective = self.classify_kernel(name)
            if kernel_kind == MESSAGE_KERNEL:
                number = self.register_collective(str(args.get("Collective name") or collective), args)
        elif not _HOST_COPY.search(name):
            kernel_kind = COMPUTE_KERNEL
        ids = _parse_integer(args.get("correlation")), _parse_integer(args.get("External id"))
        self.events.kernels.add(at, begin, end, *ids, kernel_kind, number)

    def add_annotation(
        self, event: Mapping[str, Any], name: str, args: dict[str, Any], begin: float, end: float
    ) -> None:
        thread = self.register_thread(event)
        step = _STEP.match(name)
        if step:
            self.events.steps.append((int(step[1]), HostAnnotation(name, thread, begin, end)))
        elif _COMMUNICATES.match(name):
            collective = self.register_collective(name.partition(":")[2], args)
            self.events.collectives.add(thread, begin, end, _parse_integer(args.get("External id")), collective)
        elif _UPDATE.search(name):
            self.events.updates.append(HostAnnotation(name, thread, begin, end))

    def classify_kernel(self, name: str) -> tuple[int, str]:
        """Whether a kernel computes or communicates, and what it then does."""
        classified = self.kernel_cache.get(name)
        if classified is None:
            if len(self.kernel_cache) > MOST_NAMES:
                self.kernel_cache.clear()
            classified = (
                (MESSAGE_KERNEL, parse_collective_name(name)) if _MESSAGE_KERNEL.search(name) else (COMPUTE_KERNEL, "")
            )
            self.kernel_cache[name] = classified
        return classified

    def register_collective(self, collective: str, args: Mapping[str, Any]) -> int:
        """Position of a collective with its group among those seen."""
        ranks = args.get("Process Group Ranks")
        group = ProcessGroup(
            name=str(args.get("Process Group Name", ""))[:MOST_NAME],
            about=str(args.get("Process Group Description", ""))[:MOST_NAME],
            size=max(0, _parse_integer(args.get("Group size"), 0)),
            ranks=tuple(map(int, re.findall(r"\d{1,9}", ranks)[:65536])) if isinstance(ranks, str) else (),
        )
        key = (parse_collective_name(collective) or collective[:40], group)
        number = self.collective_numbers.setdefault(key, len(self.collective_numbers))
        if number == len(self.events.kinds):
            self.events.kinds.append(key)
            self.ranks += 1 + len(group.ranks)
        return number

    def register_thread(self, event: Mapping[str, Any]) -> int:
        """Position of an event's thread among those seen."""
        return self.threads.setdefault(_parse_id(event.get("tid")), len(self.threads))

    def check_size(self) -> None:
        """`FileError` where more has been gathered than memory should hold."""
        gathered = self.events
        columns = (gathered.operators, gathered.kernels, gathered.launches, gathered.collectives)
        objects: tuple[Sized, ...] = (gathered.updates, gathered.steps, self.threads, self.streams)
        sizes = (
            (max(map(len, columns)), MOST_COLUMNS),
            (max(map(len, objects)), MOST_OBJECTS),
            (self.ranks, MOST_RANKS),
        )
        for size, limit in sizes:
            if size > limit:
                raise FileError(
                    Notice(code="kineto_too_many", value=self.file, params={"limit": limit}, file=self.file)
                )

    def add_bad_event(self, code: str, value: Any, **params: Any) -> None:
        """Count an event that cannot be used and note it."""
        gathered = self.events
        gathered.bad += 1
        value = value[:MOST_NAME] if isinstance(value, str) else value
        if len(gathered.notices) < MOST_NOTICES:
            event_params = {"event": gathered.count, **params}
            notice = Notice(
                code=code, field=f"{EVENTS}[{gathered.count - 1}]", value=value, params=event_params, level="warning"
            )
            gathered.notices.append(notice.with_place(self.file, None))


def gather(members: Iterable[tuple[str, Any]], file: str = "<file>") -> Events:
    """The events of a trace; `FileError` where it is no trace.

    A file that ends in the middle gives what came before, and a notice.
    """
    gatherer = _EventGatherer(file)
    events = gatherer.events
    cut: list[Notice] = []
    has_events = False
    try:
        for name, value in members:
            if name == EVENTS:
                has_events = True
                gatherer.add_batch(value if isinstance(value, list) else [value])
                gatherer.check_size()
            elif len(events.about) < 200:
                events.about[name[:100]] = value
    except CutOffError as error:
        cut = [Notice(code="kineto_cut", level="warning", value=file, params=error.notices[0].params, file=file)]
    if not has_events and not cut:
        raise FileError(Notice(code="kineto_no_events", value=file, file=file))
    if not len(events.kernels) and not len(events.operators):
        raise InvalidError(Notice(code="kineto_empty", value=file, params={"events": events.count}, file=file), *cut)
    if events.bad:
        params = {"count": events.bad, "told": len(events.notices)}
        summary = Notice(code="kineto_events_bad", level="warning", params=params, file=file)
        events.notices.insert(0, summary)
    events.notices += cut
    return events


def _parse_id(value: Any) -> int | str | None:
    """A process or a thread as a trace names it; None where it has no name."""
    return value[:MOST_NAME] if isinstance(value, str) else value if isinstance(value, int) else None


def _parse_integer(value: Any, missing: int = -1) -> int:
    return value if isinstance(value, int) and abs(value) < 2**62 else missing
