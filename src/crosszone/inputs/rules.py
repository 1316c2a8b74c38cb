"""The hard rules: which strategies cannot run at all, whatever the planner prefers.

Each rule is a function that yields a notice with the two numbers that clash and the nearest legal value.
`RULES` hold for every framework, `FRAMEWORK_RULES` compare with what one framework can do. Preferences
(tensor parallelism inside a fast-link domain, ...) are not rules; they belong to the planner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from crosszone.errors import IllegalError, Notice
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.frameworks import Framework, load_frameworks
from crosszone.inputs.job import Job, find_compute_path, list_precision_architectures
from crosszone.inputs.model import Model
from crosszone.inputs.placement import Placement, check_tp_room
from crosszone.inputs.software import COMMUNICATION_DEFAULTS, find_newest_architecture, find_release, select_defaults
from crosszone.inputs.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a rule looks at; dp of the strategy is settled, and the ZeRO stage once a framework is chosen."""

    model: Model
    job: Job
    cluster: Cluster
    strategy: Strategy
    placement: Placement | None = None

    @property
    def dp(self) -> int:
        """Data-parallel replicas."""
        return self.strategy.dp or 1

    def with_framework(self, framework: Framework) -> Case:
        """The same case as the framework would run it: its own ZeRO stage and reduction where none was given."""
        settled = self._with_usual_options(framework)
        if settled.is_given(REDUCE) or settled._has_hierarchy(framework):
            return settled
        flat = settled.strategy.communication.replace(reduce="flat")
        return replace(settled, strategy=settled.strategy.replace(communication=flat))

    @property
    def release(self) -> float:
        """Release of the training software: as stated, else the usual one of the newest GPUs."""
        return find_release(self.job.software, self.job.stack, self.cluster.gpu_kinds)

    @property
    def architecture(self) -> str | None:
        """Architecture of the newest GPUs, which software is made for."""
        return find_newest_architecture(self.cluster.gpu_kinds)

    def _with_usual_options(self, framework: Framework) -> Case:
        """The same with options that were not given as they are usual for the framework and its release. [J4]"""
        s, usual = self.strategy, select_defaults(framework.name, self.release, self.architecture)
        options: dict[str, Any] = {}
        if s.zero is None:
            zero = usual.get("zero", framework.default_zero)
            options["zero"] = zero if zero in framework.zero else framework.default_zero
        required = self._list_required_options(framework)
        if not self.is_given("sequence_parallel") and usual["sequence_parallel"]:
            split = framework.sequence_parallel and s.tp > 1 and not (self.job.seq_len // s.cp) % s.tp
            options["sequence_parallel"] = split
        recompute = usual.get("recompute", s.recompute)
        if not self.is_given("recompute") and recompute in framework.recompute:
            options["recompute"] = recompute
        settled = s.replace(**options) if options else s
        wire: dict[str, Any] = {}
        lacking = {f"overlap_{exchange}" for exchange in EXCHANGES if exchange not in framework.overlap}
        # who says how much hides says that it may
        has_overlap = self.is_given("communication.overlap") and s.communication.overlap is not None
        following = {"overlap_gradients", "overlap_parameters"} if has_overlap else set()
        for name in COMMUNICATION_DEFAULTS:
            if name in lacking | following:  # not an option of the framework: nothing is sent that could overlap
                continue
            path = f"communication.{name}"
            # what a stated option needs is set with it: --overlap-param-gather brings --overlap-grad-reduce
            if name in usual and not self.is_given(path) and usual[name] in required.get(path, (usual[name],)):
                wire[name] = usual[name]
        if "overlap_tensor" in wire:
            wire["overlap_tensor"] = wire["overlap_tensor"] and settled.sequence_parallel and s.tp > 1
        if "overlap_parameters" in wire:
            wire["overlap_parameters"] = wire["overlap_parameters"] and (settled.zero or 0) > 0
        c = settled.communication
        wire = {name: value for name, value in wire.items() if value != getattr(c, name)}
        if wire:
            settled = settled.replace(communication=c.replace(**wire))
        return self if settled is s else replace(self, strategy=settled)

    def _list_required_options(self, framework: Framework) -> dict[str, tuple[Any, ...]]:
        """Values that the stated options leave to others, by path, as the framework needs them together."""
        return {
            path: tuple(allowed)
            for need in framework.needs
            if all(_is_in_use(self, given, values) for given, values in need.when.items())
            for path, allowed in need.then.items()
        }

    def _has_hierarchy(self, framework: Framework) -> bool:
        """The framework can reduce inside zones first, with these other options."""
        if "hierarchical" not in framework.reduce:
            return False
        needs = (need.then for need in framework.needs if need.when == {REDUCE: ["hierarchical"]})
        return all(self.get_option(path) in allowed for then in needs for path, allowed in then.items())

    def get_option(self, path: str) -> Any:
        """An option by the name a file gives it: `zero`, `communication.reduce`, `job.optimizer`."""
        value: Any = self.job if path.startswith("job.") else self.strategy
        for step in path.removeprefix("job.").split("."):
            value = getattr(value, step)
        return value

    def is_given(self, path: str) -> bool:
        """The option was given, not left at its default."""
        outer, _, inner = path.rpartition(".")
        holder = self.strategy.communication if outer == "communication" else self.strategy
        return outer == "job" or inner in holder.model_fields_set


REDUCE = "communication.reduce"
EXCHANGES = ("gradients", "parameters", "tensor")  # What may overlap with compute, each an option `overlap_...`

Rule = Callable[[Case], Iterator[Notice]]
FrameworkRule = Callable[[Case, Framework], Iterator[Notice]]


def list_broken_rules(case: Case) -> list[Notice]:
    """Every rule that the strategy breaks, whatever the framework."""
    return [notice for rule in (*JOB_RULES, *RULES) for notice in rule(case)]


def list_refusals(case: Case, framework: Framework) -> list[Notice]:
    """Which parts of the strategy one framework cannot do."""
    chosen = case.with_framework(framework)
    return [notice for rule in FRAMEWORK_RULES for notice in rule(chosen, framework)]


def find_able_frameworks(case: Case) -> tuple[list[Framework], list[Notice]]:
    """The frameworks that can do the strategy, and the first refusal of each of the others."""
    frameworks, name = load_frameworks(), case.job.framework
    able, refused = [], []
    for framework in frameworks.values() if name == "any" else (frameworks[name],):
        broken = list_refusals(case, framework)
        if broken:
            refused.append(broken[0])
        else:
            able.append(framework)
    return able, refused


def require_legal(case: Case) -> tuple[Framework, Strategy]:
    """The first framework that can run the strategy, and the strategy as it would; `IllegalError` if none can."""
    broken = list_broken_rules(case)
    able, refused = find_able_frameworks(case)
    if broken or not able:
        raise IllegalError(*broken, *([] if able else refused))
    return able[0], case.with_framework(able[0]).strategy


def _build_notice(code: str, field: str, value: Any, **params: Any) -> Notice:
    return Notice(code=code, field=f"strategy.{field}", value=value, params=params)


def find_largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return next(d for d in range(max(1, min(number, limit)), 0, -1) if number % d == 0)


def _check_divides(code: str, field: str, degree: int, total: int, **params: Any) -> Iterator[Notice]:
    """A notice with the nearest legal degree, unless `degree` divides `total`."""
    if total % degree:
        yield _build_notice(code, field, degree, **params, legal=find_largest_divisor(total, degree))


def check_ranks(case: Case) -> Iterator[Notice]:
    """The t p c d ranks need as many GPUs. [R1]"""
    s, gpus = case.strategy, case.cluster.gpus
    if s.ranks > gpus:
        legal = gpus // s.model_ranks
        params = {"ranks": s.ranks, "gpus": gpus, "tp": s.tp, "pp": s.pp, "cp": s.cp, "dp": case.dp, "legal": legal}
        yield _build_notice("ranks_over_gpus" if legal else "model_over_gpus", "dp", case.dp, **params)


def check_batch(case: Case) -> Iterator[Notice]:
    """B = b x the micro-batches of all replicas: given for each, or m d with a whole number m. [R2]"""
    s, batch = case.strategy, case.job.global_batch
    if s.replica_micro_batches is not None:
        yield from _check_replica_micro_batches(case, s.replica_micro_batches)
        return
    per_round = s.micro_batch * case.dp
    if batch % per_round:
        params = {"batch": batch, "dp": case.dp, "product": per_round}
        params["near"] = max(per_round, batch // per_round * per_round)
        params["legal"] = find_largest_divisor(batch, per_round)
        yield _build_notice("batch_not_divided", "micro_batch", s.micro_batch, **params)


def _check_replica_micro_batches(case: Case, counts: tuple[int, ...]) -> Iterator[Notice]:
    """One entry a replica; the samples of all add up to the batch."""
    s, batch = case.strategy, case.job.global_batch
    samples = s.micro_batch * sum(counts)
    if len(counts) != case.dp:
        yield _build_notice("replica_batches_length", "replica_micro_batches", len(counts), dp=case.dp)
    elif samples != batch:
        legal = find_largest_divisor(batch, s.micro_batch)
        params = {"batch": batch, "micro_batch": s.micro_batch, "samples": samples}
        params |= {"legal": legal, "needed": batch // legal}
        yield _build_notice("replica_batches_sum", "replica_micro_batches", sum(counts), **params)


def check_heads(case: Case) -> Iterator[Notice]:
    """Degree t divides the heads, and divides the KV heads or is a multiple of them (which are then copied)."""
    t, model = case.strategy.tp, case.model
    if not model.attention_layers:
        return
    if model.heads % t:
        yield from _check_divides("tp_over_heads", "tp", t, model.heads, heads=model.heads)
    # latent attention has keys and values for every head
    elif t % model.kv_heads and not model.mla:
        yield from _check_divides("tp_over_kv_heads", "tp", t, model.kv_heads, kv_heads=model.kv_heads)


def check_widths(case: Case) -> Iterator[Notice]:
    """Degree t divides the width of the MLP and of an expert."""
    t, model = case.strategy.tp, case.model
    widths = {"ffn_hidden": model.ffn_hidden} if model.mlp_layers else {}
    if model.moe and case.strategy.ep == 1:
        widths["moe.ffn_hidden"] = model.moe.ffn_hidden
    for key, width in widths.items():
        yield from _check_divides("tp_over_width", "tp", t, width, key=key, width=width)


def check_mamba(case: Case) -> Iterator[Notice]:
    """Degree t divides the heads and the groups of Mamba layers; their sequence is not cut by context parallelism."""
    s, mamba = case.strategy, case.model.mamba
    if mamba is None:
        return
    # MambaMixer of Megatron-Core: each rank has whole heads, and whole groups of them
    for key, number in {"mamba.heads": mamba.heads, "mamba.groups": mamba.groups}.items():
        yield from _check_divides("tp_over_mamba", "tp", s.tp, number, key=key, number=number)
    if s.cp > 1:
        yield _build_notice("cp_with_mamba", "cp", s.cp)


def check_tensor_groups(case: Case) -> Iterator[Notice]:
    """Every tensor-parallel group sits in one zone, on one GPU kind, in whole nodes or inside one."""
    if case.strategy.ranks > case.cluster.gpus or case.placement is not None:
        return  # reported by `check_ranks`, or the placement itself is checked
    refused = check_tp_room(case.cluster, case.strategy)
    if refused is not None:
        yield refused


# Embedding and head: each may take the place of a layer, so that a virtual stage may hold one of them alone.
ENDS = 2


def check_layers(case: Case) -> Iterator[Notice]:
    """Each of the p v virtual stages needs a layer, the embedding or the head; a given split says which has how many.

    L + 2 virtual stages are legal: the first one then holds the embedding alone, the last one the head. [R3]
    """
    s, layers = case.strategy, case.model.layers
    chunks = s.pp * s.interleave
    if chunks > layers and chunks != layers + ENDS and s.layers_per_stage is None:
        params = {"chunks": chunks, "interleave": s.interleave, "layers": layers, "slots": layers + ENDS}
        yield _build_notice("stages_over_layers", "pp", s.pp, **params)
    if s.layers_per_stage is not None:
        layers_per_stage = list(s.layers_per_stage)
        if len(layers_per_stage) != chunks:
            yield _build_notice("split_length", "layers_per_stage", len(layers_per_stage), chunks=chunks)
        elif sum(layers_per_stage) != layers:
            yield _build_notice("split_sum", "layers_per_stage", sum(layers_per_stage), layers=layers)


def check_schedule(case: Case) -> Iterator[Notice]:
    """Interleaving needs stages; each schedule has the number of virtual stages it was made for."""
    s, schedule = case.strategy, case.strategy.pipeline_schedule
    if s.interleave > 1 and s.pp == 1:
        yield _build_notice("interleave_without_stages", "interleave", s.interleave, pp=s.pp)
    # a V goes down the stages and up again: two virtual stages on each [S2]
    elif schedule in ("zbv", "dualpipev") and s.interleave != 2 and s.pp > 1:
        yield _build_notice("v_schedule_chunks", "interleave", s.interleave, schedule=schedule)
    elif schedule in ("gpipe", "1f1b", "zero-bubble", "delay-aware") and s.interleave > 1:
        yield _build_notice("schedule_not_interleaved", "schedule", schedule, interleave=s.interleave)
    elif schedule == "interleaved" and s.interleave == 1 and s.pp > 1:
        yield _build_notice("interleaved_without_chunks", "interleave", s.interleave)
    if s.extra_warmup and schedule != "delay-aware":
        yield _build_notice("warmup_schedule", "extra_warmup", s.extra_warmup, schedule=schedule)


def check_sequence(case: Case) -> Iterator[Notice]:
    """Degree c divides the sequence (2c if causal, to share the work evenly); so does t with sequence parallelism."""
    s, length = case.strategy, case.job.seq_len
    # causal: each rank takes a part from the front and one from the back, for later tokens see more
    halves = 2 if case.model.causal else 1
    if s.cp > 1 and length % (halves * s.cp):
        legal = next((c for c in range(s.cp, 1, -1) if length % (halves * c) == 0), 1)
        yield _build_notice("cp_over_sequence", "cp", s.cp, length=length, parts=halves * s.cp, legal=legal)
    if s.sequence_parallel and s.tp == 1:
        yield _build_notice("sequence_parallel_alone", "sequence_parallel", True, tp=s.tp)
    elif s.sequence_parallel:
        yield from _check_divides("sequence_parallel_length", "tp", s.tp, length // s.cp, length=length // s.cp)


def check_experts(case: Case) -> Iterator[Notice]:
    """Degree e divides the experts, and the ranks t c d that hold one stage."""
    s, moe = case.strategy, case.model.moe
    if s.ep == 1:
        return
    if moe is None:
        yield _build_notice("ep_without_experts", "ep", s.ep, model=case.model.name)
        return
    yield from _check_divides("ep_over_experts", "ep", s.ep, moe.experts, experts=moe.experts)
    holders = s.tp * s.cp * case.dp
    yield from _check_divides("ep_over_ranks", "ep", s.ep, holders, holders=holders)


def check_expert_slices(case: Case) -> Iterator[Notice]:
    """Tensor-parallel ranks of an expert divide its width, and with e the ranks t c d that hold one stage."""
    s, moe = case.strategy, case.model.moe
    if s.expert_tp is None:
        return
    if moe is None:
        yield _build_notice("expert_tp_without_experts", "expert_tp", s.expert_tp, model=case.model.name)
        return
    width = moe.ffn_hidden
    yield from _check_divides("expert_tp_over_width", "expert_tp", s.expert_tp, width, width=width)
    holders = s.tp * s.cp * case.dp
    if holders % (s.ep * s.expert_tp):
        legal = find_largest_divisor(max(1, holders // s.ep), s.expert_tp)
        yield _build_notice("expert_tp_over_ranks", "expert_tp", s.expert_tp, ep=s.ep, holders=holders, legal=legal)


def check_shard_ranks(case: Case) -> Iterator[Notice]:
    """A number of replicas that share states divides all of them, and is not given with `shard_within` too."""
    s = case.strategy
    if s.shard_ranks is None:
        return
    yield from _check_divides("shard_ranks_over_dp", "shard_ranks", s.shard_ranks, case.dp, dp=case.dp)
    if s.shard_within != "all":
        yield _build_notice("shard_ranks_twice", "shard_ranks", s.shard_ranks, within=s.shard_within)
    if s.local_update is not None:
        yield _build_notice("shard_ranks_local_update", "shard_ranks", s.shard_ranks)


def check_precision(case: Case) -> Iterator[Notice]:
    """Every GPU kind has the tensor path of the precision, and is of a generation that has its format."""
    path, generations = find_compute_path(case.job), list_precision_architectures(case.job)
    for gpu in case.cluster.gpu_kinds:
        # a GPU of the user's own has no architecture to go by: its peaks are believed
        is_supported = not generations or gpu.architecture in (*generations, "custom")
        if gpu.peak(path) is None or not is_supported:
            able = [name for name in ("bf16", "fp16", "fp8", "fp32") if gpu.peak(name) is not None]
            params = {"gpu": gpu.name, "path": case.job.precision if gpu.peak(path) else path, "able": able}
            yield Notice(code="gpu_lacks_precision", field="job.precision", value=case.job.precision, params=params)


def check_local_update(case: Case) -> Iterator[Notice]:
    """Zones that train on their own each need whole replicas."""
    s, placement = case.strategy, case.placement
    zones = len({block.zone for block in placement.blocks} if placement else case.cluster.zones)
    if s.local_update and (zones < 2 or case.dp % zones):
        yield _build_notice("local_update_zones", "local_update", case.dp, zones=zones, dp=case.dp)


JOB_RULES: tuple[Rule, ...] = (check_precision,)  # Rules that need no strategy

RULES: tuple[Rule, ...] = (
    check_ranks,
    check_batch,
    check_heads,
    check_widths,
    check_mamba,
    check_tensor_groups,
    check_layers,
    check_schedule,
    check_sequence,
    check_experts,
    check_expert_slices,
    check_shard_ranks,
    check_local_update,
)


def check_framework_axes(case: Case, framework: Framework) -> Iterator[Notice]:
    """The framework has every axis in use."""
    for axis in ("tp", "pp", "cp", "ep"):
        degree = case.get_option(axis)
        if degree > 1 and axis not in framework.axes:
            yield _build_refusal(framework, "framework_lacks_axis", axis, degree, axis=axis)


def check_framework_schedule(case: Case, framework: Framework) -> Iterator[Notice]:
    """The framework has the pipeline schedule, and enough micro-batches to interleave."""
    s = case.strategy
    if s.pp == 1 or "pp" not in framework.axes:
        return
    schedule = s.pipeline_schedule
    if schedule not in framework.schedules:
        yield _build_refusal(framework, "framework_lacks", "schedule", schedule, allowed=framework.schedules)
    m = s.micro_batches(case.job.global_batch)
    if framework.interleaved_groups and s.interleave > 1 and m < s.pp:
        yield _build_refusal(framework, "framework_interleaved_groups", "interleave", s.interleave, m=m, pp=s.pp)
    odd = [
        count for count in s.replica_micro_batches or (m,) if count and not framework.can_run(schedule, 1, count, s.pp)
    ]
    if odd and schedule in framework.twice_stages:
        yield _build_refusal(framework, "framework_few_micro_batches", "schedule", schedule, m=odd[0], least=2 * s.pp)
    elif odd:
        rounds = odd[0] // s.pp
        near = odd[0] // rounds * rounds
        yield _build_refusal(
            framework, "framework_rounds", "schedule", schedule, m=odd[0], pp=s.pp, rounds=rounds, near=near
        )


def check_framework_layers(case: Case, framework: Framework) -> Iterator[Notice]:
    """The framework has virtual stages without layers, where there are any."""
    s, layers = case.strategy, case.model.layers
    if s.pp == 1 or framework.empty_stages:
        return
    counts = s.layers_per_stage
    if counts is not None and 0 in counts:
        yield _build_refusal(
            framework, "framework_empty_stage", "layers_per_stage", list(counts), empty=counts.index(0)
        )
    elif counts is None and s.pp * s.interleave > layers:
        params = {"chunks": s.pp * s.interleave, "layers": layers}
        yield _build_refusal(framework, "framework_stages_over_layers", "pp", s.pp, **params)


def check_framework_options(case: Case, framework: Framework) -> Iterator[Notice]:
    """The framework has each option of the strategy."""
    s, c = case.strategy, case.strategy.communication
    requested: tuple[tuple[str, tuple[Any, ...]], ...] = (
        ("zero", framework.zero),
        ("shard_within", framework.shard_within),
        ("recompute", framework.recompute),
        ("offload", framework.offload),
        ("communication.compression", framework.compression),
        ("communication.weight_compression", framework.weight_compression),
        ("communication.reduce", framework.reduce),
        ("communication.gradient_dtype", framework.gradient_dtypes),
    )
    for key, allowed in requested:
        value = case.get_option(key)
        is_default = value is None and key != "zero"  # null, even when written down: as the framework does it
        if not is_default and value not in allowed and (case.is_given(key) or key == "zero"):
            yield _build_refusal(framework, "framework_lacks", key, value, allowed=allowed)
    for exchange in EXCHANGES:
        key = f"overlap_{exchange}"
        if key in c.model_fields_set and getattr(c, key) and exchange not in framework.overlap:
            yield _build_refusal(framework, "framework_lacks_option", f"communication.{key}", True)
    steps, counts = s.local_update and s.local_update.steps, list(s.replica_micro_batches or ())
    # option, its value where it is in use (else None or False), whether the framework has it
    options: tuple[tuple[str, Any, bool], ...] = (
        ("communication.bucket_mb", c.bucket_mb, framework.has_buckets),
        ("sequence_parallel", s.sequence_parallel, framework.sequence_parallel),
        ("expert_tp", s.expert_tp, "ep" in framework.axes),
        ("shard_ranks", s.shard_ranks, framework.shard_within != ("all",)),
        ("local_update", steps, framework.local_update),
        ("replica_micro_batches", s.uneven and counts, framework.uneven_micro_batches),
    )
    for key, value, is_able in options:
        if value and not is_able:
            yield _build_refusal(framework, "framework_lacks_option", key, value)


def check_equal_shards(case: Case, framework: Framework) -> Iterator[Notice]:
    """Replicas that share gradients or weights meet in every micro-batch, so each of them has equally many.

    Checked here where all replicas share them; which of them lie in one zone or node is known once they are placed.
    """
    s = case.strategy
    if not (s.uneven and framework.uneven_micro_batches and (s.zero or 0) >= 2 and s.shard_within == "all"):
        return
    counts = s.replica_micro_batches or ()
    size = s.shard_ranks or len(counts)
    for first in range(0, len(counts), size):
        if len(set(counts[first : first + size])) > 1:
            yield build_uneven_shards_notice(s, counts[first : first + size])
            return


def build_uneven_shards_notice(s: Strategy, counts: Collection[int]) -> Notice:
    """That replicas share one set of states, but take these different numbers of micro-batches."""
    params = {"zero": s.zero, "within": s.shard_within, "least": min(counts), "most": max(counts)}
    return _build_notice("uneven_shards", "replica_micro_batches", list(s.replica_micro_batches or ()), **params)


def check_framework_precision(case: Case, framework: Framework) -> Iterator[Notice]:
    """The framework trains in the precision."""
    for option, allowed in (("precision", framework.precisions), ("fp8_recipe", framework.fp8_recipes)):
        value = getattr(case.job, option)
        if value is not None and value not in allowed:
            params = {"framework": framework.title, "option": option, "allowed": allowed}
            yield Notice(code="framework_lacks", field=f"job.{option}", value=value, params=params)


def check_framework_needs(case: Case, framework: Framework) -> Iterator[Notice]:
    """Options that the framework has only together are together."""
    for need in framework.needs:
        if not all(_is_in_use(case, path, required) for path, required in need.when.items()):
            continue
        if any(case.get_option(path) in values for path, values in need.unless.items()):
            continue
        for path, allowed in need.then.items():
            if case.get_option(path) not in allowed:
                reason = " and ".join(f"{key}={_format_value(case.get_option(key))}" for key in need.when)
                params = {"reason": reason, "allowed": [_format_value(value) for value in allowed]}
                yield _build_refusal(framework, "framework_needs", path, case.get_option(path), **params)


def _is_in_use(case: Case, path: str, required: Any) -> bool:
    if required == "more":
        return bool(case.get_option(path) > 1)
    return case.is_given(path) and case.get_option(path) in required


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


FRAMEWORK_RULES: tuple[FrameworkRule, ...] = (
    check_framework_axes,
    check_framework_schedule,
    check_framework_layers,
    check_framework_options,
    check_equal_shards,
    check_framework_needs,
    check_framework_precision,
)


def _build_refusal(framework: Framework, code: str, key: str, value: Any, **params: Any) -> Notice:
    field = key if key.startswith("job.") else f"strategy.{key}"
    return Notice(code=code, field=field, value=value, params={"framework": framework.title, "option": key, **params})
