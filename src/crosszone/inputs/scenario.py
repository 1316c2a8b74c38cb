"""Scenario: model + job + cluster (+ strategy, placement), one file.

Files of older versions are upgraded when they are read. Version 0 is the deployment request of the CrossZonedllm
prototype (`regions`, `gpusPerRegion`, `modelSize`, `batchSize`, `dp`, `pp`, `tp`): it has no sequence length and no GPU
kind, so these are assumed, and notices say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import BeforeValidator, ValidationInfo, field_serializer

from crosszone.errors import InputError, InvalidError, Notice
from crosszone.inputs.catalogue import Catalogue, catalogue, get_catalogue
from crosszone.inputs.cluster import Cluster
from crosszone.inputs.document import Document, dump_json, dump_yaml, parse_document, read_document
from crosszone.inputs.hf_config import read_hf_config
from crosszone.inputs.job import Job
from crosszone.inputs.links import ZoneLink, build_zone_links, list_link_notices
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.placement import Placement, count_tp_room
from crosszone.inputs.rules import Case
from crosszone.inputs.strategy import Strategy
from crosszone.inputs.value import (
    LIKE_FORM,
    NAME_FORM,
    Name,
    OtherForms,
    Value,
    find_nearest_names,
    parse,
    refuse,
    refuse_as,
)

VERSION: Literal[1] = 1

Fields = dict[str, Any]


def upgrade_fields(document: Document) -> tuple[Fields, list[Notice]]:
    """The document's fields in the form of the newest version, and notices of what the upgrade assumed."""
    fields: Fields = dict(document.value)
    # the prototype's requests state no version; this key is theirs alone
    version = 0 if "gpusPerRegion" in fields else fields.get("version", VERSION)
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= VERSION:
        notice = Notice(code="version_unknown", field="version", value=version, params={"newest": VERSION})
        raise InvalidError(notice.with_place(document.file or None, document.find_line(("version",))))
    notices: list[Notice] = []
    for step in range(version, VERSION):
        fields = UPGRADES[step](fields, notices, document)
        params = {"old": step, "new": step + 1}
        notices.append(Notice(code="upgraded", field="version", value=step, level="note", params=params))
    return fields, notices


def _upgrade_prototype(old: Fields, notices: list[Notice], document: Document) -> Fields:
    """Convert the prototype's request to a scenario."""

    def build_error(code: str, key: str, /, **params: Any) -> InvalidError:
        value = key if code == "unknown_key" else old.get(key)
        notice = Notice(code=code, field=key, value=value, params=params)
        return InvalidError(notice.with_place(document.file or None, document.find_line((key,))))

    if "gpusPerRegion" not in old:
        raise build_error("missing_key", "gpusPerRegion", key="gpusPerRegion")
    for key in old:
        if key not in PROTOTYPE_KEYS:
            raise build_error(
                "unknown_key", key, nearest=find_nearest_names(key, PROTOTYPE_KEYS)[:1] or list(PROTOTYPE_KEYS)
            )
    gpus = old["gpusPerRegion"]
    if not isinstance(gpus, list):
        raise build_error("must_be_list", "gpusPerRegion")
    if old.get("regions", len(gpus)) != len(gpus):
        raise build_error("prototype_regions", "regions", given=len(gpus))
    stated: Fields = {**PROTOTYPE_ASSUMES, **{key: old[key] for key in ("bandwidth", "latency") if key in old}}
    for key, value in stated.items():
        if key not in old:
            notices.append(Notice(code="prototype_assumes", field=key, value=value, level="warning"))
    zones = [
        {"name": f"region-{n + 1}", "nodes": [{"count": 1, "gpus": g, "gpu": stated["gpu"]}]}
        for n, g in enumerate(gpus)
    ]
    degrees = {key: old[key] for key in ("dp", "pp", "tp") if key in old}
    fields: Fields = {
        "version": 1,
        "name": "from a prototype's request",
        "model": {"size_b": old.get("modelSize")},
        "job": {"seq_len": stated["seq_len"], "global_batch": old.get("batchSize")},
        "cluster": {"zones": zones, "default_link": {"gbps": stated["bandwidth"], "rtt_ms": stated["latency"]}},
    }
    return fields | ({"strategy": degrees} if degrees else {})


PROTOTYPE_KEYS = (
    "version",
    "regions",
    "gpusPerRegion",
    "modelSize",
    "batchSize",
    "dp",
    "pp",
    "tp",
    "latency",
    "bandwidth",
)

# What a request could not say (length, GPU kind) or need not (Gbit/s and ms: the defaults of its page).
PROTOTYPE_ASSUMES: dict[str, Any] = {"seq_len": 2048, "gpu": "a100-80gb-sxm", "bandwidth": 10, "latency": 50}

# The function that brings a version to the next one.
UPGRADES: dict[int, Callable[[Fields, list[Notice], Document], Fields]] = {0: _upgrade_prototype}


