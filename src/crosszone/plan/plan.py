"""Plan: strategy, placement, prediction and the reasons for it; Plans: the answer of a search."""

from __future__ import annotations

from typing import Any, Literal

from crosszone.inputs.placement import Placement
from crosszone.inputs.scenario import Scenario
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value
from crosszone.plan.comparison import Difference
from crosszone.plan.crossover import Crossover
from crosszone.plan.layouts import Crossing
from crosszone.predict.prediction import Prediction

Objective = Literal["time", "cost", "memory", "energy"]
OBJECTIVES: tuple[Objective, ...] = ("time", "cost", "memory", "energy")
NoticeDict = dict[str, Any]  # A notice as every surface shows it: code, level, message, field, hint, value


class IdleGpus(Value):
    """GPUs a plan does not use, and why."""

    zone: str
    """Zone."""
    group: int
    """Node group within the zone, from 0."""
    count: int
    """GPUs."""
    reason: NoticeDict
    """Why they are idle."""


class Plan(Value):
    """One way to train: what to run where, what to expect of it, and why it stands where it stands."""

    rank: int
    """1 is best; local-update plans have ranks of their own."""
    kind: Literal["synchronous", "local update"]
    """Local updates change the algorithm, so they are ranked apart."""
    crossing: Crossing
    """What crosses zones: nothing, data parallelism, the pipeline, or both."""
    zones: tuple[str, ...]
    """Zones in use, in the order of the pipeline or of the replicas."""
    framework: str
    """Training framework."""
    strategy: Strategy
    """Everything filled in."""
    placement: Placement
    """Where every rank runs."""
    prediction: Prediction
    """What to expect."""
    value: float
    """What the objective ranks by, smaller is better: s, $ or kWh a step; for memory, GiB left free, negative."""
    chance: float | None
    """Chance that the best plan's step really is shorter than this one's; null for the best plan."""
    idle: tuple[IdleGpus, ...]
    """GPUs in no rank."""
    reasons: tuple[NoticeDict, ...]
    """Why it is so fast, or not faster."""

    def __str__(self) -> str:
        return repr(self)

    @property
    def short(self) -> str:
        """Framework, degrees and zones."""
        s = self.strategy
        more = "".join(f" {name}={degree}" for name, degree in (("cp", s.cp), ("ep", s.ep)) if degree > 1)
        return f"{self.framework} tp={s.tp} pp={s.pp} dp={s.dp}{more} in {'+'.join(self.zones)}"

    def __repr__(self) -> str:
        return f"<Plan {self.rank}: {self.short}, {self.prediction.step_time_s.expected:.4g} s>"


class Rejected(Value):
    """Strategies that are not among the plans, and the first rule, policy or limit that keeps them out."""

    family: str
    """What they have in common."""
    count: int
    """Strategies, or values of a degree that no strategy can have."""
    reason: NoticeDict
    """The first reason."""


class Point(Value):
    """A plan on the front of time against cost: no other is both faster and cheaper."""

    framework: str
    """Training framework."""
    strategy: Strategy
    """Everything filled in."""
    placement: Placement
    """Where every rank runs."""
    gpus: int
    """GPUs in use."""
    step_s: float
    """Expected step time, s."""
    usd_per_step: float
    """Price of one step, GPUs and egress, $."""


def apply_plan(scenario: Scenario, plan: Plan | Point) -> Scenario:
    """The scenario as a plan does it, with its framework, strategy and placement: what `predict` takes."""
    job = scenario.job.replace(framework=plan.framework)
    return scenario.replace(job=job, strategy=plan.strategy, placement=plan.placement)


class Comparison(Difference):
    """From the best plan to another one."""

    rank: int
    """Rank of the other plan among those of its kind."""
    kind: Literal["synchronous", "local update"]
    """Kind of that plan."""
    chance_best_is_faster: float
    """Chance that the best plan's step really is the shorter one."""


class Plans(Value):
    """The answer: ranked plans that differ in what matters, and what was kept out on the way."""

    name: str
    """Name of the scenario."""
    objective: Objective
    """What plans are ranked by."""
    evaluated: int
    """Strategies that were scored by the cost model, or shown to be worse by the bound of their family."""
    scored: int
    """Of them: scored one by one."""
    feasible: int
    """Of those scored: strategies that fit in memory."""
    simulated: int
    """Of those: simulated event by event."""
    seconds: float
    """Time the search took."""
    complete: bool
    """False: a budget ended the search early, so a better plan may exist."""
    plans: tuple[Plan, ...]
    """Synchronous plans, best first."""
    local_updates: tuple[Plan, ...]
    """Plans in which zones train on their own and average now and then: they change the algorithm."""
    front: tuple[Point, ...]
    """Time against cost, fastest first; empty where it was not asked for or prices are not known."""
    rejected: tuple[Rejected, ...]
    """What is not among the plans, and why."""
    hints: tuple[NoticeDict, ...]
    """Rules of thumb this search bears out: tp, pp, micro-batch."""
    warnings: tuple[NoticeDict, ...]
    """Notices on the scenario and the search."""
    why: Comparison | None = None
    """What makes another plan slower than the best; null: not asked for (`--why`)."""
    crossover: Crossover | None = None
    """Where local updates stop or begin to win; null: not asked for (`--crossover`), or one kind of plan is missing."""

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"<Plans of {self.name}: {len(self.plans)} of {self.evaluated:,} strategies>"
