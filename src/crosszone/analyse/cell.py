"""Cell: one place of a sweep: what is best there, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from crosszone.analyse.axis import AxisValue
from crosszone.analyse.fields import read_changed
from crosszone.errors import InputError
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.value import Value
from crosszone.plan.cache import Common
from crosszone.plan.objectives import value_of
from crosszone.plan.plan import Objective
from crosszone.plan.planner import local_update_plans, problem_of, searched
from crosszone.plan.problem import Problem
from crosszone.predict.predict import Predictor, predictor
from crosszone.predict.prediction import Triple
from crosszone.text import label

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
"""What crosses zones."""
REFUSED = "refused"
"""In place of a kind: there is no plan."""
Mode = Literal["plan", "predict"]
Side = Literal["synchronous", "local_update"]
Point = tuple[AxisValue, AxisValue | None]
"""Values of x and y."""


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
        return f"{kind_label(self.kind, language)}, {degrees}, {self.framework}"


class Outcome(Value):
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


class Refusal(Value):
    """Why there is no plan, or no prediction."""

    code: str
    """Code of the notice."""
    message: str
    """Its sentence."""


class Cell(Value):
    """One place of a sweep."""

    x: AxisValue
    """Value of the first axis."""
    y: AxisValue | None = None
    """Value of the second axis."""
    best: Side | None
    """Which of the two is better; null: there is none."""
    synchronous: Outcome | None = None
    """The best plan in which all zones step together."""
    local_update: Outcome | None = None
    """The best plan in which zones average now and then; null: none was asked for, or none fits."""
    margin: float = 0.0
    """Share by which local updates had to be better to be taken."""
    refusal: Refusal | None = None
    """Why there is nothing."""

    @property
    def outcome(self) -> Outcome | None:
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
    def _common(self) -> Common:
        return Common(lasting=True)

    def __getstate__(self) -> dict[str, Any]:
        """Without what is known already: every process finds out itself."""
        return {key: value for key, value in self.__dict__.items() if key != "_common"}

    def at(self, point: Point, cancelled: Callable[[], bool] | None = None) -> Cell:
        """The cell of these values."""
        (found,) = self.several([point], cancelled)
        return found

    def several(self, points: Sequence[Point], cancelled: Callable[[], bool] | None = None) -> Iterator[Cell]:
        """The cells of some points; those that differ in links only share what they can."""
        asked = [self._asked(point) for point in points]
        if self.mode == "plan":
            grounds: dict[int, list[Problem]] = {}
            for one in asked:
                if isinstance(one, Problem):
                    grounds.setdefault(id(one.kept), []).append(one)
            for problems in grounds.values():
                problems[0].kept.look_ahead(problem.ways for problem in problems)
        for point, one in zip(points, asked, strict=True):
            yield self._cell(point, one, cancelled)

    def _asked(self, point: Point) -> Scenario | Problem | InputError:
        """What is to be predicted or planned there; or why it cannot be."""
        try:
            scenario = read_changed(self.scenario, dict(zip(self.fields, point, strict=False))).scenario
            return problem_of(scenario, common=self._common) if self.mode == "plan" else scenario
        except InputError as error:
            return error

    def _cell(self, point: Point, asked: Scenario | Problem | InputError, cancelled: Callable[[], bool] | None) -> Cell:
        place: dict[str, Any] = {"x": point[0], "y": point[1]}
        try:
            if isinstance(asked, InputError):
                raise asked
            found = self._planned(asked, cancelled) if isinstance(asked, Problem) else _predicted(asked)
        except InputError as error:
            first = error.notices[0]
            return Cell(**place, best=None, refusal=Refusal(code=first.code, message=first.message(self.language)))
        return Cell(**place, **found, best=better_of(found, self.margin), margin=self.margin)

    def _planned(self, problem: Problem, cancelled: Callable[[], bool] | None) -> Mapping[str, Outcome]:
        """The best plans, as `plan(scenario, top=1)` finds them."""
        search, ranked = searched(problem, objective=self.objective, cancelled=cancelled)
        value, one = ranked[0]
        found = {_side(one.predictor): outcome_of(one.predictor_of(banded=True), value)}
        if self.local_updates:
            for other, _ in local_update_plans(problem, safe=search.safe, cancelled=cancelled):
                rated = value_of(other, self.objective)
                found["local_update"] = outcome_of(other.predictor_of(banded=True), rated)
                break  # the fastest comes first
        return found


def better_of(found: Mapping[str, Outcome], margin: float) -> Side:
    """Which of the two is taken: local updates only where they are better by the margin."""
    if "synchronous" not in found or "local_update" not in found:
        return "synchronous" if "synchronous" in found else "local_update"
    least = (1.0 - margin) * found["synchronous"].value
    return "local_update" if found["local_update"].value < least else "synchronous"


def _predicted(scenario: Scenario) -> Mapping[str, Outcome]:
    """The scenario's own strategy."""
    found = predictor(scenario)
    return {_side(found): outcome_of(found, found.step_time.expected)}


def _side(found: Predictor) -> str:
    return "synchronous" if found.strategy.local_update is None else "local_update"


def outcome_of(found: Predictor, value: float) -> Outcome:
    """What a placed strategy takes."""
    told = found.prediction()
    s, names = found.strategy, [zone.name for zone in found.case.cluster.zones]
    used = sorted(set(found.site.zone.ravel().tolist()))
    degrees = {"tp": s.tp, "pp": s.pp, "dp": s.dp or 1, "cp": s.cp, "ep": s.ep}
    zones = tuple(names[zone] for zone in used)
    return Outcome(
        choice=Choice(kind=kind_of(found), framework=told.framework, zones=zones, **degrees),
        step_time_s=told.step_time_s,
        tokens_per_s=told.tokens_per_s,
        usd_per_hour=told.run.usd_per_hour,
        run_usd=told.run.usd,
        fits=told.memory_gib.fits,
        value=value,
    )


def kind_of(found: Predictor) -> Kind:
    """What crosses zones of a placed strategy."""
    s, site = found.strategy, found.site
    if s.local_update is not None:
        return "diloco" if s.local_update.fragments == 1 else "streaming diloco"
    along = bool((site.zone != site.zone[:1]).any())
    beside = bool(site.dp_zones.max() > 1)
    if not beside:
        return "pp" if along else "one zone"
    flat = s.communication.reduce == "flat"
    if along:
        return "pp and dp flat" if flat else "pp and dp hierarchical"
    return "dp flat" if flat else "dp hierarchical"


def kind_label(kind: str, language: str = "en") -> str:
    """What crosses zones, in words."""
    return label(f"crosses_{kind.replace(' ', '_')}", language)
