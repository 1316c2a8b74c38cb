"""Axis: a field of a scenario with the values a sweep gives it.

    read_axis("cluster.links[*].gbps=1:100:log20")     # 20 values from 1 to 100, each the same factor above the last
    read_axis("cluster.links[0].rtt_ms=5:80:16")       # 16 values from 5 to 80, equally far apart (also lin16)
    read_axis("job.global_batch=512,1024,2048")        # these

Cell: one place of a sweep: what is best there, and what it takes.

Spread: many cells worked out at once, on all cores of this machine or on Ray.
"""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import pairwise
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Annotated, Any, Literal, Self
from uuid import uuid4

import numpy as np
from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr

from crosszone.analyse.fields import change_scenario, read_changed, split_path
from crosszone.errors import CrossZoneError, InputError, InvalidError, Notice, build_choice_error
from crosszone.extras import format_install_command
from crosszone.inputs.document import parse_scalar
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.plan.candidates import compute_objective
from crosszone.plan.plan import Objective
from crosszone.plan.planner import build_problem, iterate_local_update_plans, search_plans
from crosszone.plan.problem import PlanCache, Problem
from crosszone.plan.search import CancelledError, Progress
from crosszone.predict.predict import build_prediction, build_predictor
from crosszone.predict.prediction import Triple
from crosszone.predict.predictor import Predictor
from crosszone.text import label

MOST_VALUES = 10_000  # Values of an axis, and cells of a sweep
_RANGE = re.compile(r"(?P<low>[^:]+):(?P<high>[^:]+):(?P<scale>log|lin)?(?P<count>\d{1,6})")

Scale = Literal["linear", "log"]
Number = int | float
AxisValue = StrictBool | StrictInt | StrictFloat | StrictStr


class SweepAxis(Value):
    """A field and its values."""

    field: str
    """Path of the field."""
    values: Annotated[tuple[AxisValue, ...], Field(min_length=1, max_length=MOST_VALUES)]
    """What it is set to, in order."""
    scale: Scale = "linear"
    """How far apart two values are: by their difference, or by their ratio."""
    whole: bool = False
    """The field takes whole numbers only."""

    @property
    def numbers(self) -> tuple[float, ...] | None:
        """The values where all are numbers, each above the one before; else there is nothing between two of them."""
        # bool is an int in Python
        numeric = [float(v) for v in self.values if isinstance(v, int | float) and not isinstance(v, bool)]
        rising = all(a < b for a, b in pairwise(numeric))
        return tuple(numeric) if len(numeric) == len(self.values) and rising else None

    def interpolate(self, low: float, high: float, share: float = 0.5) -> float:
        """The number so far on the way from one to another, on the axis's scale. [A10]"""
        if self.scale == "log":
            return math.exp((1 - share) * math.log(low) + share * math.log(high))
        return (1 - share) * low + share * high

    def fit_to(self, scenario: Scenario) -> Self:
        """The same with whole numbers where the scenario's field takes no others, each once.

        `InputError` where the field takes none of the values at the ends.
        """
        fitted_axis = self
        if _is_whole_field(scenario, self.field):
            rounded = (round(v) if isinstance(v, float) else v for v in self.values)
            fitted_axis = self.replace(values=tuple(dict.fromkeys(rounded)), whole=True)
        refused: InputError | None = None
        for value in (fitted_axis.values[-1], fitted_axis.values[0]):
            try:
                change_scenario(scenario, {self.field: value})
                return fitted_axis
            except InputError as error:
                refused = error
        assert refused is not None
        raise refused


def read_axis(text: str) -> SweepAxis:
    """The axis of `FIELD=LOW:HIGH:log20`, `FIELD=LOW:HIGH:20` or `FIELD=VALUE,VALUE,...`."""
    field, equals, range_text = (part.strip() for part in text.partition("="))
    if not equals or not range_text:
        raise _make_axis_error(text)
    split_path(field)
    if ":" not in range_text:
        parts = [part.strip() for part in range_text.split(",")]
        values = [parse_scalar(part) for part in parts]
        if not all(parts) or any(value is None for value in values):
            raise _make_axis_error(text)
        if len(values) > MOST_VALUES:
            raise make_too_many_error(len(values))
        return SweepAxis(field=field, values=tuple(dict.fromkeys(values)))
    form = _RANGE.fullmatch(range_text)
    if form is None:
        raise _make_axis_error(text)
    low, high, count = parse_scalar(form["low"].strip()), parse_scalar(form["high"].strip()), int(form["count"])
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in (low, high)):
        raise _make_axis_error(text)
    if count > MOST_VALUES:
        raise make_too_many_error(count)
    scale: Scale = "log" if form["scale"] == "log" else "linear"
    if not low < high or count < 2 or (scale == "log" and low <= 0):
        raise InvalidError(Notice(code="axis_range", field=field, value=range_text))
    return SweepAxis(field=field, values=space_values(low, high, count, scale), scale=scale)


