"""Operator profiles made from samples: every operator fitted, and what the cost formulas take from it.

made = fitted_profile(read_samples([Path("samples.csv")]))
made.summary(); text_of(made); own_profile(made, "my-gpu")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import yaml

from crosszone.calibrate.operator_checks import make_checks
from crosszone.calibrate.operator_coefficients import coefficients_of
from crosszone.calibrate.operator_correction import Settings
from crosszone.calibrate.operator_fit import LEAST_SAMPLES, fit_operator
from crosszone.calibrate.operator_samples import Read, Samples
from crosszone.calibrate.operator_stacks import stack_coefficients
from crosszone.cost.operator_profile import OperatorProfile
from crosszone.cost.own_profiles import OwnProfile, now
from crosszone.inputs.catalogue import catalogue

BLOCKS = ("layer", "train_step")
"""Sampled to see what a stack adds; they have no form of their own."""
DETERMINABLE = (
    *("matmul", "matmul_fp8", "tile", "grouped", "batched", "unaligned", "flash", "flash_width", "flash_ramp"),
    *("flash_backward", "memory", "score_traffic", "optimizer_traffic", "head_traffic"),
)
"""Coefficients of the cost formulas that samples of operators can tell."""
NEOX_STACKS = ("gpt-neox", "gpt-neox-partitioned", "gpt-neox-flash", "gpt-neox-flash-partitioned")
FOR_STACKS = ("hf-eager", "hf-compile", "ddp", "fsdp", *NEOX_STACKS)
"""Stacks whose other coefficients were fitted beside kernels timed alone: what samples tell is for these."""


def fittable(read: Read) -> list[Samples]:
    """Operators with samples enough."""
    return [one for one in read.samples if one.op not in BLOCKS and len(one.time_us) >= LEAST_SAMPLES]


def fitted_profile(
    read: Read,
    *,
    correction: bool = True,
    settings: Mapping[str, Settings] | None = None,
    source: str = "",
    progress: Callable[[], None] | None = None,
) -> OperatorProfile:
    """The profile of a GPU; what the samples do not tell is not in it, and its notes say so."""
    gpu = catalogue().gpu(read.gpu)
    operators = {}
    for one in fittable(read):
        chosen = (settings or {}).get(one.key)
        operators[one.key] = fit_operator(one, read.processors, correction=correction, settings=chosen)
        if progress is not None:
            progress()
    found = coefficients_of(read, gpu)
    stacks = stack_coefficients(found)
    few = [one.key for one in read.samples if one.op not in BLOCKS and one.key not in operators]
    if few:
        found.notes.append(f"fewer than {LEAST_SAMPLES} samples, not fitted: {', '.join(few)}")
    return OperatorProfile(
        gpu=gpu.name,
        device=read.device,
        source=source or read.source,
        processors=read.processors,
        samples=read.used,
        left_out=read.left_out,
        operators=operators,
        coefficients=found.values,
        stack_coefficients=stacks,
        notes=tuple(found.notes),
        checks=make_checks(read),
    )


def kept(profile: OperatorProfile) -> list[str]:
    """Coefficients that samples can tell and these do not: the shipped values stay."""
    return [name for name in DETERMINABLE if name not in profile.coefficients]


def own_profile(profile: OperatorProfile, name: str) -> OwnProfile:
    """The same as an own profile, which predictions use: what kernels tell of the GPU.

    What whole layers add to their kernels (`stack_coefficients`) is not in it: a single layer in a loop is launched
    otherwise than within a model, and stacks fitted to whole steps are closer.
    """
    notes = [*profile.notes]
    if kept(profile):
        notes.append("kept: " + ", ".join(kept(profile)))
    return OwnProfile(
        name=name,
        source=f"samples of operators: {profile.source}",
        created=now(),
        gpus={profile.gpu: dict(profile.coefficients)} if profile.coefficients else {},
        for_stacks=FOR_STACKS,
        notes=tuple(notes),
        scores={
            "operators": {
                key: {"samples": fit.samples, "error_pct": fit.error_pct, "unseen_pct": fit.unseen_pct}
                for key, fit in profile.operators.items()
            }
        },
    )


def text_of(profile: OperatorProfile) -> str:
    """The profile as its file holds it: figures of a kind on one line, a tree on one line."""
    plain: dict[str, Any] = profile.model_dump(mode="json", exclude_defaults=True)
    head = (
        f"# Times of single operators on {profile.gpu}: physical forms (us; docs/formulas.md, operators from samples)\n"
        "# and small corrections, made by `crosszone calibrate fit`. Errors are means over held-out samples, in %;\n"
        "# unseen: whole sizes held out. Coefficients: what the cost formulas take from the samples.\n"
        "# Checks: some measured shapes, on which the formulas of a predicted step are scored.\n"
    )
    return head + yaml.dump(plain, Dumper=_Lines, sort_keys=False, allow_unicode=True, width=10_000)


class _Lines(yaml.SafeDumper):
    """Mappings and lists of plain numbers and words go on one line, texts of trees on one line each."""

    def represent_mapping(self, tag: Any, mapping: Any, flow_style: bool | None = None) -> Any:
        """A node; on one line where only numbers, words and pairs are in it."""
        node = super().represent_mapping(tag, mapping, flow_style)
        node.flow_style = all(isinstance(one, yaml.ScalarNode) or _pair(one) for _, one in node.value)
        return node

    def represent_sequence(self, tag: Any, sequence: Any, flow_style: bool | None = None) -> Any:
        """A node; on one line where only words are in it."""
        node = super().represent_sequence(tag, sequence, flow_style)
        node.flow_style = not any(" " in getattr(one, "value", "") for one in node.value)
        return node


def _pair(node: yaml.Node) -> bool:
    return isinstance(node, yaml.SequenceNode) and bool(node.flow_style) and len(node.value) == 2
