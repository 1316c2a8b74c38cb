"""Measured runs: rows of a CSV file as cases that can be predicted, with what was measured and what was assumed.

    runs, skipped = read_runs(Path("measured_runs.csv"))
    doubtful = read_doubtful(Path("doubtful_rows.csv"))

The columns NEEDED and MEASURED must be there; every other one may be missing, and an empty cell is a value the source
does not state. Published runs have happened, so the rules of legality are not checked. A run's cluster is one zone of
equal nodes, from the GPU, its count and the links that the row states.
"""

from __future__ import annotations

import csv
import hashlib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from crosszone.calibrate.runs_inference import (
    AXES,
    EXPERT_COLUMNS,
    NEEDED_SHAPE,
    SHAPE_COLUMNS,
    Architectures,
    Assumptions,
    Fact,
    Row,
    RowError,
    RowText,
    StrategyCells,
    build_software,
    build_strategy,
    build_user_strategy,
    complete_degrees,
    read_layout,
    read_row_text,
    read_user_text,
)
from crosszone.calibrate.user_files import build_columns_error, build_unreadable_error
from crosszone.cost.profile import format_stack
from crosszone.errors import FileError, InputError, Notice
from crosszone.inputs.catalogue import Catalogue, catalogue
from crosszone.inputs.cluster import Cluster, NodeGroup, Zone
from crosszone.inputs.flops import TRAINING_PASSES, training_flops_per_token
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.job import Job
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.rules import Case
from crosszone.inputs.software import Software, parse_stack

USUAL_GPUS_PER_NODE = 8  # GPUs of a node where neither the row nor the catalogue says
_REMEMBERED = 4096
_KIND = re.compile(r"\s*(?P<count>\d{1,9})\s*x\s*(?P<name>\S.*)", re.IGNORECASE)
_MEMORY_SIZE = re.compile(r"\d\s*gb", re.IGNORECASE)
_SIZE_IN_NAME = re.compile(r"\d+gb")


def _split_kinds(text: str, gpus: int) -> list[tuple[str, int]]:
    """Names and numbers of the GPU kinds of a run, as "16xRTX-2080+8xRTX-3090" states them; usually one."""
    matches = [_KIND.fullmatch(part) for part in text.split("+")]
    kinds = [(match["name"].strip(), int(match["count"])) for match in matches if match]
    if "+" not in text or len(kinds) < len(matches):
        return [(text, gpus)]
    total = sum(count for _, count in kinds)
    if total != gpus or 0 in dict(kinds).values():
        raise RowError("mixed_gpus", f"The GPU kinds ({text[:60]}) are {total} GPUs, not the {gpus} of the run.")
    return kinds


