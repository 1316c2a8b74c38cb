"""Search space: every legal strategy of one framework on a cluster, and what was ruled out before it was counted.

Degrees that rules and policies allow make layouts; a layout with a schedule and a micro-batch is a search node; a node
with one row of its option table is a strategy. `SearchSpace` builds the `BoundTable` of any set of layouts when it is
asked for, so that only those exist that the search comes to.

Shapes of arrays: L layouts, B sizes of a micro-batch, K traits of a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.errors import Notice
from crosszone.inputs.frameworks import Framework
from crosszone.inputs.job import state_bytes
from crosszone.inputs.rules import (
    ENDS,
    Case,
    check_experts,
    check_framework_axes,
    check_heads,
    check_layers,
    check_mamba,
    check_sequence,
    check_widths,
)
from crosszone.inputs.software import find_release, parse_stack
from crosszone.inputs.strategy import Strategy
from crosszone.plan.bounds import BoundTable
from crosszone.plan.layout_table import ANY_V_SHAPED, EVEN_SHARES, LayoutTable, ScheduleChoice, build_any_schedule
from crosszone.plan.layouts import EVERYTHING, USUAL, Breadth, DegreeChoices
from crosszone.plan.options import LayoutTraits, OptionTable, check_policies, list_options
from crosszone.plan.problem import Problem, SearchSettings, choose_wan_bucket_mb
from crosszone.plan.search_nodes import NodeBlock
from crosszone.predict.batch import count_tail_slots
from crosszone.predict.parts import cached_part, select_parts
from crosszone.schedule.orders import V_SHAPED

Ints = npt.NDArray[np.int64]
SMALL_CLUSTER = 16  # GPUs up to which every number of replicas and every split is tried
MAX_VIRTUAL_STAGES = 16  # Virtual stages a stage of an interleaved schedule, at most
MAX_TABLES = (
    4  # Bound tables that are remembered, the last ones: a next plan over other links asks for the same layouts
)


@dataclass
class RuledOut:
    """Values of degrees that are ruled out, by the first rule or policy that does so."""

    values_by_reason: dict[tuple[str, str], tuple[list[int | str], Notice]] = field(default_factory=dict)

    def add(self, degree: str, value: int | str, notice: Notice) -> None:
        """Note a value with its reason."""
        values, _ = self.values_by_reason.setdefault((notice.code, degree), ([], notice))
        if value not in values:
            values.append(value)


class SearchSpace:
    """The strategies of one framework."""

    def __init__(self, problem: Problem, framework: Framework, breadth: Breadth | None = None, *, safe: bool = False):
        self.problem, self.framework, self.safe = problem, framework, safe
        self.breadth = breadth or (EVERYTHING if problem.cluster.gpus <= SMALL_CLUSTER else USUAL)
        self.ruled_out = RuledOut()
        self.parts: dict[str, Any] = {}
        self._recent_tables: dict[tuple[bytes, bool], BoundTable | None] = {}
        """The last tables that were built, by their layouts."""
        self._outline_cache: dict[str, BoundTable | None] = {}
        """The outline, once it was built. A dictionary, so that copies of this space with other links share it."""
        self._first_table: dict[bool, BoundTable] = {}
        """The first table that was built, with and without dominated options: later ones reuse its option columns."""

    def with_links(self, problem: Problem) -> SearchSpace:
        """The same space with other links between the zones."""
        other = copy(self)
        other.problem = problem
        other.parts = select_parts(self.parts, without=("layout_table",))
        bucket = choose_wan_bucket_mb(problem, self.framework)
        if bucket != self.settings.wan_bucket_mb:
            other.parts["settings"] = replace(self.settings, wan_bucket_mb=bucket)
        return other

    @cached_part
    def settings(self) -> SearchSettings:
        """What all strategies have in common."""
        problem, framework = self.problem, self.framework
        stack, _ = parse_stack(problem.job.stack)
        release = find_release(problem.job.software, problem.job.stack, [group.gpu for group in problem.groups])
        return SearchSettings(
            model=problem.model,
            job=problem.job,
            groups=problem.groups,
            framework=framework,
            profiles=problem.profiles,
            stack=problem.profiles.select_stack(framework.name, stack, release),
            pinned=problem.pinned,
            wan_bucket_mb=choose_wan_bucket_mb(problem, framework),
            safe=self.safe,
        )

    @cached_part
    def layout_table(self) -> LayoutTable:
        """The layouts, and what does not depend on options."""
        return self.problem.build_layout_table(self.degrees, self.breadth)

    @cached_part
    def _option_tables(self) -> tuple[list[OptionTable], Ints]:
        """Options of each set of traits, and the number of each layout's set."""
        table = self.layout_table
        traits_LK = np.stack(
            [
                table.tp > 1,
                table.pp > 1,
                table.ep > 1,
                table.dp * table.cp > 1,
                table.replicas_cross,
                table.equal_zones,
                (table.node_shards > 1) & (table.node_shards < table.dp),
                (table.tp > 1) & (self.problem.job.seq_len // table.cp % table.tp == 0),
                table.micro_batch_shares.uneven,
                table.micro_batch_shares.uneven_in_zone,
            ],
            axis=1,
        )
        distinct_traits, table_of_layout = np.unique(traits_LK, axis=0, return_inverse=True)
        job, pinned, dtypes = self.problem.job, self.problem.pinned, self._list_gradient_dtypes()
        tables = [
            list_options(self.framework, job, pinned, LayoutTraits(*map(bool, values)), dtypes)
            for values in distinct_traits.tolist()
        ]
        return tables, table_of_layout.ravel()

    @cached_part
    def _option_counts(self) -> Ints:
        """Number of options of each layout, [L]."""
        tables, traits = self._option_tables
        return np.array([len(table) for table in tables], dtype=np.int64)[traits]

    def count_strategies(self) -> int:
        """Number of strategies, of all layouts."""
        return self._count

    @cached_part
    def _count(self) -> int:
        everything = np.arange(len(self.layout_table.layouts))
        return int(sum(self._option_counts[block.layout].sum() for block in self._build_blocks(everything)))

    def build_outline(self) -> BoundTable | None:
        """Bounds of every layout with a placeholder for its schedule: they hold for all its strategies."""
        if "outline" in self._outline_cache:
            return self._replace_links(self._outline_cache["outline"])
        all_layouts = np.arange(len(self.layout_table.layouts))
        schedules = {
            schedule for stages in np.unique(self.layout_table.pp).tolist() for schedule in self._list_schedules(stages)
        }
        virtual_stages = (
            sorted({schedule.virtual_stages for schedule in schedules if not schedule.v_shaped})
            if self._has_mixed_layers
            else [1]
        )
        placeholders = [
            *map(build_any_schedule, virtual_stages),
            *([ANY_V_SHAPED] if any(schedule.v_shaped for schedule in schedules) else []),
        ]
        outline = self._outline_cache["outline"] = self._assemble_table(
            [self._build_block(all_layouts, schedule) for schedule in placeholders]
        )
        return outline

    def _replace_links(self, table: BoundTable | None) -> BoundTable | None:
        """A known table with the links of this space."""
        if table is None or table.layout_table is self.layout_table:
            return table
        return table.with_links(self.settings, self.layout_table)

    @property
    def _has_mixed_layers(self) -> bool:
        """Some layers have experts and some not, so that virtual stages may differ in cost too."""
        moe = self.problem.model.moe
        return moe is not None and (moe.first_dense > 0 or moe.every > 1)

    def build_bound_table(self, layouts: Ints, *, include_dominated: bool = False) -> BoundTable | None:
        """Bounds of all strategies of some layouts; `include_dominated`: also options that another one always beats."""
        key = (layouts.tobytes(), include_dominated)
        if key in self._recent_tables:
            return self._replace_links(self._recent_tables[key])
        for old in list(self._recent_tables)[: 1 - MAX_TABLES]:
            del self._recent_tables[old]
        self._recent_tables[key] = self._assemble_table(
            self._build_blocks(layouts), include_dominated=include_dominated
        )
        return self._recent_tables[key]

    def _assemble_table(self, blocks: list[NodeBlock], *, include_dominated: bool = False) -> BoundTable | None:
        filled_blocks = [block for block in blocks if len(block.layout)]
        tables, traits = self._option_tables
        if not filled_blocks:
            return None
        table = BoundTable(
            self.settings, self.layout_table, traits, tables, filled_blocks, include_dominated=include_dominated
        )
        table.remembers = self.problem.cache.lasting
        table.share_tables(self._first_table.setdefault(include_dominated, table))
        return table

    def _build_blocks(self, layouts: Ints) -> list[NodeBlock]:
        """Layouts under each schedule they may have."""
        blocks = []
        stages = self.layout_table.pp[layouts]
        stages_by_schedule: dict[ScheduleChoice, list[int]] = {}
        for count in np.unique(stages).tolist():
            for schedule in self._list_schedules(count):
                stages_by_schedule.setdefault(schedule, []).append(count)
        for schedule, counts in stages_by_schedule.items():
            selected = layouts[np.isin(stages, counts)]
            chunks = self.layout_table.given_chunks[selected]
            selected = selected[(chunks == 0) | (chunks == self.layout_table.pp[selected] * schedule.virtual_stages)]
            policy = check_policies(self.problem, "schedule", schedule.name)
            if policy is not None and self.layout_table.pipeline_crosses[selected].any():
                self.ruled_out.add("schedule", schedule.name, policy)
                selected = selected[~self.layout_table.pipeline_crosses[selected]]
            blocks.append(self._build_block(selected, schedule))
        return blocks

    def _build_block(self, layouts: Ints, schedule: ScheduleChoice) -> NodeBlock:
        """Layouts under one schedule with the micro-batches that divide the batch."""
        table, batch = self.layout_table, self.problem.job.global_batch
        even = layouts[self._option_counts[layouts] > 0]
        uneven = even[table.micro_batch_shares.uneven[even]] if self.framework.uneven_micro_batches else even[:0]
        even = even[~table.micro_batch_shares.uneven[even]]
        sizes_B = np.array(self._micro_batches, dtype=np.int64)
        per_round_LB = sizes_B * table.dp[even][:, None]
        count_LB = batch // per_round_LB
        stages = table.pp[even][:, None]
        at, size = np.nonzero((batch % per_round_LB == 0) & self._can_run(schedule, count_LB, stages))
        # With uneven shares only the micro-batch must divide the batch; the slowest chain has the most micro-batches.
        rows = [
            (layout, micro_batch, max(table.micro_batch_shares.per_chain[shares]), shares)
            for layout in uneven.tolist()
            for micro_batch in sizes_B.tolist()
            if (shares := table.micro_batch_shares.number_shares(layout, batch // micro_batch)) != EVEN_SHARES
            and self._can_run(schedule, np.array(table.micro_batch_shares.per_chain[shares]), table.pp[layout]).all()
        ]
        uneven_rows = np.array(rows, dtype=np.int64).reshape(-1, 4)
        return NodeBlock(
            schedule=schedule,
            layouts=np.concatenate([even[np.unique(at)], np.unique(uneven_rows[:, 0])]),
            layout=np.concatenate([even[at], uneven_rows[:, 0]]),
            micro_batch=np.concatenate([sizes_B[size], uneven_rows[:, 1]]),
            micro_batches=np.concatenate([count_LB[at, size], uneven_rows[:, 2]]),
            shares=np.concatenate([np.full(len(at), EVEN_SHARES), uneven_rows[:, 3]]),
        )

    def _can_run(self, schedule: ScheduleChoice, micro_batches: Ints, stages: Any) -> Any:
        """Whether the framework runs a schedule with so many micro-batches; one stage has none to run."""
        return (stages == 1) | self.framework.can_run(schedule.name, schedule.virtual_stages, micro_batches, stages)

    def _is_legal(
        self, degree: str, value: int, *rules: Callable[[Case], Iterator[Notice]], **other_degrees: int
    ) -> bool:
        """Whether rules, the framework and policies allow a value; if not, the reason is added to `ruled_out`."""
        case = self.problem.build_case(Strategy(**{"dp": 1, degree: value} | other_degrees))
        broken = [notice for rule in rules for notice in rule(case) if notice.field == f"strategy.{degree}"]
        broken += check_framework_axes(case, self.framework)
        policy = check_policies(self.problem, degree, value)
        if broken or policy:
            self.ruled_out.add(degree, value, (broken or [policy])[0])  # type: ignore[list-item]
            return False
        return True

    def _list_values(self, degree: str, largest: int) -> range | list[int]:
        if self.problem.is_pinned(degree):
            return [getattr(self.problem.pinned, degree)]
        return range(1, largest + 1)

    @cached_part
    def degrees(self) -> DegreeChoices:
        """Values of every degree that rules, the framework and policies allow."""
        problem, model = self.problem, self.problem.model
        gpus, batch = problem.cluster.gpus, problem.job.global_batch
        node = max(max(group.gpus, group.domain) for group in problem.groups)

        def list_allowed(axis: str, largest: int, *rules: Callable[[Case], Iterator[Notice]]) -> tuple[int, ...]:
            values = self._list_values(axis, largest if axis in self.framework.axes else 1)
            return tuple(value for value in values if self._is_legal(axis, value, *rules))

        replicas = (d for d in range(1, min(batch, gpus) + 1) if batch % d == 0)
        tensor = list_allowed("tp", 2 * node, check_heads, check_widths, check_mamba)
        if problem.pinned.sequence_parallel or problem.pinned.communication.overlap_tensor:
            tensor = tuple(tp for tp in tensor if tp > 1)
        return DegreeChoices(
            tp=tensor,
            pp=list_allowed("pp", min(model.layers, gpus), check_layers),
            cp=list_allowed("cp", min(64, gpus), check_sequence, check_mamba),
            ep=list_allowed("ep", min(model.moe.experts if model.moe else 1, gpus), check_expert_degree),
            dp=(problem.pinned.dp,) if problem.pinned.dp else tuple(replicas),
        )

    @cached_part
    def _micro_batches(self) -> list[int]:
        batch = self.problem.job.global_batch
        if self.problem.is_pinned("micro_batch"):
            return [self.problem.pinned.micro_batch]
        return [b for b in range(1, min(batch, 4096) + 1) if batch % b == 0 and self._is_legal("micro_batch", b)]

    def _list_gradient_dtypes(self) -> list[str | None]:
        """The framework's own type of gradients, and the job's 16-bit type where that is narrower."""
        job = self.problem.job
        narrow = "fp16" if job.precision == "fp16" else "bf16"
        framework_bytes = state_bytes(job, framework=self.framework.name).gradients
        can_narrow = framework_bytes > 2 and narrow in self.framework.gradient_dtypes and job.precision != "fp32"
        return [None, narrow] if can_narrow else [None]

    def _list_schedules(self, stages: int) -> list[ScheduleChoice]:
        """Schedules and virtual stages for so many stages."""
        pinned, layers = self.problem.pinned, self.problem.model.layers
        if stages == 1:
            return [] if pinned.interleave > 1 or self.problem.is_pinned("schedule") else [ScheduleChoice("1f1b", 1)]
        choices = []
        for schedule in self.framework.schedules:
            if self.problem.is_pinned("schedule") and schedule != pinned.schedule:
                continue
            # ends that count as layers: 126 layers are 64 virtual stages of 2 slots, the first and last of 1 layer [R3]
            slots = [layers, layers + ENDS] if self.framework.empty_stages else [layers]
            slots.append(layers + count_tail_slots(self.problem.model))
            if schedule == "interleaved":
                virtual_stages = [
                    v for v in range(2, MAX_VIRTUAL_STAGES + 1) if any(n % (stages * v) == 0 for n in slots)
                ]
            else:
                virtual_stages = [2 if schedule in V_SHAPED else 1]
            if self.problem.is_pinned("interleave"):
                virtual_stages = [v for v in virtual_stages if v == pinned.interleave]
            choices += [
                ScheduleChoice(schedule, v)
                for v in virtual_stages
                if v == 1 or any(n % (stages * v) == 0 for n in slots)
            ]
        return choices


def check_expert_degree(case: Case) -> Iterator[Notice]:
    """Degree ep divides the experts; that it divides the ranks that hold them depends on the layout."""
    return (notice for notice in check_experts(case) if notice.code != "ep_over_ranks")


def build_search_space(
    problem: Problem, framework: Framework, breadth: Breadth | None = None, *, safe: bool = False
) -> SearchSpace:
    """The strategies of one framework: those of a known problem that differs only in its links, if there is one."""
    key = ("space", framework.name, breadth, safe, tuple(problem.zone_orders))
    if key in problem.shared:
        known_space: SearchSpace = problem.shared[key]
        return known_space.with_links(problem)
    space = problem.shared[key] = SearchSpace(problem, framework, breadth, safe=safe)
    return space
