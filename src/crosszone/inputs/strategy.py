"""Strategy: how to split the work: degrees, schedule, sharding, recomputation, communication."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from crosszone.inputs.value import Count, Flag, Positive, Value, refuse

# Axes whose degrees multiply to the number of ranks; experts are spread inside them.
AXES = ("tp", "cp", "dp", "pp")

Schedule = Literal["gpipe", "1f1b", "interleaved", "zero-bubble", "zbv", "dualpipev", "delay-aware"]
Degree = Count


class Communication(Value):
    """How ranks exchange data."""

    overlap_gradients: Flag = True
    """Reduce gradients while the backward pass still runs."""
    overlap_parameters: Flag = True
    """Gather sharded weights while the forward pass runs (prefetch)."""
    overlap_tensor: Flag = False
    """Overlap tensor-parallel collectives with the matmuls."""
    overlap: Annotated[float, Strict(), Field(ge=0, le=1)] | None = None
    """Share of what could be hidden that is hidden, 0 to 1; null: as the framework really does it."""
    gradient_dtype: Literal["fp32", "bf16", "fp16"] | None = None
    """Type of gradients on the wire; null: the framework's own."""
    compression: Literal["none", "fp16", "bf16", "int8", "int4", "powersgd", "1-bit"] = "none"
    """Mechanism that shrinks gradients on the wire."""
    compression_rank: Count | None = None
    """Rank of the PowerSGD approximation."""
    weight_compression: Literal["none", "int8"] = "none"
    """Mechanism that shrinks sharded weights on the wire (ZeRO++)."""
    algorithm: Literal["auto", "ring", "tree"] = "auto"
    """Collective algorithm inside a group; auto: the quicker inside a zone, a ring between zones."""
    reduce: Literal["flat", "hierarchical"] = "hierarchical"
    """flat: one ring over all replicas; hierarchical: inside each zone first, then a shard across zones."""
    bucket_mb: Positive | None = None
    """Size of a gradient bucket, MB; null: the framework's default."""
    flows: Annotated[int, Strict(), Field(ge=1, le=1024)] = 1
    """TCP connections per channel between zones."""
    congestion: Literal["cubic", "reno", "bbr"] = "cubic"
    """TCP congestion control of the hosts."""
    socket_buffer_mb: Positive | None = None
    """Socket buffer a connection between zones may have, MB; null: what Linux allows by itself."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.compression == "powersgd") != (self.compression_rank is not None):
            raise refuse("powersgd_rank", self.compression_rank)
        return self


class LocalUpdate(Value):
    """Zones train on their own and average every `steps` steps (DiLoCo family): changes the algorithm."""

    steps: Count
    """Inner steps between two synchronisations."""
    fragments: Count = 1
    """Parts the model is synchronised in, one after the other (streaming)."""
    delay: Annotated[int, Strict(), Field(ge=0, le=1_000_000)] = 0
    """Inner steps a synchronisation may take in the background."""
    dtype: Literal["fp32", "bf16", "fp16", "fp8", "int8", "int4", "fp4"] = "fp32"
    """Type of the exchanged updates."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.steps % self.fragments:
            raise refuse("fragments_over_steps", self.fragments, steps=self.steps, fragments=self.fragments)
        return self