def space_values(low: Number, high: Number, count: int, scale: Scale) -> tuple[float, ...]:
    """So many numbers from one to another, by equal differences or equal ratios; both ends as they are. [A10]"""
    inner = np.linspace(low, high, count) if scale == "linear" else np.geomspace(low, high, count)
    return (float(low), *inner[1:-1].tolist(), float(high))


def make_too_many_error(cells: int) -> InvalidError:
    """That a sweep has too many cells."""
    return InvalidError(Notice(code="sweep_too_many", value=cells, params={"most": MOST_VALUES}))


def _is_whole_field(scenario: Scenario, field: str) -> bool:
    """Whether a field refuses a number because it is not whole."""
    try:
        change_scenario(scenario, {field: 1.5})
    except InputError as error:
        return any(notice.code == "must_be_whole" for notice in error.notices)
    return False


def _make_axis_error(text: str) -> InvalidError:
    return InvalidError(Notice(code="axis_malformed", value=text))


# What crosses zones.
Kind = Literal[
    "one zone",
    "pp",
    "dp flat",
    "dp hierarchical",
    "pp and dp flat",
    "pp and dp hierarchical",
    "diloco",
    "streaming diloco",
]
REFUSED = "refused"  # In place of a kind: there is no plan
Mode = Literal["plan", "predict"]
Side = Literal["synchronous", "local_update"]
Point = tuple[AxisValue, AxisValue | None]  # Values of x and y


class Choice(Value):
    """A strategy in a few words."""

    kind: Kind
    """What crosses zones: nothing, the pipeline, gradients (flat or zone by zone), or averages now and then."""
    framework: str
    """Training framework."""
    tp: int
    """Tensor parallel."""
    pp: int
    """Pipeline stages."""
    dp: int
    """Replicas."""
    cp: int = 1
    """Context parallel."""
    ep: int = 1
    """Expert parallel."""
    zones: tuple[str, ...]
    """Zones in use, in the cluster's order."""

    def label(self, language: str = "en") -> str:
        """Kind, degrees and framework."""
        more = "".join(f" {name} {degree}" for name, degree in (("cp", self.cp), ("ep", self.ep)) if degree > 1)
        degrees = f"tp {self.tp} pp {self.pp} dp {self.dp}{more}"
        return f"{format_crossing(self.kind, language)}, {degrees}, {self.framework}"


class CellOutcome(Value):
    """What one strategy takes."""

    choice: Choice
    """The strategy."""
    step_time_s: Triple
    """Time of one optimizer step, s."""
    tokens_per_s: Triple
    """Tokens of a step over its time."""
    usd_per_hour: float | None
    """Of all GPUs in use; null: a price is not known."""
    run_usd: Triple | None
    """GPUs and egress of the whole run; null: its length or a price is not known."""
    fits: bool
    """The expected peak of memory is within the limit."""
    value: float
    """What the objective ranks by, smaller is better."""


class CellRefusal(Value):
    """Why there is no plan, or no prediction."""

    code: str
    """Code of the notice."""
    message: str
    """Its sentence."""


class SweepCell(Value):
    """One place of a sweep."""

    x: AxisValue
    """Value of the first axis."""
    y: AxisValue | None = None
    """Value of the second axis."""
    best: Side | None
    """Which of the two is better; null: there is none."""
    synchronous: CellOutcome | None = None
    """The best plan in which all zones step together."""
    local_update: CellOutcome | None = None
    """The best plan in which zones average now and then; null: none was asked for, or none fits."""
    margin: float = 0.0
    """Share by which local updates had to be better to be taken."""
    refusal: CellRefusal | None = None
    """Why there is nothing."""

    @property
    def outcome(self) -> CellOutcome | None:
        """The better one."""
        return None if self.best is None else getattr(self, self.best)

    @property
    def choice(self) -> Choice | None:
        """Its strategy."""
        return self.outcome.choice if self.outcome else None

    @property
    def kind(self) -> str:
        """What crosses zones; `REFUSED` where there is no plan."""
        return self.choice.kind if self.choice else REFUSED

    @property
    def step_time_s(self) -> Triple | None:
        """Time of one optimizer step, s."""
        return self.outcome.step_time_s if self.outcome else None

    @property
    def lead(self) -> float | None:
        """By how much local updates take longer than they may, as a share; None where one is missing. [A11]"""
        if self.synchronous is None or self.local_update is None or not self.synchronous.value > 0:
            return None
        return self.local_update.value / (self.synchronous.value * (1.0 - self.margin)) - 1.0


