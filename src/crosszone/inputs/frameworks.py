"""What each training framework can do (`frameworks.yaml`)."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import Field

from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Count, Flag, Name, Positive, Value, parse


class Need(Value):
    """Where every option of `when` is in use, each option of `then` must have one of its values."""

    when: dict[Name, Any]
    then: dict[Name, tuple[Any, ...]]
    unless: dict[Name, tuple[Any, ...]] = Field(default_factory=dict)
    """Software that brings what the framework lacks, so that nothing is needed: one of these has one of its values."""


class Framework(Value):
    """One framework's abilities; each list names what a strategy may ask of it."""

    name: Name
    title: Name
    aliases: tuple[Name, ...] = ()
    checked: Name
    source: Name
    axes: tuple[Name, ...] = ()
    zero: tuple[int, ...]
    default_zero: int = 0
    shard_within: tuple[Name, ...] = ("all",)
    schedules: tuple[Name, ...] = ()
    interleaved_groups: Flag = False
    rounds: tuple[Name, ...] = ()
    twice_stages: tuple[Name, ...] = ()
    empty_stages: Flag = False
    sequence_parallel: Flag = False
    recompute: tuple[Name, ...]
    precisions: tuple[Name, ...]
    fp8_recipes: tuple[Name, ...] = ()
    offload: tuple[Name, ...] = ("none",)
    overlap: tuple[Name, ...]
    gradient_dtypes: tuple[Name, ...]
    compression: tuple[Name, ...]
    weight_compression: tuple[Name, ...] = ("none",)
    reduce: tuple[Name, ...]
    local_update: Flag = False
    uneven_micro_batches: Flag = False
    fp32_gradients: Flag = False
    fp32_weights: Flag = False
    vocab_multiple: Count = 1
    vocab_multiple_split: Count | None = None
    bucket_mb: Positive | None = None
    bucket_buffer: Flag = False
    bucket_parameters_m: Positive | None = None
    bucket_parameters_per_rank_m: Positive | None = None
    needs: tuple[Need, ...] = ()

    def find_vocab_multiple(self, tp: int, pp: int) -> int:
        """The vocabulary is padded to a multiple of this times tp."""
        return self.vocab_multiple_split or self.vocab_multiple if tp > 1 or pp > 1 else self.vocab_multiple

    @property
    def has_buckets(self) -> bool:
        """How many gradients are reduced together can be chosen."""
        return self.bucket_mb is not None or self.bucket_parameters_m is not None

    def can_run(self, schedule: str, chunks: int, micro_batches: Any, pp: Any) -> Any:
        """Whether it runs a schedule with so many micro-batches on so many stages: numbers or arrays."""
        # Megatron-LM deals micro-batches to virtual stages in groups of p [S1]; the others as read in frameworks.yaml
        minimum = pp if self.interleaved_groups and chunks > 1 else 2 * pp if schedule in self.twice_stages else 1
        rounds = 1
        if schedule in self.rounds:
            # here, not at the top: `scenario check` asks with plain numbers
            import numpy as np

            rounds = np.maximum(1, micro_batches // pp)
        return (micro_batches >= minimum) & (micro_batches % rounds == 0)


@cache
def load_frameworks() -> dict[str, Framework]:
    """All frameworks by name, in the order they are tried."""
    document = read_shipped("crosszone.inputs", "frameworks.yaml")
    return {
        name: parse(Framework, {"name": name, **entry}, document, at=(name,)) for name, entry in document.value.items()
    }


def resolve_framework_name(name: str) -> str:
    """The framework's own name for any spelling of it; an unknown name comes back as it is."""
    spelling = name.strip().lower().replace("_", "-").replace(" ", "-")
    for framework in load_frameworks().values():
        if spelling == framework.name or spelling in framework.aliases:
            return framework.name
    return spelling if spelling == "any" else name
