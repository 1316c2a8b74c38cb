"""Tables: what the workbook looks up: GPUs, models, frameworks, number formats, stacks and their coefficients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from crosszone.calibrate.sheet.book import Book, Line, Text, line, put
from crosszone.cost.coefficients import Coefficients
from crosszone.cost.columns import PATH_BITS
from crosszone.cost.memory_profile import MemoryCoefficients, memory_entries
from crosszone.cost.profile import Profiles
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.frameworks import frameworks
from crosszone.inputs.gpu import Gpu
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.states import numerics
from crosszone.predict.batch import COMPRESSED_BYTES, GRADIENT_BYTES, ROUNDS, stack_columns
from crosszone.predict.predictor import Predictor

FIELDS = tuple(f.name for f in fields(Coefficients))
MEMORY_FIELDS = tuple(f.name for f in fields(MemoryCoefficients))
OF_FRAMEWORKS = (
    "fp32_weights",
    "fp32_gradients",
    "vocab_multiple",
    "bucket_mb",
    "bucket_buffer",
    "bucket_parameters_m",
    "bucket_parameters_per_rank_m",
)
NONE = "-"
"""In place of a value that a home does not have."""
OWN, COMMON = 1, 2
"""Columns of the scenario's own values and of the common ones."""


def gpu_table(book: Book, profiles: Profiles, given: Gpu) -> None:
    """Datasheets of all GPU kinds, the scenario's first where it is none of them."""
    known = [catalogue().gpu(name) for name in catalogue().names("gpus")]
    own = [] if any(one.name == given.name for one in known) else [given]
    rows = [*own, *(given if one.name == given.name else one for one in known)]
    peaks = {path: [gpu.peak(path) or 0.0 for gpu in rows] for path in ("fp32", "fp16", "bf16", "fp8", "fp4")}
    columns: dict[str, Sequence[Any]] = {
        "name": [gpu.name for gpu in rows],
        **{f"tflops_{path}": values for path, values in peaks.items()},
        "memory_gib": [gpu.memory_gib for gpu in rows],
        "memory_gb_per_s": [gpu.memory_gb_per_s for gpu in rows],
        "link_gb_per_s": [gpu.link.gb_per_s if gpu.link else 0.0 for gpu in rows],
        "link_domain": [gpu.link.domain if gpu.link else 1 for gpu in rows],
        "link_spans_nodes": [int(gpu.link.spans_nodes) if gpu.link else 0 for gpu in rows],
        "pcie_gb_per_s": [gpu.pcie.gb_per_s for gpu in rows],
        "family": [profiles.gpu_profile(gpu)[0] for gpu in rows],
    }
    book.table("GPUs", "gpus", columns)
    book.freeze("GPUs", "B2")


def model_table(book: Book, given: Model) -> None:
    """Architectures of all models, the scenario's first where it is none of them."""
    known = [catalogue().model(name) for name in catalogue().names("models")]
    own = [] if any(one.name == given.name for one in known) else [given]
    rows = [model_row(one) for one in (*own, *(given if one.name == given.name else one for one in known))]
    book.table("Models", "models", {name: [row[name] for row in rows] for name in rows[0]})
    book.freeze("Models", "B2")


def model_row(model: Model) -> dict[str, Any]:
    """A model as one row; 0 or 1 for yes and no."""
    moe, mla, window = model.moe, model.mla, model.window
    counted = parameters(model)
    layers = ("attention", "mlp", "router", "routed_experts", "shared_experts")
    in_layers = sum(getattr(counted, part) for part in layers)
    latent_norms = (mla.q_lora_rank or 0) + mla.kv_lora_rank if mla else 0
    norm = model.hidden * (2 if model.norm == "layernorm" else 1)
    return {
        "name": model.name,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "qk_dim": model.qk_head_dim,
        "v_dim": model.v_head_dim,
        "ffn_hidden": model.ffn_hidden,
        "matrices": 3 if model.gated else 2,
        "vocab": model.vocab,
        "vocab_rows": model.embedding_rows,
        "vocab_fixed": int(model.vocab_padded_to is not None),
        "embedding_width": model.embedding_width,
        "tied": int(model.tied_embeddings),
        "position_rows": (model.max_seq_len or 0) if model.positions == "learned" else 0,
        "token_types": model.token_types,
        "causal": int(model.causal),
        "window_tokens": window.tokens if window else 0,
        "full_layers": model.full_attention_layers,
        "parallel_residual": int(model.parallel_residual),
        "written": ((model.norm == "rmsnorm") + (model.positions == "rotary")) / 2,
        "sinks": int(model.attention_sinks),
        "norm_params": norm,
        "layer_norm_params": model.norms_per_layer * norm + latent_norms,
        "qk_norm_params": _qk_norm(model),
        "bias_qkv": int("qkv" in model.bias),
        "bias_out": int("out" in model.bias),
        "bias_mlp": int("mlp" in model.bias),
        "bias_router": int("router" in model.bias),
        "latent": int(mla is not None),
        "q_rank": (mla.q_lora_rank or 0) if mla else 0,
        "kv_rank": mla.kv_lora_rank if mla else 0,
        "rope_dim": mla.qk_rope_head_dim if mla else 0,
        "experts": moe.experts if moe else 0,
        "top_k": moe.top_k if moe else 0,
        "expert_ffn": moe.ffn_hidden if moe else 0,
        "shared_experts": moe.shared_experts if moe else 0,
        "shared_ffn": moe.shared_ffn_hidden if moe and moe.shared_experts else 0,
        "shared_gate": int(moe.shared_gate) if moe else 0,
        "first_dense": moe.first_dense if moe else 0,
        "moe_every": moe.every if moe else 1,
        "mlm_head": int(model.mlm_head),
        "outer_params": counted.total - in_layers - model.layers * (model.norms_per_layer * norm + latent_norms),
    }