class Clusters:
    """Clusters of rows; equal columns are built once."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.build = lru_cache(maxsize=_REMEMBERED)(self._build)

    def _build(
        self,
        gpu_text: str,
        gpus: int,
        per_node: int | None,
        link: str,
        nic_gbps_per_gpu: float | None,
        nic_of_stack: float | None,
        link_share: float = 1.0,
    ) -> tuple[Cluster, tuple[str, ...]]:
        """One zone with the row's nodes, and what was assumed of it; `link_share`: of the fast link's rate."""
        kinds = _split_kinds(gpu_text, gpus)
        groups: list[NodeGroup] = []
        assumed: list[str] = []
        for name, count in kinds:
            group, assumptions = self._build_group(
                name, count, gpus, per_node, link, nic_gbps_per_gpu, nic_of_stack, link_share
            )
            groups.append(group)
            assumed += [what for what in assumptions if what not in assumed]
        if len(kinds) > 1:
            assumed.append("placement: GPU kinds in the order stated")
        return Cluster(zones=(Zone(name="published", nodes=tuple(groups)),)), tuple(assumed)

    def _build_group(
        self,
        gpu_text: str,
        gpus: int,
        all_gpus: int,
        per_node: int | None,
        link: str,
        nic_gbps_per_gpu: float | None,
        nic_of_stack: float | None,
        link_share: float,
    ) -> tuple[NodeGroup, list[str]]:
        """The nodes of one GPU kind."""
        gpu, assumed = self._find_gpu(gpu_text)
        if gpu.link is not None and link_share != 1.0:
            gpu = gpu.replace(link=gpu.link.replace(gb_per_s_both_ways=link_share * gpu.link.gb_per_s_both_ways))
        if per_node is None:
            per_node = gpu.usual_machine.gpus if gpu.usual_machine else USUAL_GPUS_PER_NODE
            if gpus > 1:
                assumed.append(f"gpus_per_node: {per_node} (usual system)")
        per_node = min(per_node, gpus)  # GPUs of a node that the run does not use do not count
        nodes = -(-gpus // per_node)
        uses_pcie = "pcie" in link.lower() and "nvlink" not in link.lower()
        group = NodeGroup(
            count=nodes,
            gpus=per_node,
            gpu=gpu,
            nic_gbps_per_gpu=None if nic_gbps_per_gpu is None else float(nic_gbps_per_gpu),
            intra_link="pcie" if uses_pcie else None,
        )
        if nic_gbps_per_gpu is None and (nodes > 1 or gpus < all_gpus):
            why = "stack default" if nic_of_stack else "usual machine" if gpu.usual_machine else "no usual machine"
            group = group.replace(nic_gbps_per_gpu=float(nic_of_stack or group.network_gbps_node / per_node))
            assumed.append(f"network: {group.nic_gbps_per_gpu:g} Gbit/s per GPU ({why})")
        return group, assumed

    def _find_gpu(self, text: str) -> tuple[Gpu, list[str]]:
        if not text:
            raise RowError("no_gpu", "The GPU is not stated.")
        entry = self._catalogue.find("gpus", text)
        if isinstance(entry, Gpu):
            sized = _MEMORY_SIZE.search(text) or not _SIZE_IN_NAME.search(entry.name)
            return entry, [] if sized else [f"gpu: {entry.name} (memory size not stated)"]
        raise RowError("unknown_gpu", f"No catalogue entry goes by the GPU name {text[:60]!r}.")


RECIPE_COLUMNS = (
    *("cuda_graph", "moe_dispatcher", "moe_overlap", "recompute_modules", "recompute_layers", "pipeline_layout"),
    *("attention_precision", "tensor_overlap"),
)
NEEDED = ("id", "gpu", "gpus", "framework")
MEASURED = ("step_time_s", "tokens_per_s_per_gpu", "memory_gb")
RATES = ("tflops_per_gpu", "mfu_pct", "hfu_pct")
_INTEGER = re.compile(r"\+?[0-9]{1,12}(\.0{0,20})?")
_DECIMAL = re.compile(r"\+?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_GIB = re.compile(r"\bGiB\b|2\^30")
LONGEST_NAME = 100

TimeFrom = Literal["step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct"]


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """One measured run as a case that can be predicted."""

    id: str
    source: str
    """The id without its running number."""
    case: Case
    framework: str
    """Framework whose states are counted."""
    step_time_s: float | None
    """Measured seconds of one optimizer step; None: only memory was measured."""
    time_from: TimeFrom | None
    """The column the step time comes from; a rate of operations is the weakest."""
    tokens_per_s_per_gpu: float | None
    """As published."""
    memory_gib: float | None
    """Measured peak memory of a GPU."""
    memory_unit: Literal["GiB", "as printed"]
    """As printed: the source does not say whether it counts in 2^30; the number is kept."""
    facts: Mapping[str, Fact]
    """Further facts the text states; their names stand in runs.yaml."""
    assumed: tuple[str, ...]
    """What the row does not state and was assumed, e.g. "recompute: none (stack default)"."""
    complete: bool
    """Architecture, degrees, micro-batch, batch, recompute, interleave and a time or tokens/s are all stated."""
    moe: bool
    """The model has experts."""
    duplicate_of: str | None = None
    """Id of an earlier row with the same set-up and the same figures: count it once."""
    repeat_of: str | None = None
    """Id of the first row with the same columns and other figures: the same run measured again."""

    @property
    def stack(self) -> str | None:
        """Software stack whose profile is used, as the case's job states it; None: the framework's own."""
        return self._software[0]

    @property
    def release(self) -> float | None:
        """Release of the software, years after 2000 with the month as a fraction (25.09: 25.75); None: not stated."""
        return self._software[1]

    @property
    def _software(self) -> tuple[str | None, float | None]:
        return parse_stack(self.case.job.stack)

    def with_stack(self, stack: str) -> MeasuredRun:
        """The same run as if another software stack had trained it."""
        job = self.case.job.model_copy(update={"stack": format_stack(stack, self.release)})
        return replace(self, case=replace(self.case, job=job))


@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A row that cannot be scored, and why: a code and a plain sentence."""

    id: str
    source: str
    code: str
    reason: str


