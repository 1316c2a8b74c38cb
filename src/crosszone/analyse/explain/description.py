"""Description: what a recorded number is: label, unit, formula, symbol, and where it comes from (`figures.yaml`).

Explanation: how one shown number comes about, with everything that goes in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

from crosszone.cost.expression import RecordedEntry
from crosszone.cost.memory import read_memory_entries
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.cluster import NodeGroup, Zone
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.value import Value
from crosszone.predict.breakdown import find_last_updated_stage, find_slowest_stage
from crosszone.predict.prediction import Prediction
from crosszone.predict.predictor import Predictor
from crosszone.predict.run import read_power_entries
from crosszone.text import load_texts

# Where a number comes from: typed, a datasheet, a coefficient, another figure, a rule over what was typed, ...
Origin = Literal["scenario", "catalogue", "profile", "figure", "rule", "constant", "simulated"]


@dataclass(frozen=True)
class LabelWords:
    """A label with its parameters, said when the language is known; parameters may be words themselves."""

    key: str
    params: Mapping[str, object] = field(default_factory=dict)


class Input(Value):
    """A number that goes in."""

    name: str
    """Its symbol in the expression."""
    label: str
    """What it is."""
    value: float
    """The number."""
    unit: str
    """Its unit; empty: none."""
    origin: Origin
    """Where it comes from: scenario, catalogue, profile, figure, rule, constant or simulated."""
    where: str
    """Field of the scenario, home of a coefficient, entry and source of a datasheet's figure; may be empty."""
    error: float | None
    """Standard error of a coefficient, as a share of it."""
    figure: str | None
    """Path of the figure it is, so that it can be opened in turn."""


class SummandLine(Value):
    """One of the terms that add up to a figure."""

    label: str
    """What it is."""
    worked: str
    """Its numbers put in."""
    value: float
    """What it comes to."""
    unit: str
    """Its unit; empty: none."""
    figure: str | None
    """Path of the figure it is (or of the part it repeats), where that can be opened."""


class Explanation(Value):
    """A figure with its formula, inputs and the numbers put in."""

    figure: str
    """Path of the figure in the prediction, or of a part of one."""
    label: str
    """What it is."""
    value: float
    """The number."""
    unit: str
    """Its unit; empty: none."""
    low: float | None
    """Low end of its range, where it has one."""
    high: float | None
    """High end."""
    formula: str
    """Id of the formula in docs/formulas.md."""
    title: str
    """Its title there."""
    text: str
    """Its text there, Markdown, in English."""
    symbols: str
    """The expression with the names of the inputs."""
    worked: str
    """The same with the numbers put in: its value is the figure."""
    result: float
    """Value of that expression."""
    inputs: tuple[Input, ...]
    """Every number that goes in."""
    lines: tuple[SummandLine, ...]
    """Terms of a long sum; empty where the expression stands alone."""
    notes: tuple[str, ...]
    """What a reader should know: what was simulated, which case of a formula holds here."""


def render_words(words: LabelWords, language: str) -> str:
    """The text of a label in a language: from group `figure`, else from the labels that all surfaces share."""
    groups = load_texts(language)
    text: str = groups["figure"].get(words.key) or groups["label"][words.key]
    params = {
        key: render_words(param, language) if isinstance(param, LabelWords) else param
        for key, param in words.params.items()
    }
    return text.format_map(params) if params else text


# What symbols leave out of names.
SHORTENED = re.compile(r"^(?:breakdown_s|run\.goodput|run|memory|memory_gib)\.")


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule of `figures.yaml`."""

    name: re.Pattern[str]
    label: str
    params: Mapping[str, str] = field(default_factory=dict)
    unit: str = ""
    formula: str = ""
    origin: Origin | None = None
    where: str = ""
    catalogue: str = ""
    symbol: str = ""
    note: tuple[str, ...] = ()
    zero: str = ""
    term_unit: str | None = None


class MatchedRule(NamedTuple):
    """A rule with what its name's groups were."""

    rule: Rule
    groups: tuple[str, ...]

    def fill(self, text: str, about: Mapping[str, str]) -> str:
        """A text of the rule with the groups of the name and the parameters of the number filled in."""
        if "{" not in text:
            return text
        return text.format("", *(group or "" for group in self.groups), **about)