def _qk_norm(model: Model) -> int:
    if model.mla:
        return 0
    e = model.head_dim
    return {"none": 0, "head": 2 * e, "full": (model.heads + model.kv_heads) * e}[model.qk_norm]


def list_tables(book: Book, profiles: Profiles) -> None:
    """Number formats, optimizers, frameworks, compressions and stacks."""
    formats = numerics()["precisions"]
    book.table(
        "Lists",
        "formats",
        {
            "name": list(formats),
            "compute": [one["compute"] for one in formats.values()],
            "bits": [7 if name == "mxfp8" else PATH_BITS[one["compute"]] for name, one in formats.items()],
            **{key: [one[key] for one in formats.values()] for key in ("weights", "gradients", "master", "moment")},
        },
    )
    optimizers = numerics()["optimizers"]
    moments = [one["moments"] for one in optimizers.values()]
    book.table("Lists", "optimizers", {"name": list(optimizers), "moments": moments})
    known = frameworks()
    rows = {name: [float(getattr(one, name) or 0) for one in known.values()] for name in OF_FRAMEWORKS}
    book.table("Lists", "frameworks", {"name": list(known), **rows})
    kinds = ["none", *COMPRESSED_BYTES, "powersgd"]
    book.table(
        "Lists",
        "compressions",
        {
            "name": kinds,
            "bytes": [COMPRESSED_BYTES.get(kind, 0.0) for kind in kinds],
            "rounds": [ROUNDS.get(kind, 1.0) for kind in kinds],
        },
    )
    book.table("Lists", "dtypes", {"name": ["own", *GRADIENT_BYTES], "bytes": [0.0, *GRADIENT_BYTES.values()]})
    switches = {name: stack_columns(entry["settings"], 0.0) for name, entry in profiles.stacks.items()}
    flags = ("unfused", "triton", "launch_added", "p2p_scatter")
    book.table(
        "Lists",
        "stacks",
        {
            "name": list(switches),
            **{flag: [getattr(one, flag) for one in switches.values()] for flag in flags},
            "release_base": [e["settings"].get("release_base") or 0.0 for e in profiles.stacks.values()],
            "graphed_from": [e["settings"].get("graphed_from") or 0.0 for e in profiles.stacks.values()],
        },
    )
    cases = [(family, stack) for family in profiles.gpus for stack in profiles.stacks]
    heads = [_head(_homes(profiles, "gpu", family, stack)) for family, stack in cases]
    book.table("Lists", "families", {"case": [f"{family}, {stack}" for family, stack in cases], "home": heads})


def coefficient_tables(book: Book, p: Predictor) -> None:
    """Every coefficient with its error and origin in each home, and which of them GPU and stack read."""
    from openpyxl.styles import Font  # type: ignore[import-untyped]
    from openpyxl.utils import get_column_letter  # type: ignore[import-untyped]

    profiles, sheet = p.profiles, "Coefficients"
    columns = _columns(profiles)
    homes = ["own", *columns]
    to = book.sheet(sheet)
    heads = ("name", "value", "error", "origin", "home", "column", "what it is")
    for at, head in enumerate(heads, 1):
        to.cell(1, at, head).font = Font(bold=True)
    blocks = {"value": 9, "error": 9 + len(homes) + 1, "origin": 9 + 2 * (len(homes) + 1)}
    for kind, left in blocks.items():
        for at, home in enumerate(homes):
            put(to, 1, left + at, Text(home if kind == "value" else f"{kind}: {home}"))
    values = _own_values(p)
    span = {k: (get_column_letter(c), get_column_letter(c + len(homes) - 1)) for k, c in blocks.items()}
    book.name("homes", sheet, f"${span['value'][0]}$1:${span['value'][1]}$1")
    for row, field in enumerate(FIELDS, 2):
        found = _found(profiles, columns, field)
        if field in values:
            found["own"] = {"value": values[field], "error": NONE, "origin": "own"}
        for at, home in enumerate(homes):
            for kind, left in blocks.items():
                to.cell(row, left + at, found.get(home, {}).get(kind, NONE))
        here = {kind: f"${first}{row}:${last}{row}" for kind, (first, last) in span.items()}
        at_own = f"INDEX({here['value']},1,{OWN})"
        at_stack, at_family = (f"INDEX({here['value']},1,{name})" for name in ("stack_home", "family_home"))
        to.cell(row, 1, field)
        to.cell(row, 2, f"=INDEX({here['value']},1,F{row})")
        to.cell(row, 3, f"=INDEX({here['error']},1,F{row})")
        to.cell(row, 4, f"=INDEX({here['origin']},1,F{row})")
        to.cell(row, 5, f"=INDEX(homes,1,F{row})")
        chosen = f'IF({at_stack}<>"{NONE}",stack_home,IF({at_family}<>"{NONE}",family_home,{COMMON}))'
        of_own = f'AND({at_own}<>"{NONE}",gpu=own_gpu,stack=own_stack)'
        to.cell(row, 6, f"=IF({of_own},{OWN},{chosen})")
        to.cell(row, 7, book.coefficient(field))
        book.name(f"k_{field}", sheet, f"$B${row}")
    for letter, width in zip("ABCDEFG", (20, 14, 10, 12, 24, 8, 70), strict=True):
        to.column_dimensions[letter].width = width
    book.freeze(sheet, "H2")


