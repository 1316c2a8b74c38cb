"""Samples of operators: tables of timings, read and grouped by operator, precision and pass.

    read = read_samples([Path("samples.csv")])
    read.gpu, [(one.key, len(one.time_us)) for one in read.samples], read.left_out

Two kinds of file: what `crosszone calibrate kernels` writes, and the operator tables of GPUModeling25 (arXiv
2509.22832), whose model-level inputs are turned to shapes on one GPU here. Flagged rows are counted and left
out. A wrong cell, a negative time or times in another unit are refused with their line.
"""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crosszone.cost.operator_forms import DIMS, OPTIONAL, WORDS, Floats
from crosszone.cost.operator_profile import USUAL_MODE, key, passes
from crosszone.errors import FileError, InputError, InvalidError, Notice
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.value import nearest

# Columns that tell a table of `crosszone calibrate kernels`.
KERNEL_COLUMNS = ("device", "dtype", "op", "pass", "mode", "time_us", "flag")
# Columns of an operator table of GPUModeling25.
MODEL_COLUMNS = ("gpu", "op", "pass", "mp", "micro_batch", "heads", "seq", "hidden", "layers", "time_us", "flag")
MODEL_GPUS = {"A100": "a100-80gb-sxm", "GH200": "gh200-96gb"}
# Streaming multiprocessors (compute units) by the beginning of a catalogue name (makers' data sheets).
PROCESSORS = {
    **{"a100": 108, "a800": 108, "h100": 132, "h200": 132, "h800": 132, "gh200": 132, "h20": 78, "b200": 148},
    **{"gb200": 148, "v100": 80, "l40s": 142, "l4": 58, "a40": 84, "a10": 72, "mi300x": 304, "h100-pcie": 114},
}
USUAL_PROCESSORS = 132
MAX_ROWS = 500_000
MAX_BYTES = 200 * 1024 * 1024
MOST_MISTAKES = 20
LEAST_US, MOST_US = 0.01, 1e9
LONG_US = 100.0  # Products that take longer are what a training step is made of
SLOW, FAST = 300.0, 0.3  # Median of time over roof beyond which times are in another unit
VOCABULARY = 50257  # Of the models that GPUModeling25 sampled, padded to a multiple of 128 on each GPU
# Sizes that are held out whole, where they are not the width.
HELD_OUT = {
    "matmul": ("n", "k"),
    "grouped_matmul": ("n", "k"),
    "attention": ("heads", "head_dim"),
    "rotary": ("heads",),
    "cross_entropy": ("vocab",),
    "adamw": ("params",),
    "copy": ("bytes",),
    "layer": ("hidden",),
    "train_step": ("hidden",),
}


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Timings of one operator in one precision, pass and mode."""

    op: str
    dtype: str
    which: str
    mode: str
    sizes: dict[str, Floats]
    time_us: Floats
    host_us: Floats
    """Time the host took to launch it; nan: not measured."""
    memory_gib: Floats
    again: npt.NDArray[np.bool_]
    """Layers are computed again in the backward pass (whole steps)."""
    group: npt.NDArray[np.int64]
    """Samples of one size that is held out whole have one number."""
    held_out: str
    """What that size is."""
    part: npt.NDArray[np.str_]
    """Origin of each sample within the operator."""

    @property
    def key(self) -> str:
        """The name of its fit."""
        return key(self.op, self.dtype, self.which, self.mode)

    def taken(self, which: Any) -> Samples:
        """Some of them."""
        from dataclasses import replace

        arrays = {name: getattr(self, name)[which] for name in ("time_us", "host_us", "memory_gib", "again", "group")}
        sizes = {name: value[which] for name, value in self.sizes.items()}
        return replace(self, sizes=sizes, part=self.part[which], **arrays)


@dataclass(frozen=True, kw_only=True)
class Read:
    """All samples of some files, which are of one GPU."""

    gpu: str
    device: str
    source: str
    samples: tuple[Samples, ...]
    left_out: dict[str, int]
    """Rows by flag that were not used."""

    @property
    def processors(self) -> int:
        """Of the GPU."""
        return processors_of(self.gpu)

    @property
    def used(self) -> int:
        """Rows that were used."""
        return sum(len(one.time_us) for one in self.samples)

    def of(self, op: str, dtype: str | None = None, which: str | None = None, mode: str = USUAL_MODE) -> list[Samples]:
        """Samples of an operator, perhaps of one precision and pass."""
        return [
            one
            for one in self.samples
            if one.op == op
            and one.mode == mode
            and (dtype is None or one.dtype == dtype)
            and (which is None or one.which == which)
        ]


@dataclass
class _Rows:
    """What has been read so far."""

    gpus: dict[str, str] = field(default_factory=dict)
    rows: dict[tuple[str, str, str, str], list[dict[str, Any]]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    roofs: list[float] = field(default_factory=list)
    seen: set[tuple[Any, ...]] = field(default_factory=set)


def processors_of(gpu: str) -> int:
    """Streaming multiprocessors of a GPU kind; an unknown one is taken as a large one."""
    fitting = [name for name in PROCESSORS if gpu.startswith(name)]
    return PROCESSORS[max(fitting, key=len)] if fitting else USUAL_PROCESSORS


def read_samples(paths: Sequence[Path], gpu: str | None = None) -> Read:
    """The samples of some tables of one GPU; an `InputError` names each wrong row, and nothing is returned."""
    found = _Rows()
    for path in paths:
        _read(path, found)
    if not found.rows:
        files = ", ".join(map(str, paths))
        raise InvalidError(Notice(code="samples_none", value=files, params={"left_out": sum(found.left_out.values())}))
    devices = sorted(found.gpus)
    names = {gpu} if gpu else {found.gpus[device] for device in devices}
    if len(names) > 1 or (len(devices) > 1 and not gpu):
        raise InvalidError(Notice(code="samples_several_gpus", value=devices))
    _unit(found.roofs, paths)
    return Read(
        gpu=catalogue().gpu(names.pop()).name,
        device=", ".join(devices),
        source=", ".join(path.name for path in paths),
        samples=tuple(_grouped(at, rows) for at, rows in sorted(found.rows.items())),
        left_out=dict(sorted(found.left_out.items())),
    )


def catalogue_name(device: str) -> str:
    """The catalogue name of a GPU that calls itself `device`, e.g. NVIDIA H200."""
    word = device.lower().replace("nvidia", "").replace("graphics", "").strip(" -_").replace(" ", "-")
    tries = [word, word.replace("-hbm3", "").replace("-hbm2e", ""), word.split("-")[0]]
    for one in tries:
        entry = catalogue().find("gpus", one) if one else None
        if entry is not None:
            return entry.name
    return catalogue().gpu(word or device).name


def _read(path: Path, found: _Rows) -> None:
    name, mistakes = str(path), list[Notice]()
    reader = csv.DictReader(io.StringIO(_text(path)))
    try:
        columns = set(reader.fieldnames or ())
        models = set(MODEL_COLUMNS) <= columns
        missing = [column for column in KERNEL_COLUMNS if column not in columns]
        if missing and not models:
            raise InputError(Notice(code="runs_columns", value=name, params={"missing": missing}, file=name, line=1))
        for at, cells in enumerate(reader):
            if at == MAX_ROWS:
                raise InputError(Notice(code="samples_rows", value=name, params={"limit": MAX_ROWS}, file=name))
            try:
                (_model_row if models else _kernel_row)(cells, found)
            except InputError as error:
                mistakes += [notice.at(name, reader.line_num) for notice in error.notices]
            if len(mistakes) >= MOST_MISTAKES:
                break
    except csv.Error as error:
        raise FileError(Notice(code="file_unreadable", value=name, params={"reason": str(error)}, file=name)) from None
    if mistakes:
        raise InvalidError(*mistakes)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FileError(Notice(code="samples_bytes", value=str(path), params={"limit": MAX_BYTES // 2**20}))
        return path.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileError(
            Notice(code="file_unreadable", value=str(path), params={"reason": reason}, file=str(path))
        ) from None


def _kernel_row(cells: Mapping[str, str], found: _Rows) -> None:
    """A row of `crosszone calibrate kernels`."""
    op, dtype, which, mode = (_word(cells, name) for name in ("op", "dtype", "pass", "mode"))
    for name, value, allowed in (
        ("op", op, DIMS),
        ("dtype", dtype, WORDS),
        ("pass", which, passes(op)),
    ):
        if value not in allowed:
            raise _not_one_of(name, value, allowed)
    device = _word(cells, "device")
    if device not in found.gpus:
        found.gpus[device] = catalogue_name(device)
    if flag := _word(cells, "flag"):
        found.left_out[flag] += 1
        return
    needed = [name for name in DIMS[op] if cells.get(name) or (op, name) not in OPTIONAL]
    row: dict[str, Any] = {name: _number(cells, name) for name in needed}
    for (of, name), default in OPTIONAL.items():
        if of == op and name not in row:
            row[name] = row[default] if isinstance(default, str) else default
    again = _word(cells, "recompute") == "full"
    same = (op, dtype, which, mode, device, again, tuple(row.items()))
    if same in found.seen:
        found.left_out["repeated"] += 1
        return
    found.seen.add(same)
    row["time_us"] = _number(cells, "time_us", LEAST_US, MOST_US)
    for name in ("host_us", "memory_gib"):
        row[name] = _number(cells, name, 0.0) if cells.get(name) else math.nan
    if op in ("matmul", "attention") and cells.get("roof_us"):
        found.roofs.append(row["time_us"] / _number(cells, "roof_us"))
    row["again"], row["part"], row["group"] = again, _part(op, row), tuple(row[name] for name in _held(op))
    found.rows.setdefault((op, dtype, which, mode or USUAL_MODE), []).append(row)


def _not_one_of(name: str, value: str, allowed: Iterable[str]) -> InvalidError:
    given = list(allowed)
    params = {"allowed": given, "nearest": nearest(value, given)[0]}
    return InvalidError(Notice(code="not_one_of", field=name, value=value, params=params))


def _held(op: str) -> tuple[str, ...]:
    return HELD_OUT.get(op, ("width",))


def _part(op: str, row: Mapping[str, float]) -> str:
    """Products by what a user may want to know apart: long ones, short ones, rows that are no multiple of 8."""
    if op not in ("matmul", "grouped_matmul"):
        return op
    if row["n"] % 8 or row["k"] % 8:
        return "unaligned"
    return "long" if row["time_us"] >= LONG_US else "short"


def _word(cells: Mapping[str, str], name: str) -> str:
    return (cells.get(name) or "").strip()


def _number(cells: Mapping[str, str], name: str, least: float = 1e-9, most: float = 1e18) -> float:
    try:
        value = float(cells.get(name) or "")
    except ValueError:
        raise InvalidError(Notice(code="must_be_number", field=name, value=cells.get(name) or "-")) from None
    if not least <= value <= most:
        raise InvalidError(Notice(code="samples_range", field=name, value=value, params={"low": least, "high": most}))
    return value


def _unit(roofs: Sequence[float], paths: Sequence[Path]) -> None:
    """Refuse times that are not in microseconds: most products would beat the device or be far slower."""
    if len(roofs) < 5:
        return
    ratio = float(np.median(roofs))
    if not FAST <= ratio <= SLOW:
        raise InvalidError(Notice(code="samples_unit", field="time_us", value=str(paths[0]), params={"ratio": ratio}))


def _model_row(cells: Mapping[str, str], found: _Rows) -> None:
    """A row of a GPUModeling25 table; time of not causal flash attention is halved, as half the scores are masked."""
    gpu = _word(cells, "gpu")
    if gpu not in MODEL_GPUS:
        raise _not_one_of("gpu", gpu, MODEL_GPUS)
    found.gpus[gpu] = MODEL_GPUS[gpu]
    if flag := _word(cells, "flag"):
        found.left_out[flag] += 1
        return
    name, which = _word(cells, "op"), _word(cells, "pass")
    given = {c: _number(cells, c) for c in ("mp", "micro_batch", "heads", "seq", "hidden", "layers") if cells.get(c)}
    try:
        op, sizes = model_shape(name, given)
    except KeyError as missing:
        if name not in MODEL_OPS:
            raise _not_one_of("op", name, MODEL_OPS) from None
        raise InvalidError(Notice(code="must_be_number", field=str(missing.args[0]), value="-")) from None
    if which not in passes(op):
        raise _not_one_of("pass", which, passes(op))
    row: dict[str, Any] = dict(sizes)
    time_us = _number(cells, "time_us", LEAST_US, MOST_US)
    row["time_us"] = time_us / 2.0 if op == "attention" else time_us
    row["host_us"] = row["memory_gib"] = math.nan
    row["again"], row["part"], row["group"] = False, name, (given.get("hidden") or given["seq"],)
    row["held_out"] = "hidden" if "hidden" in given else "seq"
    found.rows.setdefault((op, "fp16", which, USUAL_MODE), []).append(row)


MODEL_OPS = (
    *("linear_qkv", "linear_attn_out", "linear_mlp_up", "linear_mlp_down", "linear_vocab", "attn_scores_bmm"),
    *("attn_values_bmm", "flash_attention", "causal_softmax", "softmax", "mask_fill", "layernorm", "rmsnorm"),
    *("res_add", "gelu", "rope", "embedding", "cross_entropy", "adam_first_stage", "adam_middle_stage"),
    "adam_last_stage",
)
# Operators whose sizes do not depend on the hidden size.
WITHOUT_HIDDEN = ("causal_softmax", "softmax", "mask_fill", "cross_entropy")


def model_shape(name: str, g: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """Operator and sizes on one GPU of a GPUModeling25 row: `mp` GPUs share a model of `hidden` and `heads`."""
    if name not in MODEL_OPS:
        raise KeyError(name)
    h = g.get("hidden", 0.0) if name in WITHOUT_HIDDEN else g["hidden"]
    mp = g.get("mp", 1.0)
    vocab = 128.0 * math.ceil(VOCABULARY / (128.0 * mp))
    if name.startswith("adam_"):
        ends = 0.0 if name == "adam_middle_stage" else vocab * h
        return "adamw", {"params": g["layers"] * 12.0 * g["hidden"] ** 2 / mp + ends, "layers": g["layers"]}
    tokens = g["micro_batch"] * g["seq"]
    products = {
        "linear_qkv": (3.0 * h / mp, h),
        "linear_attn_out": (h, h / mp),
        "linear_mlp_up": (4.0 * h / mp, h),
        "linear_mlp_down": (h, 4.0 * h / mp),
        "linear_vocab": (vocab, h),
    }
    if name in products:
        n, k = products[name]
        return "matmul", {"m": tokens, "n": n, "k": k}
    if name in ("layernorm", "rmsnorm", "res_add"):
        return {"res_add": "residual_add"}.get(name, name), {"tokens": tokens, "width": h}
    if name == "gelu":
        return "gelu", {"tokens": tokens, "width": 4.0 * h / mp}
    if name == "embedding":
        return "embedding", {"tokens": tokens, "width": h, "vocab": vocab}
    if name == "cross_entropy":
        return "cross_entropy", {"tokens": tokens, "vocab": vocab}
    return _head_shape(name, g, g["heads"] / mp, h)


def _head_shape(name: str, g: Mapping[str, float], heads: float, hidden: float) -> tuple[str, dict[str, float]]:
    batch, seq = g["micro_batch"], g["seq"]
    if name in ("causal_softmax", "softmax", "mask_fill"):
        return name, {"tokens": batch * heads * seq, "width": seq}
    head_dim = hidden / g["heads"]
    if name == "rope":
        return "rotary", {"tokens": batch * seq, "heads": heads, "head_dim": head_dim}
    if name == "flash_attention":
        return "attention", {"batch": batch, "heads": heads, "kv_heads": heads, "head_dim": head_dim, "seq": seq}
    op = {"attn_scores_bmm": "scores_matmul", "attn_values_bmm": "values_matmul"}[name]
    return op, {"batch": batch * heads, "seq": seq, "head_dim": head_dim}


def _grouped(at: tuple[str, str, str, str], rows: Sequence[Mapping[str, Any]]) -> Samples:
    op, dtype, which, mode = at
    numbers = {group: number for number, group in enumerate(sorted({row["group"] for row in rows}))}

    def column(name: str) -> Floats:
        return np.array([row[name] for row in rows], dtype=float)

    return Samples(
        op=op,
        dtype=dtype,
        which=which,
        mode=mode,
        sizes={name: column(name) for name in DIMS[op]},
        time_us=column("time_us"),
        host_us=column("host_us"),
        memory_gib=column("memory_gib"),
        again=np.array([row["again"] for row in rows]),
        group=np.array([numbers[row["group"]] for row in rows]),
        held_out=rows[0].get("held_out") or " x ".join(_held(op)),
        part=np.array([row["part"] for row in rows]),
    )