@cache
def load_rules() -> tuple[Rule, ...]:
    """All rules, in order."""
    loaded: list[dict[str, Any]] = read_shipped("crosszone.analyse", "explain/figures.yaml").value
    compiled = []
    for rule in loaded:
        more = {key: rule[key] for key in rule if key not in ("name", "with", "note")}
        note = tuple(rule.get("note", ()))
        compiled.append(Rule(name=re.compile(rule["name"]), params=rule.get("with", {}), note=note, **more))
    return tuple(compiled)


@cache
def find_rule(name: str) -> MatchedRule:
    """The first rule that matches a name."""
    for rule in load_rules():
        match = rule.name.fullmatch(name)
        if match:
            return MatchedRule(rule, match.groups())
    raise KeyError(name)


class NumberSource(NamedTuple):
    """Where a number comes from."""

    origin: Origin
    where: str
    error: float | None = None


@dataclass(frozen=True)
class Descriptions:
    """Descriptions of the recorded numbers of one prediction."""

    p: Predictor
    prediction: Prediction
    _places: dict[tuple[int, int], dict[str, str]] = field(default_factory=dict, repr=False)
    """What is known of each row and stage that was asked for."""

    @cached_property
    def row(self) -> int:
        """The row of the slowest replica at the expected RTT: looked at where a number holds for all rows."""
        return self.p.row

    @cached_property
    def pace(self) -> int:
        """The stage that sets the pace: looked at where a number holds for all stages."""
        return int(find_slowest_stage(self.p))

    def locate(self, cell: RecordedEntry) -> tuple[int, int]:
        """Row and stage that an entry belongs to; the slowest ones where the number holds for all of them."""
        shape = cell.node.shape
        if len(shape) == 1 and cell.node.name and cell.node.name.startswith("memory_gib."):
            return self.row, cell.at[0]
        if len(shape) != 2:
            return self.row, self.pace
        return cell.at[0] if shape[0] > 1 else self.row, cell.at[1] if shape[1] > 1 else self.pace

    def make_symbol(self, cell: RecordedEntry) -> str:
        """The name of a number in expressions."""
        name = cell.node.name or ""
        rule = find_rule(name)
        text = rule.fill(rule.rule.symbol, cell.node.about) if rule.rule.symbol else SHORTENED.sub("", name)
        return re.sub(r"\W", "_", text)

    def build_label(self, cell: RecordedEntry) -> LabelWords:
        """The label of a number, with its parameters."""
        rule = find_rule(cell.node.name or "")
        about = self._collect_params(cell)
        params: dict[str, object] = dict(about)
        params |= {name: LabelWords(rule.fill(key, about)) for name, key in rule.rule.params.items()}
        label = rule.fill(rule.rule.label, about)
        if label == "pipeline_span" and cell.at[0] == self.p.without_wan_row:
            label = "pipeline_bare"
        if cell.node.name and cell.node.name.startswith("communication["):
            params |= self._describe_row(rule.groups[0])
        return LabelWords(label, params)

    def list_notes(self, cell: RecordedEntry) -> tuple[LabelWords, ...]:
        """Notes that are shown with a figure."""
        rule = find_rule(cell.node.name or "").rule
        # a figure of 0 has no expression worth reading: the rule says what is not there
        if not cell.value and rule.zero:
            return (LabelWords(rule.zero),)
        note_texts = []
        for key in rule.note:
            text = self._find_note(key, cell)
            note_texts += [] if text is None else [text]
        return tuple(note_texts)

    def _find_note(self, key: str, cell: RecordedEntry) -> LabelWords | None:
        p, (_, stage) = self.p, self.locate(cell)
        match key:
            case "note_pace":
                return LabelWords(key, {"stage": self.pace})
            case "note_last_stage":
                return LabelWords(key, {"stage": find_last_updated_stage(p)})
            case "note_moment":
                return LabelWords(
                    key, {"moment": LabelWords(f"peak_{self.prediction.memory_gib.stages[stage].peak_at}")}
                )
            case "note_worst":
                return LabelWords(key, {"stage": self.prediction.memory_gib.worst_stage})
            case "note_bytes":
                return LabelWords(f"note_bytes_{self._find_row(find_rule(cell.node.name or '').groups[0]).kind}")
            case "note_links":
                return (
                    LabelWords("note_simulated_links")
                    if p.without_wan_row is not None
                    else LabelWords("note_pace", {"stage": stage})
                )
            case "note_egress":
                return None if self.prediction.run.usd_egress is not None else LabelWords("note_egress_unknown")
            case "note_launches":
                added = float(p.batch.stack.launch_added) > 0
                return LabelWords("note_launch_added" if added else "note_longer")
        return LabelWords(key)

    def _find_row(self, at: str) -> Any:
        return self.prediction.communication[int(at)]

    def _describe_row(self, at: str) -> dict[str, object]:
        row = self._find_row(at)
        link = row.link if " > " in row.link else LabelWords(f"link_{row.link}")
        return {"kind": LabelWords(f"kind_{row.kind}"), "link": link}

    def _collect_params(self, cell: RecordedEntry) -> Mapping[str, str]:
        """Parameters that labels may use: stage and GPU of a number, and what was recorded with it."""
        place = self.locate(cell)
        place_known = self._places.get(place)
        if place_known is None:
            place_known = self._places[place] = {
                "stage": str(place[1]),
                "schedule": self.p.strategy.pipeline_schedule,
                "zones": str(len(self.p.placed.ring)),
                "gpu": self.get_group(*place).gpu.name,
            }
        return {**place_known, **cell.node.about} if cell.node.about else place_known

    # Where numbers come from

    def get_group(self, row: int, stage: int) -> NodeGroup:
        """The node group that holds a stage of the replica that a row is of."""
        return self.p.placed.groups[self._get_group_number(row, stage)]

    def _get_group_number(self, row: int, stage: int) -> int:
        replicas = self.p.placed.replica_classes[0]
        # rows are bands of RTT, each with a row for every replica class
        return int(self.p.placed.group[stage, int(replicas[row % len(replicas)]), 0, 0])

    def find_source(self, cell: RecordedEntry) -> NumberSource:
        """Where an input comes from, with its standard error where it is a coefficient."""
        matched = find_rule(cell.node.name or "")
        rule, about = matched.rule, self._collect_params(cell)
        where = matched.fill(rule.where, about)
        if cell.node.op not in ("leaf", "constant"):
            return NumberSource("figure", "")
        # `catalogue` of a rule in figures.yaml: what follows `_from_`, else the name of a datasheet's figure
        make = getattr(self, f"_from_{rule.catalogue}", None)
        if make is not None:
            return make(cell, matched, about)  # type: ignore[no-any-return]
        if rule.catalogue:
            return _read_datasheet(find_gpu(self.p, about["gpu"]), rule.catalogue)
        return NumberSource(rule.origin or "rule", where)

    def _from_coefficient(self, cell: RecordedEntry, rule: MatchedRule, _: Mapping[str, str]) -> NumberSource:
        profile, names = self.p.profile[self._get_group_number(*self.locate(cell))], self.p.profiles
        name = rule.groups[0]
        homes = names.iterate_homes(profile.family, profile.stack)
        place = next(names.place[home, name] for home in homes if (home, name) in names.place)
        entry = names.entries[place]
        return NumberSource("profile", f"{names.names[place][0]} ({entry['origin']})", float(entry["error"]))

    def _from_memory_coefficient(self, _: RecordedEntry, rule: MatchedRule, __: Mapping[str, str]) -> NumberSource:
        entry = read_memory_entries(self.p.stack)[rule.groups[0]]
        error = entry.get("error")
        where = f"memory, {self.p.stack} ({entry['origin']})"
        return NumberSource("profile", where, None if error is None else float(error))

    def _from_power(self, _: RecordedEntry, rule: MatchedRule, __: Mapping[str, str]) -> NumberSource:
        entry = read_power_entries()[rule.groups[0]]
        return NumberSource("profile", f"cost/power.yaml ({entry['origin']}: {entry['source']})")

    def _from_nic(self, cell: RecordedEntry, _: MatchedRule, __: Mapping[str, str]) -> NumberSource:
        group = self.get_group(*self.locate(cell))
        if group.nic_gbps_node is not None:
            key = "nic_gbps_per_gpu" if group.nic_gbps_per_gpu is not None else "nic_gbps"
            return NumberSource("scenario", f"cluster.zones[].nodes[].{key}")
        if group.gpu.usual_machine is None:
            return NumberSource("rule", "example_nic_gbps")
        return _read_datasheet(group.gpu, "usual_machine")

    def _from_usd_per_hour(self, cell: RecordedEntry, _: MatchedRule, about: Mapping[str, str]) -> NumberSource:
        for zone, group in self.p.placed.cluster.zone_groups:
            if zone.name == about["zone"] and group.usd_per_gpu_hour == cell.value:
                return NumberSource("scenario", "usd_per_gpu_hour")
        return _read_datasheet(find_gpu(self.p, about["gpu"]), "usd_per_hour")

    def _from_failures(self, _: RecordedEntry, __: MatchedRule, about: Mapping[str, str]) -> NumberSource:
        rate = catalogue().find_failure_rate(find_gpu(self.p, about["gpu"]))
        return NumberSource("catalogue", f"{rate.origin} [{rate.source}]")

    def _from_carbon(self, _: RecordedEntry, __: MatchedRule, about: Mapping[str, str]) -> NumberSource:
        zone = _find_zone(self.p, about["zone"])
        if zone.carbon_g_per_kwh is not None or zone.region is None:
            return NumberSource("scenario", "cluster.zones[].carbon_g_per_kwh")
        source = zone.region.carbon_source
        return NumberSource("catalogue", f"regions/{zone.region.name}" + (f" [{source}]" if source else ""))

    def _from_pue(self, _: RecordedEntry, __: MatchedRule, about: Mapping[str, str]) -> NumberSource:
        return NumberSource("scenario" if _find_zone(self.p, about["zone"]).pue else "rule", "cluster.zones[].pue")

    def _from_egress(self, _: RecordedEntry, __: MatchedRule, about: Mapping[str, str]) -> NumberSource:
        names = [zone.name for zone in self.p.placed.cluster.zones]
        a, b = (names.index(name) for name in about["link"].split(" > "))
        link = self.p.placed.links[min(a, b), max(a, b)]
        origin = link.origins["usd_per_gb" if a < b else "usd_per_gb_back"]
        return NumberSource("scenario" if origin == "typed" else "catalogue", origin)


def find_gpu(p: Predictor, name: str) -> Gpu:
    """A GPU kind of the cluster by its name."""
    return next(group.gpu for group in p.placed.groups if group.gpu.name == name)


def _find_zone(p: Predictor, name: str) -> Zone:
    return next(zone for zone in p.placed.cluster.zones if zone.name == name)


def _read_datasheet(gpu: Gpu, figure: str) -> NumberSource:
    """A figure of a datasheet."""
    source = gpu.find_source(figure)
    return NumberSource("catalogue", f"gpus/{gpu.name}" + (f" [{source}]" if source else ""))