# A model picked by size is remarked upon when its count differs by more than this share.
SIZE_TOLERANCE = 0.25


def _build_single_key_schema(key: str, kind: dict[str, Any], description: str) -> dict[str, Any]:
    """The JSON Schema of a mapping with one key."""
    shape = {"type": "object", "required": [key], "properties": {key: kind}, "additionalProperties": False}
    return {**shape, "description": description}


_BY_SIZE = _build_single_key_schema(
    "size_b", {"type": "number", "exclusiveMinimum": 0}, "A well-known model of about this many 1e9 parameters."
)
_BY_CONFIG = _build_single_key_schema(
    "hf_config", {"type": "string"}, "A Hugging Face config.json, relative to the scenario's folder."
)
_BY_FILE = _build_single_key_schema(
    "file", {"type": "string"}, "A file with the cluster, relative to the scenario's folder."
)


def _resolve_model(value: Any, info: ValidationInfo) -> Any:
    """A model from any form that a scenario may have: a name, {size_b}, {hf_config}, {like, ...} or fields."""
    entries = get_catalogue(info)
    if isinstance(value, Mapping) and "size_b" in value:
        return _resolve_size(value, info, entries)
    if isinstance(value, Mapping) and "hf_config" in value:
        return _resolve_config(value, info)
    return entries.resolve("models", value)


class Scenario(Value):
    """What to train, where, and perhaps how.

    load_scenario("examples/three-cities.yaml")
    Scenario(model="llama-2-7b", job={"seq_len": 4096, "global_batch": 512}, cluster={"zones": [...]})
    """

    version: Literal[1] = VERSION
    """Version of the file format."""
    name: Name = "unnamed"
    """What to call it."""
    model: Annotated[Model, BeforeValidator(_resolve_model), OtherForms(NAME_FORM, LIKE_FORM, _BY_SIZE, _BY_CONFIG)]
    """Architecture: a catalogue name, {size_b: 7}, {hf_config: path/to/config.json}, {like: name, ...}, or fields."""
    job: Job
    """What to train."""
    cluster: Annotated[Cluster, OtherForms(_BY_FILE)]
    """Where to train: zones and links, or {file: path/to/cluster.yaml}."""
    strategy: Strategy | None = None
    """How to train: needed to predict; for planning, what is given is pinned."""
    placement: Placement | None = None
    """Which rank runs where; null: a default one is made."""

    @field_serializer("model")
    def _write_model(self, model: Model) -> Any:
        return get_catalogue(None).format_reference("models", model)

    @cached_property
    def links(self) -> dict[tuple[int, int], ZoneLink]:
        """The path of every pair of zones (by position, first < second)."""
        return build_zone_links(self.cluster)

    def build_case(self) -> Case:
        """What the rules of legality look at; without a strategy, one replica a GPU."""
        strategy = self.strategy or Strategy()
        room = self.placement.ranks if self.placement else count_tp_room(self.cluster, strategy.tp)
        settled = strategy.settle_dp(room, self.job.global_batch)
        return Case(model=self.model, job=self.job, cluster=self.cluster, strategy=settled, placement=self.placement)

    def to_fields(self) -> dict[str, Any]:
        """The file's fields: what was given, names of built-in catalogue entries as names, all else in full."""
        return {"version": VERSION, **{key: value for key, value in self.to_plain().items() if key != "version"}}

    def to_yaml(self) -> str:
        """The file as YAML; reading it back gives an equal scenario."""
        return dump_yaml(self.to_fields())

    def to_json(self) -> str:
        """The file as JSON."""
        return dump_json(self.to_fields())


class Loaded(NamedTuple):
    """A scenario with the notices of its reading (models picked by size, keys upgraded) and its document."""

    scenario: Scenario
    notices: list[Notice]
    document: Document


Source: TypeAlias = str | Path | Document | Mapping[str, Any]


def load_scenario(source: Source) -> Scenario:
    """Read a scenario from a file, a parsed document or plain values."""
    return read_scenario(source).scenario


def read_scenario(source: Source) -> Loaded:
    """Read a scenario, with notices of what was assumed on the way."""
    document = _read_document(source)
    if not isinstance(document.value, Mapping):
        raise InvalidError(
            Notice(code="scenario_not_mapping", value=document.value).with_place(document.file or None, 1)
        )
    value, notices = upgrade_fields(document)
    # a text or standard input (`<text>`, `<stdin>`) is in no folder: its relative paths begin where the program runs
    folder = Path(document.file).parent if document.file and not document.file.startswith("<") else Path()
    value = _load_cluster_file(value, folder, document)
    scenario = parse(Scenario, value, document, catalogue=catalogue(), folder=folder, notices=notices)
    with document.place_errors():
        # computed at once: a pair without any RTT is refused with its line, not in the middle of a prediction
        _ = scenario.links
    return Loaded(scenario, [document.place_notice(notice) for notice in notices], document)


