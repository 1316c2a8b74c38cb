"""Assumptions: what nobody stated and the prediction had to take as usual, and what another value would change.

    for assumption in list_assumptions(predictor):
        assumption.field, assumption.value, assumption.alternatives[0].step_time_s

Switches of the software, the options of a strategy that follow framework and release, and the network of nodes whose
NIC is not given. Each is changed by itself and the same step predicted anew. What was stated is listed too, so that a
reader sees all switches in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from crosszone.cost.columns import PATH_BITS
from crosszone.inputs.cluster import Cluster, NodeGroup
from crosszone.inputs.job import find_compute_path
from crosszone.inputs.rules import list_refusals
from crosszone.inputs.software import Software, format_release, load_software_rules
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import Value
from crosszone.predict.placed_strategy import EXPECTED
from crosszone.text import label
from crosszone.text.figures import format_digits

if TYPE_CHECKING:
    from crosszone.predict.predictor import Predictor

LEAST_CHANGE = 0.002  # Alternatives that change the step by less are not worth a line
MOST_DESCRIBED = 3  # Assumptions that are told in sentences; all others stand in a list
# Options of a strategy whose default follows framework and release.
SHARED_OPTIONS = (
    "sequence_parallel",
    "communication.overlap_tensor",
    "communication.overlap_gradients",
    "communication.overlap_parameters",
)


class Alternative(Value):
    """Another value of an assumption, and the step with it."""

    value: Any
    """What it would be."""
    step_time_s: float
    """Expected step with it, all else the same."""
    change_pct: float
    """Change of the step."""


class Assumption(Value):
    """One input that decides the step: what was taken, where from, and what other values would give."""

    field: str
    """Key of the scenario that states it."""
    value: Any
    """What is predicted with."""
    origin: Literal["stated", "preset", "assumed"]
    """stated in the scenario, part of the named stack, or assumed."""
    zone: str | None = None
    """Zone of the nodes it is about; null: the whole job."""
    gpu: str | None = None
    """GPU kind of these nodes."""
    alternatives: tuple[Alternative, ...] = ()
    """Other values, largest change first."""

    @property
    def worth_pct(self) -> float:
        """Largest change that another value would make."""
        return max((abs(alternative.change_pct) for alternative in self.alternatives), default=0.0)


class DescribedAssumption(Assumption):
    """An assumption with a sentence on it."""

    text: str
    """What is assumed, what other values would give, and the key that states it."""


def describe_assumptions(
    p: Predictor, assumptions: Iterable[Assumption], language: str
) -> tuple[DescribedAssumption, ...]:
    """Those nobody stated that widen the range most, in words."""
    uncertain = [a for a in assumptions if a.origin == "assumed" and a.alternatives]
    return tuple(
        DescribedAssumption(**dict(assumption), text=_describe_assumption(p, assumption, language))
        for assumption in uncertain[:MOST_DESCRIBED]
    )


def _describe_assumption(p: Predictor, assumption: Assumption, language: str) -> str:
    # the first other value has the verb, the others follow it
    others = [
        label(
            "assumption_would_too" if number else "assumption_would",
            language,
            value=format_switch(alternative.value, language),
            step=format_digits(alternative.step_time_s),
        )
        for number, alternative in enumerate(assumption.alternatives)
    ]
    name = name_assumption(assumption, language)
    return label(
        "assumption_text" if assumption.zone is None else "assumption_text_nic",
        language,
        name=name[:1].upper() + name[1:],
        value=format_switch(assumption.value, language),
        zone=assumption.zone,
        gpu=assumption.gpu,
        framework=p.framework.title,
        release=format_release(p.software.release),
        field=assumption.field,
        others=label("comma", language).join(others),
    )


def name_assumption(assumption: Assumption, language: str) -> str:
    """What an assumption is about, in words."""
    if assumption.zone is not None:
        return label("assumption_nic", language, zone=assumption.zone)
    return label(f"assumption_{assumption.field.rpartition('.')[2]}", language)


def format_switch(value: Any, language: str) -> str:
    """A value of a switch as a reader sees it."""
    if isinstance(value, bool):
        return label("assumption_on" if value else "assumption_off", language)
    return format_digits(value) if isinstance(value, float) else str(value)


def list_assumptions(p: Predictor) -> tuple[Assumption, ...]:
    """Every switch and assumed input of a prediction, those first that decide most."""
    listed = [*_list_switches(p), *_list_options(p), *list_networks(p)]
    return tuple(sorted(listed, key=lambda assumption: -assumption.worth_pct))


def _list_switches(p: Predictor) -> Iterator[Assumption]:
    rules: Mapping[str, Any] = load_software_rules()["alternatives"]
    job = p.case.job
    for switch, values in rules.items():
        if not _matters(p, switch):
            continue
        current = p.software[switch]
        stated = (job.software or Software()).replace
        variants = {
            value: replace(p.case, job=job.model_copy(update={"software": stated(**{switch: value})}))
            for value in values
            if value != current
        }
        alternatives = _predict_variants(p, variants)
        origin = p.software.origins[switch]
        yield Assumption(field=f"job.software.{switch}", value=current, origin=origin, alternatives=alternatives)


def _matters(p: Predictor, switch: str) -> bool:
    """Whether the step has what a switch is about."""
    s, has_experts = p.strategy, p.case.model.moe is not None
    narrow = PATH_BITS[find_compute_path(p.case.job)] < PATH_BITS["bf16"]
    needs = {
        "dispatcher": has_experts and s.ep > 1,
        "expert_overlap": has_experts and s.ep > 1,
        "context_exchange": s.cp > 1,
        "attention_precision": narrow,
    }
    return needs.get(switch, True)


def _list_options(p: Predictor) -> Iterator[Assumption]:
    """Options of the strategy whose default follows framework and release."""
    s = p.strategy
    applies = {
        "sequence_parallel": s.tp > 1,
        "communication.overlap_tensor": s.tp > 1,
        "communication.overlap_gradients": (s.dp or 1) > 1,
        "communication.overlap_parameters": (s.dp or 1) > 1 and (s.zero or 0) > 0,
    }
    for field in SHARED_OPTIONS:
        if not applies[field]:
            continue
        current = bool(p.case.get_option(field))
        changed = replace(p.case, strategy=_replace_option(s, field, not current))
        variants = {} if list_refusals(changed, p.framework) else {not current: changed}
        origin: Literal["stated", "assumed"] = "stated" if field in p.stated_options else "assumed"
        yield Assumption(
            field=f"strategy.{field}", value=current, origin=origin, alternatives=_predict_variants(p, variants)
        )


def _replace_option(s: Strategy, field: str, value: Any) -> Strategy:
    outer, _, inner = field.rpartition(".")
    if outer == "communication":
        return s.replace(communication=s.communication.replace(**{inner: value}))
    # tensor overlap needs the sequence split
    communication = s.communication if value else s.communication.replace(overlap_tensor=False)
    return s.replace(**{inner: value}, communication=communication)


def list_networks(p: Predictor) -> Iterator[Assumption]:
    """Networks of node groups whose NIC is not given: that of the GPU's usual machine, and slower and faster ones."""
    if p.placed.nodes < 2:
        return
    factors: list[float] = load_software_rules()["nic_factors"]
    for number, (zone, group) in enumerate(p.placed.cluster.zone_groups):
        if number not in p.placed.groups_in_use or group.nic_gbps_node is not None:
            continue
        usual = group.network_gbps_node / group.gpus
        variants = {
            round(usual * factor, 1): replace(
                p.case, cluster=_replace_network(p.placed.cluster, number, usual * factor)
            )
            for factor in factors
        }
        yield Assumption(
            field=f"cluster.zones.{zone.name}.nodes[{group.gpu.name}].nic_gbps_per_gpu",
            value=usual,
            origin="assumed",
            zone=zone.name,
            gpu=group.gpu.name,
            alternatives=_predict_variants(p, variants),
        )


def _replace_network(cluster: Cluster, number: int, gbps_per_gpu: float) -> Cluster:
    """The cluster with another network at one of its node groups, counted over all zones."""
    zones, count = [], 0
    for zone in cluster.zones:
        nodes: list[NodeGroup] = []
        for group in zone.nodes:
            nodes.append(group.replace(nic_gbps_per_gpu=gbps_per_gpu) if count == number else group)
            count += 1
        zones.append(zone.replace(nodes=tuple(nodes)))
    return cluster.replace(zones=tuple(zones))


def _predict_variants(p: Predictor, variants: Mapping[Any, Any]) -> tuple[Alternative, ...]:
    """The step of each changed case, those that change it, largest change first."""
    expected_s = float(p.step_s[EXPECTED])
    alternatives = []
    for value, case in variants.items():
        step_s = float(p.with_case(case).step_s[EXPECTED])
        change = step_s / expected_s - 1.0
        if abs(change) >= LEAST_CHANGE:
            alternatives.append(Alternative(value=value, step_time_s=step_s, change_pct=100.0 * change))
    return tuple(sorted(alternatives, key=lambda alternative: -abs(alternative.change_pct)))