@dataclass(frozen=True, kw_only=True)
class Cells:
    """How to work out cells of one scenario: what a process needs to do some of them."""

    scenario: Scenario
    fields: tuple[str, ...]
    """Fields of x and y."""
    objective: Objective = "time"
    mode: Mode = "plan"
    local_updates: bool = True
    margin: float = 0.0
    """Share by which local updates, another algorithm, must be better to be taken."""
    language: str = "en"

    @cached_property
    def _plan_cache(self) -> PlanCache:
        return PlanCache(lasting=True)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is known already: every process finds out itself."""
        return {key: value for key, value in self.__dict__.items() if key != "_plan_cache"}

    def compute_one(self, point: Point, cancelled: Callable[[], bool] | None = None) -> SweepCell:
        """The cell of these values."""
        (cell,) = self.compute_many([point], cancelled)
        return cell

    def compute_many(self, points: Sequence[Point], cancelled: Callable[[], bool] | None = None) -> Iterator[SweepCell]:
        """The cells of some points; those that differ in links only share what they can."""
        prepared = [self._build_problem(point) for point in points]
        if self.mode == "plan":
            grounds: dict[int, list[Problem]] = {}
            for case in prepared:
                if isinstance(case, Problem):
                    grounds.setdefault(id(case.shared), []).append(case)
            for problems in grounds.values():
                problems[0].shared.announce_links(problem.wan_links for problem in problems)
        for point, case in zip(points, prepared, strict=True):
            yield self._build_cell(point, case, cancelled)

    def _build_problem(self, point: Point) -> Scenario | Problem | InputError:
        """What is to be predicted or planned there; or why it cannot be."""
        try:
            scenario = read_changed(self.scenario, dict(zip(self.fields, point, strict=False))).scenario
            return build_problem(scenario, cache=self._plan_cache) if self.mode == "plan" else scenario
        except InputError as error:
            return error

    def _build_cell(
        self, point: Point, problem: Scenario | Problem | InputError, cancelled: Callable[[], bool] | None
    ) -> SweepCell:
        place: dict[str, Any] = {"x": point[0], "y": point[1]}
        try:
            if isinstance(problem, InputError):
                raise problem
            outcomes = self._plan_cell(problem, cancelled) if isinstance(problem, Problem) else _predict_cell(problem)
        except InputError as error:
            first = error.notices[0]
            return SweepCell(
                **place, best=None, refusal=CellRefusal(code=first.code, message=first.message(self.language))
            )
        return SweepCell(**place, **outcomes, best=choose_better(outcomes, self.margin), margin=self.margin)

    def _plan_cell(self, problem: Problem, cancelled: Callable[[], bool] | None) -> Mapping[str, CellOutcome]:
        """The best plans, as `plan(scenario, top=1)` finds them."""
        search, ranked = search_plans(problem, objective=self.objective, cancelled=cancelled)
        value, candidate = ranked[0]
        outcomes = {
            _select_side(candidate.predictor): build_cell_outcome(candidate.build_predictor(banded=True), value)
        }
        if self.local_updates:
            for other, _ in iterate_local_update_plans(problem, safe=search.safe, cancelled=cancelled):
                rated = compute_objective(other, self.objective)
                outcomes["local_update"] = build_cell_outcome(other.build_predictor(banded=True), rated)
                break  # the fastest comes first
        return outcomes


def choose_better(outcomes: Mapping[str, CellOutcome], margin: float) -> Side:
    """Which of the two is taken: local updates only where they are better by the margin."""
    if "synchronous" not in outcomes or "local_update" not in outcomes:
        return "synchronous" if "synchronous" in outcomes else "local_update"
    least = (1.0 - margin) * outcomes["synchronous"].value
    return "local_update" if outcomes["local_update"].value < least else "synchronous"


def _predict_cell(scenario: Scenario) -> Mapping[str, CellOutcome]:
    """The scenario's own strategy."""
    placed = build_predictor(scenario)
    return {_select_side(placed): build_cell_outcome(placed, placed.step_time.expected)}


def _select_side(placed: Predictor) -> str:
    return "synchronous" if placed.strategy.local_update is None else "local_update"