def home_lines(p: Predictor) -> list[Line]:
    """Which columns of the coefficients GPU and stack read; a family may be for some stacks only."""
    of_case = 'INDEX(families_home,MATCH(gpu_family&", "&stack,families_case,0))'
    return [
        line("own_gpu", Text(p.case.cluster.zones[0].nodes[0].gpu.name)),
        line("own_stack", Text(p.stack)),
        line("stack_home", '=MATCH("stack "&stack,homes,0)'),
        line("family_column", f'=IFERROR({of_case},"common")'),
        line("family_home", "=MATCH(family_column,homes,0)"),
    ]


def _homes(profiles: Profiles, kind: str, family: str, stack: str) -> tuple[str, ...]:
    """Where a case looks for a coefficient among GPU families or among stacks, nearest first; maybe nowhere."""
    return tuple(home for home in profiles.homes_of(family, stack) if home.startswith(f"{kind} "))


def _head(homes: Sequence[str]) -> str:
    """Head of the column that has what these homes have."""
    return ", ".join(homes) or "common"


def _columns(profiles: Profiles) -> dict[str, tuple[str, ...]]:
    """Columns of coefficients by their heads: the common one, one for all that GPU families may read, the stacks."""
    found: dict[str, tuple[str, ...]] = {"common": ("common",)}
    for family in profiles.gpus:
        for stack in profiles.stacks:
            homes = _homes(profiles, "gpu", family, stack)
            found.setdefault(_head(homes), homes)
    return found | {f"stack {stack}": _homes(profiles, "stack", "", stack) for stack in profiles.stacks}


def _found(profiles: Profiles, columns: Mapping[str, Sequence[str]], field: str) -> dict[str, Mapping[str, Any]]:
    """The field in every column one of whose homes has it."""
    found: dict[str, Mapping[str, Any]] = {}
    for head, homes in columns.items():
        home = next((one for one in homes if (one, field) in profiles.place), None)
        if home is not None:
            found[head] = _entry(profiles, home, field)
    return found


def _entry(profiles: Profiles, home: str, field: str) -> dict[str, Any]:
    at = profiles.place[home, field]
    return {
        "value": float(profiles.values[at]),
        "error": float(profiles.errors[at]),
        "origin": profiles.entries[at]["origin"],
    }


def _own_values(p: Predictor) -> dict[str, float]:
    """Coefficients of the scenario that differ from the profile's: of GPUs that a trial found faster or slower."""
    group = p.case.cluster.zones[0].nodes[0]
    plain, used = (p.profiles.select(group.gpu, p.stack, speed).coefficients for speed in (None, group.speed))
    return {field: getattr(used, field) for field in FIELDS if getattr(used, field) != getattr(plain, field)}


def memory_table(book: Book, p: Predictor) -> None:
    """What each stack keeps in memory."""
    from openpyxl.utils import get_column_letter

    sheet = "Memory"
    to = book.sheet(sheet)
    stacks = list(p.profiles.stacks)
    for at, head in enumerate(("name", "value", "what it is", "", *stacks), 1):
        to.cell(1, at, head)
    last = get_column_letter(4 + len(stacks))
    book.name("memory_stacks", sheet, f"$E$1:${last}$1")
    entries = {stack: memory_entries(stack) for stack in stacks}
    for row, field in enumerate(MEMORY_FIELDS, 2):
        to.cell(row, 1, field)
        to.cell(row, 2, f"=INDEX($E{row}:${last}{row},1,MATCH(stack,memory_stacks,0))")
        to.cell(row, 3, book.coefficient(field))
        for at, stack in enumerate(stacks):
            to.cell(row, 5 + at, float(entries[stack][field]["value"]))
        book.name(f"mem_{field}", sheet, f"$B${row}")
    for letter, width in zip("ABC", (22, 12, 70), strict=True):
        to.column_dimensions[letter].width = width
    book.freeze(sheet, "D2")
