"""Runs measured by component: rows of a CSV file as cases, with the time of each part beside the step's.

    runs, skipped = read_components(Path("runs.csv"))

A row states the machine (cluster, gpu, gpus_per_node, gpus), the model (n_layers, hidden, heads, ffn_hidden, seq, ...),
the degrees (pp, mp, dp), the batch (micro_batch, n_micro), the layers of the first, each middle and the last stage, the
fastest iteration (iter_best_s), and in microseconds what its parts took. What was not measured is an empty cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from crosszone.calibrate.runs import Skipped, read_integer, read_number
from crosszone.calibrate.runs_inference import RowError
from crosszone.calibrate.user_files import open_table
from crosszone.errors import FileError, InputError, Notice
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.cluster import Cluster, NodeGroup, Zone
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.job import Job
from crosszone.inputs.model import Model
from crosszone.inputs.rules import Case
from crosszone.inputs.strategy import Communication, Strategy

# A file without these columns is not of this kind.
REQUIRED_COLUMNS = (
    *("run_id", "gpu", "gpus", "n_layers", "hidden", "heads", "seq"),
    *("pp", "mp", "dp", "micro_batch", "iter_best_s"),
)
STAGES = ("first", "middle", "last")
# Parts whose time a row may state for each kind of stage, in columns such as `layer_fwd_first_us`.
PARTS = (
    *("layer_fwd", "layer_bwd", "stage_fwd", "stage_bwd"),
    *("mp_allreduce", "p2p_send", "dp_allreduce", "dp_allgather", "update"),
)
MOST_ROWS = 10_000  # Rows of a file that are read; the row after them is listed as skipped
MOST_PASSES = 20_000  # Micro-batches times stages of a job that is walked through
LONGEST_TEXT = 100
STACK = "gpt-neox"  # Files of this kind come from this stack
SECONDS_PER_US = 1e-6
USUAL_GPUS_PER_NODE = 8  # Where a row does not state the GPUs of a node
LARGEST_NUMBER = 1e12  # No number of a row may be larger
_YES = frozenset({"true", "1", "yes"})
_NO = frozenset({"", "false", "0", "no"})


@dataclass(frozen=True, kw_only=True)
class ComponentRun:
    """One training job: its case, the fastest step, and the measured seconds of its parts."""

    id: str
    cluster: str
    case: Case
    step_s: float
    parts_s: Mapping[tuple[str, str], float]
    """Measured seconds by part and stage (`first`, `middle`, `last`)."""

    @cached_property
    def setup(self) -> str:
        """What the prediction depends on: jobs with the same set-up get the same one."""
        return repr((self.cluster, self.case))


def is_components(columns: Iterable[str]) -> bool:
    """Whether a file with these columns states components, so that `read_components` reads it."""
    return set(REQUIRED_COLUMNS) <= {name.strip() for name in columns}


def read_components(path: Path) -> tuple[list[ComponentRun], list[Skipped]]:
    """The jobs of a CSV file, and the rows that cannot be scored; `InputError` when the file has not the columns."""
    runs: list[ComponentRun] = []
    skipped: list[Skipped] = []
    for number, row in enumerate(_read_rows(path)):
        name = row["run_id"][:LONGEST_TEXT] or f"row {number + 1}"
        source = row.get("cluster", "")[:LONGEST_TEXT]
        if number >= MOST_ROWS:
            reason = f"Only {MOST_ROWS} rows of a file are read."
            skipped.append(Skipped(id=name, source=source, code="too_many_rows", reason=reason))
            break
        try:
            runs.append(_build_run(name, row))
        except RowError as error:
            skipped.append(Skipped(id=name, source=source, code=error.code, reason=error.reason))
        except InputError as error:
            message = error.notices[0].message() if error.notices else "-"
            reason = f"A value is out of range: {message}"
            skipped.append(Skipped(id=name, source=source, code="out_of_range", reason=reason))
    return runs, skipped


def _read_rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        with (
            path.open(encoding="utf-8-sig", errors="replace", newline="") as file,
            open_table((line.replace("\0", "") for line in file), str(path), REQUIRED_COLUMNS) as reader,
        ):
            for row in islice(reader, MOST_ROWS + 1):
                yield {key: (value or "").strip() for key, value in row.items() if isinstance(key, str) and key}
    except OSError as error:
        raise FileError(Notice(code="file_unreadable", value=str(path), params={"reason": str(error)})) from None


def _build_run(name: str, row: Mapping[str, str]) -> ComponentRun:
    step_s = read_number(row, "iter_best_s", LARGEST_NUMBER)
    if step_s is None:
        raise RowError("not_measured", "The fastest iteration (iter_best_s) is not stated.")
    columns = {(part, stage): f"{part}_{stage}_us" for part in PARTS for stage in STAGES}
    parts = {key: read_number(row, column, LARGEST_NUMBER) for key, column in columns.items()}
    raw = {("update", stage): read_number(row, f"update_raw_{stage}_us", LARGEST_NUMBER) for stage in STAGES}
    parts |= {key: value for key, value in raw.items() if value is not None}
    return ComponentRun(
        id=name,
        cluster=row.get("cluster", "").lower()[:LONGEST_TEXT],
        case=_build_case(row),
        step_s=step_s,
        parts_s={key: value * SECONDS_PER_US for key, value in parts.items() if value is not None},
    )


def _build_case(row: Mapping[str, str]) -> Case:
    t, p, d = (_require_integer(row, key) for key in ("mp", "pp", "dp"))
    gpus, micro_batch = _require_integer(row, "gpus"), _require_integer(row, "micro_batch")
    if t * p * d != gpus:
        raise RowError("degrees_clash", f"mp {t} x pp {p} x dp {d} = {t * p * d} is not the {gpus} GPUs stated.")
    model = _build_model(row)
    if model.heads % t:
        raise RowError("degrees_clash", f"mp {t} does not divide the {model.heads} heads.")
    stages = _read_stage_layers(row, model.layers, p)
    micro_batches = read_integer(row, "n_micro")
    batch = read_integer(row, "global_batch")
    if micro_batches is None and batch is None:
        raise RowError("no_batch", "Neither n_micro nor global_batch is stated.")
    samples = micro_batch * d * micro_batches if micro_batches else batch or 0
    if (batch is not None and batch != samples) or samples % (micro_batch * d):
        raise RowError("batch_clash", f"The batch of {batch} is not micro_batch {micro_batch} x n_micro x dp {d}.")
    if samples // (micro_batch * d) * p > MOST_PASSES:
        raise RowError("too_long", f"There are more than {MOST_PASSES} micro-batches times stages.")
    zero = read_integer(row, "zero_stage", least=0)
    return Case(
        model=model,
        job=Job(
            seq_len=_require_integer(row, "seq"),
            global_batch=samples,
            precision=_parse_choice(row, "precision", ("fp16", "bf16"), "fp16"),
            optimizer="adamw",
            framework="deepspeed",
            stack=_choose_stack(row),
        ),
        cluster=_build_cluster(row, gpus),
        strategy=Strategy(
            tp=t,
            pp=p,
            dp=d,
            micro_batch=micro_batch,
            layers_per_stage=stages,
            zero=1 if zero is None else zero,
            recompute="none" if row.get("recompute", "").lower() in ("none", "no") else "full",
            communication=Communication(overlap_gradients=False, overlap_parameters=False, overlap_tensor=False),
        ),
    )


def _choose_stack(row: Mapping[str, str]) -> str:
    """GPT-NeoX with the attention kernel and the kept activations that the row states."""
    fused = "-flash" if "flash" in row.get("attention", "").lower() else ""
    return f"{STACK}{fused}" + ("-partitioned" if _parse_flag(row, "partition_activations") else "")


def _build_model(row: Mapping[str, str]) -> Model:
    hidden, vocab = _require_integer(row, "hidden"), read_integer(row, "vocab")
    padded = read_integer(row, "vocab_padded")
    if vocab is None and padded is None:
        raise RowError("no_architecture", "The vocabulary is not stated.")
    vocab = vocab or padded or 1
    norm = "rmsnorm" if "rms" in row.get("norm", "").lower() else "layernorm"
    return Model(
        name=row.get("model", "")[:LONGEST_TEXT] or "custom",
        layers=_require_integer(row, "n_layers"),
        hidden=hidden,
        heads=_require_integer(row, "heads"),
        ffn_hidden=read_integer(row, "ffn_hidden") or 4 * hidden,
        vocab=vocab,
        vocab_padded_to=padded if padded and padded > vocab else None,
        activation=_parse_choice(row, "activation", ("gelu", "relu", "silu", "swiglu", "geglu"), "gelu"),
        norm=norm,
        tied_embeddings=_parse_flag(row, "tied_embeddings"),
        parallel_residual=_parse_flag(row, "parallel_residual"),
    )


def _read_stage_layers(row: Mapping[str, str], layers: int, p: int) -> tuple[int, ...] | None:
    """Layers of each stage, or None when the row does not state them."""
    first, middle, last = (read_integer(row, f"layers_{stage}", least=0) for stage in STAGES)
    if p > layers:
        raise RowError("degrees_clash", f"pp {p} exceeds the {layers} layers.")
    if first is None or (last is None and p > 1) or (middle is None and p > 2):
        return None
    counts = (first, *[middle or 0] * (p - 2), last or 0) if p > 1 else (first,)
    if sum(counts) != layers or 0 in counts:
        raise RowError("layers_clash", f"The stages hold {sum(counts)} layers, the model {layers}.")
    return counts


def _build_cluster(row: Mapping[str, str], gpus: int) -> Cluster:
    text = row["gpu"]
    gpu = catalogue().find("gpus", text) if text else None
    if not isinstance(gpu, Gpu):
        raise RowError("unknown_gpu", f"No catalogue entry goes by the GPU name {text[:60]!r}.")
    per_node = min(read_integer(row, "gpus_per_node") or USUAL_GPUS_PER_NODE, gpus)
    if gpus % per_node:
        raise RowError("degrees_clash", f"{gpus} GPUs do not fill nodes of {per_node}.")
    group = NodeGroup(count=gpus // per_node, gpus=per_node, gpu=gpu)
    return Cluster(zones=(Zone(name="measured", nodes=(group,)),))


def _require_integer(row: Mapping[str, str], key: str) -> int:
    value = read_integer(row, key)
    if value is None:
        raise RowError("missing", f"{key} is not stated.")
    return value


def _parse_flag(row: Mapping[str, str], key: str) -> bool:
    text = row.get(key, "").lower()
    if text not in _YES | _NO:
        raise RowError("not_a_flag", f"{key} is neither true nor false: {text[:60]!r}.")
    return text in _YES


def _parse_choice(row: Mapping[str, str], key: str, allowed: tuple[str, ...], default: str) -> Any:
    text = row.get(key, "").lower() or default
    if text not in allowed:
        raise RowError("unknown_value", f"{key} {text[:60]!r} is none of {', '.join(allowed)}.")
    return text