def build_cell_outcome(placed: Predictor, value: float) -> CellOutcome:
    """What a placed strategy takes."""
    prediction = build_prediction(placed)
    s, names = placed.strategy, [zone.name for zone in placed.case.cluster.zones]
    used = sorted(set(placed.placed.zone.ravel().tolist()))
    degrees = {"tp": s.tp, "pp": s.pp, "dp": s.dp or 1, "cp": s.cp, "ep": s.ep}
    zones = tuple(names[zone] for zone in used)
    return CellOutcome(
        choice=Choice(kind=classify_crossing(placed), framework=prediction.framework, zones=zones, **degrees),
        step_time_s=prediction.step_time_s,
        tokens_per_s=prediction.tokens_per_s,
        usd_per_hour=prediction.run.usd_per_hour,
        run_usd=prediction.run.usd,
        fits=prediction.memory_gib.fits,
        value=value,
    )


def classify_crossing(predictor: Predictor) -> Kind:
    """What crosses zones of a placed strategy."""
    s, placed = predictor.strategy, predictor.placed
    if s.local_update is not None:
        return "diloco" if s.local_update.fragments == 1 else "streaming diloco"
    along = bool((placed.zone != placed.zone[:1]).any())
    beside = bool(placed.dp_zones.max() > 1)
    if not beside:
        return "pp" if along else "one zone"
    flat = s.communication.reduce == "flat"
    if along:
        return "pp and dp flat" if flat else "pp and dp hierarchical"
    return "dp flat" if flat else "dp hierarchical"


def format_crossing(kind: str, language: str = "en") -> str:
    """What crosses zones, in words."""
    return label(f"crosses_{kind.replace(' ', '_')}", language)


Cancelled = Callable[[], bool]
# Place of the first of some points that lie beside each other, and these points.
Chunk = tuple[int, Sequence[Point]]
CHUNKS = 8  # Chunks for each worker, so that none waits long for the last one
LARGEST = 64  # Points of a chunk
WORTH = 16  # Points below which starting processes takes longer than it saves
LOOK_S = 0.1  # Seconds between two questions whether to go on
STOPS_S = 5.0  # Seconds after its pipe broke until a process has ended
CORES, RAY = "cores", "ray"


def compute_cells(
    cells: Cells,
    points: Sequence[Point],
    *,
    on: str = CORES,
    workers: int | None = None,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
) -> list[SweepCell]:
    """The cells of all points, in their order; `CancelledError` when asked to stop, and no process is left behind."""
    if on not in (CORES, RAY) and not on.startswith("ray://"):
        raise build_choice_error("on", on, [CORES, RAY, "ray://HOST:PORT"])
    if workers is not None and workers < 1:
        raise InvalidError(Notice(code="must_be_at_least", field="workers", value=workers, params={"limit": 1}))
    count = workers or _count_cores()
    if on == CORES and (count == 1 or len(points) < 2 or (workers is None and len(points) < WORTH)):
        return _run_in_process(cells, points, progress, cancelled)
    if on == CORES:
        done = _run_on_cores(cells, points, count, cancelled)
    else:
        done = _run_on_ray(cells, points, None if on == RAY else on, workers, cancelled)
    results: dict[int, list[SweepCell]] = {}
    for at, some in done:
        results[at] = some
        if progress is not None:
            progress("sweeping", sum(map(len, results.values())), len(points))
    return [cell for _, some in sorted(results.items()) for cell in some]


