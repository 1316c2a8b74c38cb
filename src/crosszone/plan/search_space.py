"""Space: every legal strategy of one framework on a cluster, and what was ruled out before it was counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.profile import stack_and_release
from crosszone.errors import Notice
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.job import state_bytes
from crosszone.inputs.rules import (
    Case,
    experts_divide,
    framework_has_axes,
    heads_divide,
    layers_fill_stages,
    sequence_splits,
    widths_divide,
)
from crosszone.inputs.strategy import Strategy
from crosszone.plan.bounds import BoundTable
from crosszone.plan.layout_table import ANY_V_SHAPED, EVEN_SHARES, LayoutTable, ScheduleChoice, build_any_schedule
from crosszone.plan.layouts import EVERYTHING, USUAL, Breadth, Degrees
from crosszone.plan.options import LayoutTraits, OptionTable, check_policies, list_options
from crosszone.plan.problem import Problem, SearchSettings, choose_wan_bucket_mb
from crosszone.plan.search_nodes import NodeBlock
from crosszone.predict.parts import kept, part
from crosszone.schedule.orders import V_SHAPED

Ints = npt.NDArray[np.int64]
SMALL_CLUSTER = 16  # GPUs up to which every number of replicas and every split is tried
MOST_CHUNKS = 16  # Chunks of a stage
GRIDS = 4  # Grids of some shapes that are remembered: the last ones


@dataclass
class RuledOut:
    """Values of degrees that are ruled out, by the first rule or policy that does so."""

    found: dict[tuple[str, str], tuple[list[int | str], Notice]] = field(default_factory=dict)

    def add(self, degree: str, value: int | str, notice: Notice) -> None:
        """Note a value with its reason."""
        values, _ = self.found.setdefault((notice.code, degree), ([], notice))
        if value not in values:
            values.append(value)


class SearchSpace:
    """The strategies of one framework."""

    def __init__(self, problem: Problem, framework: Framework, breadth: Breadth | None = None, *, safe: bool = False):
        self.problem, self.framework, self.safe = problem, framework, safe
        self.breadth = breadth or (EVERYTHING if problem.cluster.gpus <= SMALL_CLUSTER else USUAL)
        self.ruled = RuledOut()
        self.parts: dict[str, Any] = {}
        self._grids: dict[tuple[bytes, bool], BoundTable | None] = {}
        """The last grids that were made, by their shapes."""
        self._known: dict[str, BoundTable | None] = {}
        """The outline, once it was made."""
        self._first: dict[bool, BoundTable] = {}
        """The grid that was made first, with and without strategies that others beat in any case."""

    def on(self, problem: Problem) -> SearchSpace:
        """The same space with other links between the zones."""
        other = copy(self)
        other.problem = problem
        other.parts = kept(self.parts, without=("layout_table",))
        bucket = choose_wan_bucket_mb(problem, self.framework)
        if bucket != self.setting.wan_bucket_mb:
            other.parts["setting"] = replace(self.setting, wan_bucket_mb=bucket)
        return other

    @part
    def setting(self) -> SearchSettings:
        """What all strategies have in common."""
        problem, framework = self.problem, self.framework
        stack, release = stack_and_release(problem.job.stack)
        return SearchSettings(
            model=problem.model,
            job=problem.job,
            groups=problem.groups,
            framework=framework,
            profiles=problem.profiles,
            stack=problem.profiles.stack_of(framework.name, stack),
            release=release,
            pinned=problem.pinned,
            wan_bucket_mb=choose_wan_bucket_mb(problem, framework),
            safe=self.safe,
        )

    @part
    def layout_table(self) -> LayoutTable:
        """The shapes, and what does not depend on options."""
        return self.problem.build_layout_table(self.degrees, self.breadth)

    @part
    def _tables(self) -> tuple[list[OptionTable], Ints]:
        """Options of each set of traits, and the set of each shape."""
        land = self.layout_table
        traits = np.stack(
            [
                land.tp > 1,
                land.pp > 1,
                land.ep > 1,
                land.dp * land.cp > 1,
                land.replicas_cross,
                land.equal_zones,
                (land.node_shards > 1) & (land.node_shards < land.dp),
                (land.tp > 1) & (self.problem.job.seq_len // land.cp % land.tp == 0),
                land.micro_batch_shares.uneven,
                land.micro_batch_shares.uneven_in_zone,
            ],
            axis=1,
        )
        kinds, which = np.unique(traits, axis=0, return_inverse=True)
        job, pinned, dtypes = self.problem.job, self.problem.pinned, self._dtypes()
        tables = [
            list_options(self.framework, job, pinned, LayoutTraits(*map(bool, one)), dtypes) for one in kinds.tolist()
        ]
        return tables, which.ravel()

    @part
    def _sizes(self) -> Ints:
        """Options of each shape."""
        tables, traits = self._tables
        return np.array([len(table) for table in tables], dtype=np.int64)[traits]

    def strategies(self) -> int:
        """Strategies in all."""
        return self._count

    @part
    def _count(self) -> int:
        everything = np.arange(len(self.layout_table.layouts))
        return int(sum(self._sizes[block.layout].sum() for block in self._blocks(everything)))

    def outline(self) -> BoundTable | None:
        """Every shape without a schedule: what any of its strategies must take at least."""
        if "outline" in self._known:
            return self._on_links(self._known["outline"])
        everything = np.arange(len(self.layout_table.layouts))
        pipes = {pipe for stages in np.unique(self.layout_table.pp).tolist() for pipe in self._pipes(stages)}
        chunks = sorted({pipe.virtual_stages for pipe in pipes if not pipe.v_shaped}) if self._unlike else [1]
        bare = [*map(build_any_schedule, chunks), *([ANY_V_SHAPED] if any(pipe.v_shaped for pipe in pipes) else [])]
        found = self._known["outline"] = self._scores([self._block(everything, pipe) for pipe in bare])
        return found

    def _on_links(self, grid: BoundTable | None) -> BoundTable | None:
        """A known grid with the links of this space."""
        return (
            grid if grid is None or grid.layout_table is self.layout_table else grid.on(self.setting, self.layout_table)
        )

    @property
    def _unlike(self) -> bool:
        """Layers differ in whether they have experts, so that chunks may differ too."""
        moe = self.problem.model.moe
        return moe is not None and (moe.first_dense > 0 or moe.every > 1)

    def scores(self, shapes: Ints, *, every: bool = False) -> BoundTable | None:
        """All strategies of some shapes; `every`: also those that another one beats in any case."""
        key = (shapes.tobytes(), every)
        if key in self._grids:
            return self._on_links(self._grids[key])
        for old in list(self._grids)[: 1 - GRIDS]:
            del self._grids[old]
        self._grids[key] = self._scores(self._blocks(shapes), every=every)
        return self._grids[key]

    def _scores(self, blocks: list[NodeBlock], *, every: bool = False) -> BoundTable | None:
        some = [block for block in blocks if len(block.layout)]
        tables, traits = self._tables
        if not some:
            return None
        found = BoundTable(self.setting, self.layout_table, traits, tables, some, every=every)
        found.remembers = self.problem.cache.lasting
        found.share(self._first.setdefault(every, found))
        return found

    def _blocks(self, shapes: Ints) -> list[NodeBlock]:
        """Shapes under each pipe they may have."""
        found = []
        stages = self.layout_table.pp[shapes]
        by_pipe: dict[ScheduleChoice, list[int]] = {}
        for count in np.unique(stages).tolist():
            for pipe in self._pipes(count):
                by_pipe.setdefault(pipe, []).append(count)
        for pipe, counts in by_pipe.items():
            here = shapes[np.isin(stages, counts)]
            given = self.layout_table.given_chunks[here]
            here = here[(given == 0) | (given == self.layout_table.pp[here] * pipe.virtual_stages)]
            policy = check_policies(self.problem, "schedule", pipe.name)
            if policy is not None and self.layout_table.pipeline_crosses[here].any():
                self.ruled.add("schedule", pipe.name, policy)
                here = here[~self.layout_table.pipeline_crosses[here]]
            found.append(self._block(here, pipe))
        return found

    def _block(self, shapes: Ints, pipe: ScheduleChoice) -> NodeBlock:
        """Shapes under one pipe with the micro-batches that the batch divides by."""
        land, batch = self.layout_table, self.problem.job.global_batch
        some = shapes[self._sizes[shapes] > 0]
        uneven = some[land.micro_batch_shares.uneven[some]] if self.framework.uneven_micro_batches else some[:0]
        some = some[~land.micro_batch_shares.uneven[some]]
        sizes = np.array(self._micro_batches, dtype=np.int64)
        per_round = sizes * land.dp[some][:, None]
        count = batch // per_round
        stages = land.pp[some][:, None]
        at, size = np.nonzero((batch % per_round == 0) & self._runs(pipe, count, stages))
        rows = [
            (shape, own, max(land.micro_batch_shares.per_chain[dealt]), dealt)
            for shape in uneven.tolist()
            for own in sizes.tolist()
            if (dealt := land.micro_batch_shares.number_shares(shape, batch // own)) != EVEN_SHARES
            and self._runs(pipe, np.array(land.micro_batch_shares.per_chain[dealt]), land.pp[shape]).all()
        ]
        others = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return NodeBlock(
            pipe=pipe,
            layouts=np.concatenate([some[np.unique(at)], np.unique(others[:, 0])]),
            layout=np.concatenate([some[at], others[:, 0]]),
            micro_batch=np.concatenate([sizes[size], others[:, 1]]),
            micro_batches=np.concatenate([count[at, size], others[:, 2]]),
            dealt=np.concatenate([np.full(len(at), EVEN_SHARES), others[:, 3]]),
        )

    def _runs(self, pipe: ScheduleChoice, micro_batches: Ints, stages: Any) -> Any:
        """Whether the framework runs a schedule with so many micro-batches; one stage has none to run."""
        return (stages == 1) | self.framework.runs(pipe.name, pipe.virtual_stages, micro_batches, stages)

    def _legal(self, degree: str, value: int, *rules: Callable[[Case], Iterator[Notice]], **others: int) -> bool:
        """Whether rules, the framework and policies allow a value; if not, why is noted."""
        case = self.problem.case(Strategy(**{"dp": 1, degree: value} | others))
        broken = [notice for rule in rules for notice in rule(case) if notice.field == f"strategy.{degree}"]
        broken += framework_has_axes(case, self.framework)
        policy = check_policies(self.problem, degree, value)
        if broken or policy:
            self.ruled.add(degree, value, (broken or [policy])[0])  # type: ignore[list-item]
            return False
        return True

    def _values(self, degree: str, most: int) -> range | list[int]:
        if self.problem.is_pinned(degree):
            return [getattr(self.problem.pinned, degree)]
        return range(1, most + 1)

    @part
    def degrees(self) -> Degrees:
        """Values of every degree that rules, the framework and policies allow."""
        problem, model = self.problem, self.problem.model
        gpus, batch = problem.cluster.gpus, problem.job.global_batch
        node = max(max(group.gpus, group.domain) for group in problem.groups)

        def allowed(axis: str, most: int, *rules: Callable[[Case], Iterator[Notice]]) -> tuple[int, ...]:
            values = self._values(axis, most if axis in self.framework.axes else 1)
            return tuple(value for value in values if self._legal(axis, value, *rules))

        replicas = (d for d in range(1, min(batch, gpus) + 1) if batch % d == 0)
        tensor = allowed("tp", 2 * node, heads_divide, widths_divide)
        if problem.pinned.sequence_parallel or problem.pinned.communication.overlap_tensor:
            tensor = tuple(tp for tp in tensor if tp > 1)
        return Degrees(
            tp=tensor,
            pp=allowed("pp", min(model.layers, gpus), layers_fill_stages),
            cp=allowed("cp", min(64, gpus), sequence_splits),
            ep=allowed("ep", min(model.moe.experts if model.moe else 1, gpus), experts_share),
            dp=(problem.pinned.dp,) if problem.pinned.dp else tuple(replicas),
        )

    @part
    def _micro_batches(self) -> list[int]:
        batch = self.problem.job.global_batch
        if self.problem.is_pinned("micro_batch"):
            return [self.problem.pinned.micro_batch]
        return [b for b in range(1, min(batch, 4096) + 1) if batch % b == 0 and self._legal("micro_batch", b)]

    def _dtypes(self) -> list[str | None]:
        """The framework's own type of gradients, and the job's 16-bit type where that is narrower."""
        job = self.problem.job
        narrow = "fp16" if job.precision == "fp16" else "bf16"
        own = state_bytes(job, framework=self.framework.name).gradients
        return (
            [None, narrow]
            if own > 2 and narrow in self.framework.gradient_dtypes and job.precision != "fp32"
            else [None]
        )

    def _pipes(self, stages: int) -> list[ScheduleChoice]:
        """Schedules and chunks for so many stages."""
        pinned, layers = self.problem.pinned, self.problem.model.layers
        if stages == 1:
            return [] if pinned.interleave > 1 or self.problem.is_pinned("schedule") else [ScheduleChoice("1f1b", 1)]
        found = []
        for schedule in self.framework.schedules:
            if self.problem.is_pinned("schedule") and schedule != pinned.schedule:
                continue
            if schedule == "interleaved":
                chunks = [v for v in range(2, MOST_CHUNKS + 1) if layers % (stages * v) == 0]
            else:
                chunks = [2 if schedule in V_SHAPED else 1]
            if self.problem.is_pinned("interleave"):
                chunks = [v for v in chunks if v == pinned.interleave]
            found += [ScheduleChoice(schedule, v) for v in chunks if v == 1 or layers % (stages * v) == 0]
        return found


def experts_share(case: Case) -> Iterator[Notice]:
    """Degree e divides the experts; that it divides their holders depends on the shape."""
    return (notice for notice in experts_divide(case) if notice.code != "ep_over_ranks")


def build_search_space(
    problem: Problem, framework: Framework, breadth: Breadth | None = None, *, safe: bool = False
) -> SearchSpace:
    """The strategies of one framework: those of a known problem that differs only in its links, if there is one."""
    key = ("space", framework.name, breadth, safe, tuple(problem.zone_orders))
    if key in problem.kept:
        known: SearchSpace = problem.kept[key]
        return known.on(problem)
    found = problem.kept[key] = SearchSpace(problem, framework, breadth, safe=safe)
    return found