def read_runs(path: Path, *, as_user: bool = False) -> tuple[list[MeasuredRun], list[Skipped]]:
    """The runs of a CSV file and the rows that cannot be scored; `InputError` when columns are missing."""
    runs: list[MeasuredRun] = []
    skipped: list[Skipped] = []
    for row in iterate_runs(path, as_user=as_user):
        if isinstance(row, MeasuredRun):
            runs.append(row)
        else:
            skipped.append(row)
    return runs, skipped


def iterate_runs(path: Path, *, as_user: bool = False) -> Iterator[MeasuredRun | Skipped]:
    """The rows of a CSV file one by one, in its order, with what run_recipes.csv beside it says of them."""
    reader, recipes = RunReader(as_user=as_user), read_recipes(path.with_name(RECIPES_FILE))
    for number, row in enumerate(iterate_rows(path, (*NEEDED, *MEASURED)), start=1):
        run_id = row.get("id") or f"row {number}"
        stated = {column: cell for column, cell in row.items() if cell}
        yield reader.read({**row, **recipes.get(run_id, {}), **stated, "id": run_id})


RECIPES_FILE = "run_recipes.csv"


def read_recipes(path: Path) -> dict[str, dict[str, str]]:
    """Recipe columns of runs by their ids; none where there is no such file."""
    if not path.exists():
        return {}
    return {row["id"]: row for row in iterate_rows(path, ("id",)) if row.get("id")}


def read_doubtful(path: Path) -> dict[str, str]:
    """Reason by id of the rows that contradict their neighbours."""
    return {row["id"]: row["reason"] for row in iterate_rows(path, ("id", "reason")) if row.get("id")}


def parse_source(run_id: str) -> str:
    """The source of a run: its id without the running number."""
    head, _, tail = run_id.rpartition("-")
    return head if head and tail.isdigit() else run_id


def compute_step_s_from_tokens(tokens_per_s_per_gpu: float, tokens_per_step: int, gpus: int) -> float:
    """Seconds of a step from its rate: s B / (rate x G). [Q1]"""
    return tokens_per_step / (tokens_per_s_per_gpu * gpus)


def compute_step_s_from_tflops(
    tflops_per_gpu: float, model: Model, job: Job, gpus: int, *, count_masked: bool, count_parameters: bool = False
) -> float:
    """Seconds of a step from a published rate of model operations: F s B / (rate x G). [Q2]

    F are the operations of a token as the source counts them: with or without the masked half of the attention, or six
    for each parameter.
    """
    per_token = training_flops_per_token(model, job.seq_len, count_masked=count_masked)
    if count_parameters:
        per_token = 2.0 * TRAINING_PASSES * parameters(model).total
    return per_token * job.tokens_per_step / (tflops_per_gpu * 1e12 * gpus)