class Strategy(Value):
    """How the work is split. What is left out follows (dp), has its default (predict) or is searched (plan).

    Strategy(tp=8, pp=4, dp=4, micro_batch=1, recompute="selective", zero=1)
    """

    tp: Degree = 1
    """Tensor-parallel ranks: each layer is cut."""
    pp: Degree = 1
    """Pipeline stages: layers are dealt out."""
    dp: Degree | None = None
    """Data-parallel replicas; null: as many as the GPUs allow."""
    cp: Degree = 1
    """Context-parallel ranks: each sequence is cut."""
    ep: Degree = 1
    """Ranks that the experts of a layer are spread over, inside dp, cp and tp."""
    expert_tp: Degree | None = None
    """Tensor-parallel ranks of one expert; null: 1 with expert parallelism, else tp."""
    micro_batch: Degree = 1
    """Samples of one micro-batch."""
    replica_micro_batches: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    """Micro-batches of each replica of a step, in dp order; null: equal."""
    interleave: Degree = 1
    """Virtual stages (model chunks) per pipeline stage."""
    schedule: Schedule | None = None
    """Pipeline schedule; null: 1f1b, or interleaved when interleave > 1."""
    extra_warmup: Annotated[int, Strict(), Field(ge=0, le=100_000)] = 0
    """Micro-batches more in flight than 1f1b has (delay-aware schedule)."""
    layers_per_stage: tuple[Annotated[int, Strict(), Field(ge=0, le=10_000)], ...] | None = None
    """Layers of each virtual stage in pipeline order, 0 for one that holds none; null: dealt out evenly."""
    zero: Literal[0, 1, 2, 3] | None = None
    """ZeRO stage: 1 shards optimizer states, 2 gradients too, 3 weights too; null: 3 for fsdp, else 0."""
    shard_within: Literal["all", "zone", "node"] = "all"
    """Replicas that share one set of states; zone or node: the others hold copies (HSDP)."""
    shard_ranks: Count | None = None
    """Replicas that share one set of states, as a number; null: as shard_within says."""
    sequence_parallel: Flag = False
    """Split what tensor parallelism leaves whole along the sequence."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Activations computed again in the backward pass."""
    offload: Literal["none", "optimizer", "optimizer+weights"] = "none"
    """States kept in host memory."""
    communication: Communication = Communication()
    """Overlap, compression, collectives and connections."""
    local_update: LocalUpdate | None = None
    """Periodic averaging across zones in place of a reduction every step."""

    @property
    def pinned(self) -> frozenset[str]:
        """The fields that were given."""
        return frozenset(self.model_fields_set)

    @property
    def pipeline_schedule(self) -> str:
        """The schedule that is used."""
        return self.schedule or ("interleaved" if self.interleave > 1 else "1f1b")

    @property
    def model_ranks(self) -> int:
        """Ranks that hold one copy of the model: t x p x c. [R1]"""
        return self.tp * self.pp * self.cp

    @property
    def ranks(self) -> int:
        """Ranks in all: t x p x c x d. [R1]"""
        if self.dp is None:
            raise ValueError("dp is not settled yet")
        return self.model_ranks * self.dp

    @property
    def uneven(self) -> bool:
        """Replicas differ in how many micro-batches they take."""
        return self.replica_micro_batches is not None and len(set(self.replica_micro_batches)) > 1

    @property
    def expert_slices(self) -> int:
        """Ranks that one expert is cut over: experts that are spread stay whole unless asked otherwise."""
        return self.expert_tp or (1 if self.ep > 1 else self.tp)

    def settle_dp(self, room: int, global_batch: int) -> Strategy:
        """The same strategy with dp filled in: the most replicas that `room` ranks hold and the batch divides by.

        Where the micro-batches of each replica are given, there are as many replicas.
        """
        if self.dp is not None:
            return self
        if self.replica_micro_batches is not None:
            return self.replace(dp=len(self.replica_micro_batches))
        upper = max(1, room // self.model_ranks)
        fitting = (d for d in range(upper, 0, -1) if global_batch % (self.micro_batch * d) == 0)
        # no number of replicas divides the batch: `rules.check_batch` then says which numbers clash
        return self.replace(dp=next(fitting, upper))

    def micro_batches(self, global_batch: int) -> int:
        """Micro-batches of one step on one replica, the most of any; equal ones have B / (b d). [R2]

        Gradient accumulation is this.
        """
        if self.replica_micro_batches is not None:
            return max(self.replica_micro_batches)
        return global_batch // (self.micro_batch * (self.dp or 1))