def parse_scenario(text: str, file: str = "<text>") -> Loaded:
    """Read a scenario from YAML or JSON text."""
    return read_scenario(parse_document(text, file))


def list_scenario_notices(scenario: Scenario) -> list[Notice]:
    """Warnings and remarks on a valid scenario: impossible or assumed figures."""
    return [
        *list_link_notices(scenario.cluster, scenario.links),
        *_check_nics(scenario.cluster),
        *_check_run_length(scenario),
        *catalogue().list_skipped(),
    ]


def _read_document(source: Source) -> Document:
    if isinstance(source, Document):
        return source
    if isinstance(source, Mapping):
        return Document(dict(source))
    return read_document(source)


def _load_cluster_file(value: dict[str, Any], folder: Path, document: Document) -> dict[str, Any]:
    """The fields with `cluster: {file: ...}` replaced by the cluster of that file."""
    cluster = value.get("cluster")
    if not isinstance(cluster, Mapping) or "file" not in cluster:
        return value
    if len(cluster) > 1:
        raise InvalidError(document.place_notice(Notice(code="cluster_file_alone", field="cluster.file")))
    if not isinstance(cluster["file"], str):
        raise InvalidError(
            document.place_notice(Notice(code="must_be_text", field="cluster.file", value=cluster["file"]))
        )
    other = read_document(folder / cluster["file"])
    at = ("cluster",) if isinstance(other.value, Mapping) and "cluster" in other.value else ()
    inner = other.value["cluster"] if at else other.value
    return {**value, "cluster": parse(Cluster, inner, other, at=at)}


def _resolve_size(value: Mapping[str, Any], info: ValidationInfo, entries: Catalogue) -> Any:
    size = value["size_b"]
    if len(value) > 1:
        raise refuse("model_key_alone", "size_b", key="size_b", others=[k for k in value if k != "size_b"])
    if isinstance(size, bool) or not isinstance(size, int | float) or not 0 < size < 1e6:
        raise refuse("size_out_of_range", size)
    chosen = entries.find_for_size(size)
    total_b = parameters(chosen.model).total / 1e9
    params = {"name": chosen.name, "total_b": round(total_b, 3), "size_b": size}
    level: Literal["warning", "note"] = "warning" if abs(total_b / size - 1) > SIZE_TOLERANCE else "note"
    _add_remark(info, Notice(code="model_by_size", field="model.size_b", value=size, level=level, params=params))
    return chosen.model


def _resolve_config(value: Mapping[str, Any], info: ValidationInfo) -> Any:
    path = value["hf_config"]
    if len(value) > 1:
        raise refuse("model_key_alone", "hf_config", key="hf_config", others=[k for k in value if k != "hf_config"])
    if not isinstance(path, str):
        raise refuse("must_be_text", path)
    folder = info.context.get("folder") if isinstance(info.context, dict) else None
    try:
        model = read_hf_config((folder or Path()) / path)
    except InputError as error:
        raise refuse_as(error.notices[0]) from None
    total_b = round(parameters(model).total / 1e9, 3)
    params = {"name": model.name, "total_b": total_b}
    _add_remark(info, Notice(code="model_by_config", field="model.hf_config", value=path, level="note", params=params))
    return model


def _add_remark(info: ValidationInfo, notice: Notice) -> None:
    if isinstance(info.context, dict):
        info.context["notices"].append(notice)


def _check_nics(cluster: Cluster) -> Iterator[Notice]:
    if cluster.node_count == 1:
        return
    for z, zone in enumerate(cluster.zones):
        for g, group in enumerate(zone.nodes):
            if group.nic_gbps_node is not None:
                continue
            field, usual = f"cluster.zones[{z}].nodes[{g}].nic_gbps", group.gpu.usual_machine
            assumed = group.network_gbps_node
            params: dict[str, Any] = {"zone": zone.name, "gpu": group.gpu.name}
            if usual is None:
                yield Notice(code="nic_example", field=field, value=assumed, level="warning", params=params)
            else:
                params |= {"per_gpu": usual.nic_gbps_per_gpu, "source": group.gpu.find_source("usual_machine")}
                yield Notice(code="nic_usual_machine", field=field, value=assumed, level="warning", params=params)


def _check_run_length(scenario: Scenario) -> Iterator[Notice]:
    model, length = scenario.model, scenario.job.seq_len
    if model.max_seq_len is None or length <= model.max_seq_len:
        return
    params = {"model": model.name, "limit": model.max_seq_len}
    if model.positions == "learned":
        yield Notice(code="sequence_over_positions", field="job.seq_len", value=length, level="warning", params=params)
    else:
        yield Notice(code="sequence_over_context", field="job.seq_len", value=length, level="note", params=params)