def iterate_rows(path: Path, needed: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Rows by column name, stripped; a row that is not CSV comes as one with `unreadable`."""
    name = str(path)
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            reader = csv.reader(line.replace("\0", "") for line in file)
            columns = [column.strip() for column in next(reader, [])]
            missing = [column for column in needed if column not in columns]
            if missing:
                raise build_columns_error(name, missing)
            for cells in _iterate_readable(reader):
                if isinstance(cells, str):
                    yield {"unreadable": cells}
                elif any(cells):
                    yield {c: cell.strip() for c, cell in zip(columns, cells, strict=False)}
    except FileNotFoundError:
        raise FileError(Notice(code="file_missing", value=name, file=name)) from None
    except (OSError, csv.Error) as error:
        raise build_unreadable_error(path, error) from None


def _iterate_readable(reader: Iterator[list[str]]) -> Iterator[list[str] | str]:
    """The rows, and for one that is not CSV (a cell without end) the reason."""
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield str(error)


@dataclass
class RunReader:
    """Reads rows one by one; parts that are equal are built once."""

    as_user: bool = False
    """Read a row as a user would write it: nothing of its source."""
    architectures: Architectures = field(default_factory=lambda: Architectures(catalogue()))
    clusters: Clusters = field(default_factory=lambda: Clusters(catalogue()))
    needs_figures: bool = True
    """Whether a row without a measured figure is refused."""
    first_ids: dict[bytes, str] = field(default_factory=dict)
    """First id by fingerprint of the set-up with its figures, and of all columns but the figures."""

    def read(self, row: Row) -> MeasuredRun | Skipped:
        """The row as a run, or why it cannot be one; never raises."""
        run_id = row.get("id", "")
        try:
            if "unreadable" in row:
                raise RowError("not_csv", f"The row is not CSV: {row['unreadable']}.")
            return self._build_run(run_id, row)
        except RowError as error:
            code, reason = error.code, error.reason
        except InputError as error:
            code, reason = "out_of_range", f"A value cannot be: {error.notices[0].message()}"
        return Skipped(id=run_id, source=parse_source(run_id), code=code, reason=reason)

    def _build_run(self, run_id: str, row: Row) -> MeasuredRun:
        text = read_user_text(row) if self.as_user else read_row_text(row)
        gpus = _require_integer(row, "gpus", "no_gpus", "The number of GPUs is not stated.")
        seq_len = _require_integer(row, "seq_len", "no_batch", "The sequence length is not stated.")
        batch = _require_integer(row, "global_batch", "no_batch", "The global batch is not stated.")
        step_s, tokens, memory = (read_number(row, key) for key in MEASURED)
        has_figures = step_s or tokens or memory or (text.rate and read_number(row, text.rate.column))
        if self.needs_figures and not has_figures:
            raise RowError("not_measured", "No step time, tokens/s or memory is published.")
        assumed = Assumptions()
        cluster, cluster_assumptions = self.clusters.build(
            row.get("gpu", "")[:LONGEST_NAME],
            gpus,
            read_integer(row, "gpus_per_node"),
            row.get("intra_node_link", ""),
            read_number(row, "inter_node_link_gbps_per_gpu"),
            text.defaults.nic_gbps_per_gpu,
            float(text.facts.get("link_share", 1.0)),
        )
        axes = complete_degrees({axis: read_integer(row, axis) for axis in AXES}, gpus, assumed, text.degrees)
        # which layers lie where is part of a recipe, which a user of the framework does not know
        multiple, layout = text.defaults.vocab_multiple, None if self.as_user else read_layout(row)
        columns = tuple(read_integer(row, key) for key in (*SHAPE_COLUMNS, *EXPERT_COLUMNS))
        model, model_assumptions = self.architectures.build(
            row.get("model", "")[:LONGEST_NAME],
            columns,
            read_number(row, "params_b"),
            seq_len,
            text.architecture + ((("mtp_layers", layout.mtp_layers),) if layout else ()),
            multiple * axes["tp"] if multiple else None,
            text.defaults.vocab,
        )
        per_node = cluster.zones[0].nodes[0].gpus
        cells = StrategyCells(
            ep=read_integer(row, "ep"),
            micro_batch=read_integer(row, "micro_batch"),
            interleave=read_integer(row, "interleave"),
            sequence_parallel=read_integer(row, "sequence_parallel", least=0),
            recompute=row.get("recompute", ""),
            modules=row.get("recompute_modules", ""),
            tensor_overlap=row.get("tensor_overlap", ""),
            notes=row.get("notes", ""),
            layout=layout,
        )
        if self.as_user:
            strategy = build_user_strategy(cells, text, axes, batch)
        else:
            strategy = build_strategy(cells, text, axes, batch, model, per_node, assumed)
        if text.precision is None:
            assumed.add("precision", text.defaults.precision)
        software = None if self.as_user else build_software(row, text.facts)
        job = _build_row_job(seq_len, batch, text.precision or text.defaults.precision, text, software)
        time_s, time_from = _derive_step_time(row, step_s, tokens, text, model, job, gpus)
        has_full_shape = all(columns[SHAPE_COLUMNS.index(key)] for key in NEEDED_SHAPE)
        duplicate, repeat = self._find_earlier(run_id, row)
        return MeasuredRun(
            id=run_id,
            source=parse_source(run_id),
            case=Case(model=model, job=job, cluster=cluster, strategy=strategy),
            framework=text.defaults.framework,
            step_time_s=time_s,
            time_from=time_from,
            tokens_per_s_per_gpu=tokens,
            memory_gib=memory,
            memory_unit="GiB" if _GIB.search(row.get("notes", "")) else "as printed",
            facts=text.facts,
            assumed=(*cluster_assumptions, *model_assumptions, *text.corrected, *assumed.statements),
            complete=has_full_shape and not assumed.decisive and bool(step_s or tokens),
            moe=model.moe is not None,
            duplicate_of=duplicate,
            repeat_of=repeat,
        )

    def _find_earlier(self, run_id: str, row: Row) -> tuple[str | None, str | None]:
        """The rows this one duplicates and repeats."""
        figures = {"id", *RATES}
        # how a run was done in detail is stated for some releases only
        duplicate = self._find_first("figures", run_id, row, figures | {"source", "notes", *RECIPE_COLUMNS})
        repeat = self._find_first("columns", run_id, row, figures | set(MEASURED))
        return duplicate, None if duplicate else repeat

    def _find_first(self, kind: str, run_id: str, row: Row, left_out: set[str]) -> str | None:
        cells = "\x1f".join((kind, *(value for column, value in row.items() if column not in left_out)))
        key = hashlib.blake2b(cells.encode(errors="replace"), digest_size=16).digest()
        first = self.first_ids.get(key)
        self.first_ids.setdefault(key, run_id)
        return first


def _derive_step_time(
    row: Row, step_s: float | None, tokens: float | None, text: RowText, model: Model, job: Job, gpus: int
) -> tuple[float | None, TimeFrom | None]:
    """The measured step time and the column it comes from."""
    if step_s:
        return step_s, "step_time_s"
    if tokens:
        return _require_finite(compute_step_s_from_tokens(tokens, job.tokens_per_step, gpus)), "tokens_per_s_per_gpu"
    published = read_number(row, text.rate.column) if text.rate else None
    if text.rate is None or published is None:
        return None, None
    tflops = published if text.rate.peak_tflops is None else published / 100 * text.rate.peak_tflops
    counted = {"count_masked": text.rate.count_masked, "count_parameters": text.rate.count_parameters}
    time_s = compute_step_s_from_tflops(tflops, model, job, gpus, **counted)
    return _require_finite(time_s), "tflops_per_gpu" if text.rate.peak_tflops is None else "mfu_pct"


def _require_finite(time_s: float) -> float:
    if not (math.isfinite(time_s) and time_s > 0):
        raise RowError("not_a_number", "The published rate gives no step time.")
    return time_s


@lru_cache(maxsize=_REMEMBERED)
def _build_job(**fields: Any) -> Job:
    return Job(**fields)


def _build_row_job(seq_len: int, batch: int, precision: str, text: RowText, software: Software | None) -> Job:
    recipe = text.facts.get("fp8_recipe") if precision == "fp8" else None
    return _build_job(
        seq_len=seq_len,
        global_batch=batch,
        precision=precision,
        fp8_recipe=recipe,
        optimizer=text.optimizer,
        framework=text.defaults.framework,
        stack=None if text.stack is None else format_stack(text.stack, text.release),
        software=software,
    )


def read_number(row: Row, key: str, most: float = sys.float_info.max) -> float | None:
    """A positive number up to `most`, or None when the cell is empty."""
    cell = row.get(key, "")
    if not cell:
        return None
    value = float(cell) if _DECIMAL.fullmatch(cell) else math.nan
    if not 0 < value <= most:
        raise RowError("not_a_number", f"{key} is not a positive number: {cell[:60]!r}.")
    return value


def read_integer(row: Row, key: str, least: int = 1) -> int | None:
    """A whole number of at least `least`, or None when the cell is empty."""
    cell = row.get(key, "")
    if not cell:
        return None
    value = int(float(cell)) if _INTEGER.fullmatch(cell) else -1
    if value < least:
        raise RowError("not_a_number", f"{key} is not a whole number of {least} or more: {cell[:60]!r}.")
    return value


def _require_integer(row: Row, key: str, code: str, reason: str) -> int:
    value = read_integer(row, key)
    if value is None:
        raise RowError(code, reason)
    return value