def _split_points(points: Sequence[Point], count: int) -> list[Chunk]:
    """Points beside each other, in pieces for so many workers."""
    size = max(1, min(LARGEST, -(-len(points) // (CHUNKS * count))))
    return [(at, points[at : at + size]) for at in range(0, len(points), size)]


def _count_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_in_process(
    cells: Cells, points: Sequence[Point], progress: Progress | None, cancelled: Cancelled | None
) -> list[SweepCell]:
    """In this process."""
    results: list[SweepCell] = []
    for start in range(0, len(points), LARGEST):
        for cell in cells.compute_many(points[start : start + LARGEST], cancelled):
            results.append(cell)
            if progress is not None:
                progress("sweeping", len(results), len(points))
            if cancelled is not None and cancelled():
                raise CancelledError
    return results


def _run_on_cores(
    cells: Cells, points: Sequence[Point], count: int, cancelled: Cancelled | None
) -> Iterator[tuple[int, list[SweepCell]]]:
    """In processes of their own, each given the next chunk when it is done with one."""
    # reversed, for pop() takes the last: neighbouring chunks follow each other
    waiting = _split_points(points, count)[::-1]
    with _start_workers(cells, min(count, len(waiting))) as workers:
        busy = dict.fromkeys(workers, True)
        for pipe in workers:
            _send(pipe, workers[pipe], waiting.pop())
        while any(busy.values()):
            if cancelled is not None and cancelled():
                raise CancelledError
            ready = wait([pipe for pipe in workers if busy[pipe]], LOOK_S)
            for pipe in [pipe for pipe in workers if pipe in ready]:
                try:
                    answer = pipe.recv()
                except (EOFError, OSError) as error:
                    raise _make_dead_worker_error(workers[pipe]) from error
                # what a worker raised came back as a value, for a pipe carries nothing else
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
                busy[pipe] = bool(waiting)
                if waiting:
                    _send(pipe, workers[pipe], waiting.pop())


def _send(pipe: Connection, worker: Any, chunk: Chunk) -> None:
    try:
        pipe.send(chunk)
    except OSError as error:
        raise _make_dead_worker_error(worker) from error


def _make_dead_worker_error(worker: Any) -> CrossZoneError:
    """That a process is gone, with its exit status."""
    worker.join(STOPS_S)
    return CrossZoneError(Notice(code="sweep_worker_died", value=worker.exitcode))


@contextmanager
def _start_workers(cells: Cells, count: int) -> Iterator[dict[Connection, Any]]:
    """Processes that work out cells, by the pipe to each; all are ended on the way out, whatever happened."""
    context = get_context("spawn")  # a fork would copy the threads' locks, but not the threads
    workers: dict[Connection, Any] = {}
    try:
        for _ in range(count):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(theirs, cells), daemon=True)
            worker.start()
            # else this process keeps the worker's end open, and recv() waits for ever when the worker dies
            theirs.close()
            workers[ours] = worker
        yield workers
    finally:
        for pipe, worker in workers.items():
            pipe.close()
            worker.terminate()
        for worker in workers.values():
            worker.join()
            worker.close()


def _serve(pipe: Connection, cells: Cells) -> None:
    """Answer chunks until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends its workers
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            at, points = pipe.recv()
            try:
                answer: Any = (at, list(cells.compute_many(points)))
            except Exception as error:
                answer = error
            pipe.send(answer)


def _end_with_parent() -> None:
    """End this process when the one that started it is gone, in the middle of a chunk too."""
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


# On a worker of Ray: what it works on, so that neighbouring chunks share what they have in common.
_cells_by_sweep: dict[str, Cells] = {}


def _run_chunk(cells: Cells, name: str, chunk: Chunk) -> tuple[int, list[SweepCell]]:
    """A chunk on a worker of Ray; `name` is that of the sweep, for a worker may live longer."""
    if name not in _cells_by_sweep:
        _cells_by_sweep.clear()
        _cells_by_sweep[name] = cells
    at, points = chunk
    return at, list(_cells_by_sweep[name].compute_many(points))


def _run_on_ray(
    cells: Cells, points: Sequence[Point], address: str | None, count: int | None, cancelled: Cancelled | None
) -> Iterator[tuple[int, list[SweepCell]]]:
    """As tasks of a Ray cluster: the one that is connected, the one at the address, or one started on this machine."""
    ray = _import_ray()
    ours = not ray.is_initialized()
    options = {"num_cpus": count, "include_dashboard": False}  # not whatever cluster happens to run on this machine
    if ours:
        init_options: dict[str, Any] = {"address": address} if address else {"address": "local", **options}
        try:
            ray.init(log_to_driver=False, logging_level="warning", **init_options)
        except (OSError, RuntimeError, ValueError) as error:
            why = str(error).partition("\n")[0]
            raise InputError(Notice(code="ray_unreachable", field="on", value=address, params={"why": why})) from error
    running: list[Any] = []
    try:
        # put once: given to each task, the scenario would travel with every chunk
        work, task, name = ray.put(cells), ray.remote(_run_chunk), uuid4().hex
        chunks = _split_points(points, count or int(ray.cluster_resources().get("CPU", 1)))
        running = [task.remote(work, name, chunk) for chunk in chunks]
        while running:
            if cancelled is not None and cancelled():
                raise CancelledError
            ready, running = ray.wait(running, timeout=LOOK_S)
            for reference in ready:
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.cause from error
                except ray.exceptions.RayError as error:
                    raise CrossZoneError(Notice(code="sweep_worker_died", value=str(error)[:200])) from error
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if ours:
            ray.shutdown()


def _import_ray() -> Any:
    """The library, which is an extra."""
    try:
        return import_module("ray")
    except ImportError as error:
        command = format_install_command("ray")
        raise InputError(Notice(code="ray_missing", field="on", value=RAY, params={"command": command})) from error
