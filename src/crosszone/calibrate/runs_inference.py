"""What a row of measured runs leaves open, inferred in three parts.

1. `read_row_text`: what the text columns say (stack, facts, release, sharding, precision), by the rules of runs.yaml.
2. `build_strategy`: how the run was split, from stated columns, else the stack's defaults, each noted as an assumption.
3. `Architectures`: the model, from its columns first, then the catalogue entry of its name, then inference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, TypeAlias, get_args

from crosszone.inputs.catalogue import Catalogue, ModelEntry
from crosszone.inputs.catalogue.entries import normalize_name
from crosszone.inputs.model import Model
from crosszone.inputs.parameters import parameters
from crosszone.inputs.shipped import read_shipped
from crosszone.inputs.software import RecomputeModule, Software
from crosszone.inputs.strategy import Communication, Strategy

Row: TypeAlias = Mapping[str, str]
Fact: TypeAlias = bool | int | str

# Columns that rules look at: never the id, nor what was measured.
TEXT_COLUMNS = ("source", "model", "gpu", "precision", "framework", "zero_stage_or_fsdp", "notes")
# Of these, what a user tells of a run of his own.
USER_COLUMNS = ("model", "gpu", "precision", "framework", "zero_stage_or_fsdp")
_PATTERNS = frozenset({*TEXT_COLUMNS, "any", "text"})
_REMEMBERED = 4096
LONGEST_TEXT = 4000  # Characters of a cell that are looked at


class RowError(Exception):
    """A row that cannot be scored: a code and a plain sentence."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


@dataclass(frozen=True, kw_only=True)
class Defaults:
    """What a row of a stack leaves unsaid, and why it may be assumed; the fields are explained in runs.yaml."""

    framework: str
    recompute: str
    zero: int
    precision: str
    overlap: tuple[bool, bool, bool]
    why: str
    micro_batch: int = 1
    micro_batches: str | None = None
    interleave: tuple[int, ...] = (1,)
    interleaved: int | None = None
    sequence_parallel: bool = False
    vocab: int | None = None
    vocab_multiple: int | None = None
    nic_gbps_per_gpu: float | None = None
    gradient_dtype: str | None = None
    slots_when_uneven: bool = False
    balanced_stages: bool = False


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How a published rate of operations is to be read."""

    column: str
    count_masked: bool
    why: str
    count_parameters: bool = False
    """Six operations a parameter and token, and nothing for attention's core."""
    peak_tflops: float | None = None
    """The column is a percentage of this; None: it is TFLOP/s."""


@dataclass(frozen=True, kw_only=True)
class RowText:
    """Everything the text of a row says."""

    stack: str | None
    """Stack that the columns name; None: as a user writes it, who names none."""
    defaults: Defaults
    facts: Mapping[str, Fact]
    architecture: tuple[tuple[str, Any], ...]
    corrected: tuple[str, ...]
    """Columns that are known to be other than stated, with the reason."""
    release: float | None
    zero: int | None
    precision: str | None
    optimizer: str
    rate: Rate | None
    degrees: Mapping[str, Any]
    """Degrees and interleaving that the source states elsewhere, and where."""


def read_row_text(row: Row) -> RowText:
    """What the text columns of a row say."""
    return _read_text_columns(tuple(row.get(column, "")[:LONGEST_TEXT] for column in TEXT_COLUMNS))


def read_user_text(row: Row) -> RowText:
    """What a user of our own would write of the row: its framework as one of ours, sharding and precision. [Q12]"""
    written = {
        **dict.fromkeys(TEXT_COLUMNS, ""),
        **{column: row.get(column, "")[:LONGEST_TEXT] for column in USER_COLUMNS},
    }
    framework = select_own_framework(written["framework"], has_model_parallelism(row))
    stated = _read_text_columns(tuple(written[column] for column in TEXT_COLUMNS))
    # what was measured is read as its source defines it; nothing of it reaches the prediction
    return replace(
        stated,
        stack=None,
        defaults=Defaults(
            framework=framework, recompute="none", zero=0, precision="bf16", overlap=(True, True, False), why="default"
        ),
        facts={fact: value for fact, value in stated.facts.items() if fact == "shard_group"},
        architecture=(),
        corrected=(),
        release=None,
        optimizer="adamw",
        rate=read_row_text(row).rate,
    )


def select_own_framework(text: str, has_model_parallelism: bool) -> str:
    """The framework of ours that a published name stands for; unknown ones: megatron with tp or pp, else fsdp."""
    rule = _find_first_rule("frameworks", {"text": text})
    return str(rule.get("is", "megatron" if has_model_parallelism else "fsdp"))


def has_model_parallelism(row: Row) -> bool:
    """The row has tensor or pipeline parallelism."""
    return any(row.get(axis, "").strip() not in ("", "1", "1.0") for axis in ("tp", "pp"))


@cache
def _load_rules() -> dict[str, Any]:
    """The rules with their patterns compiled."""
    rules: dict[str, Any] = read_shipped("crosszone.calibrate", "runs.yaml").value
    for name, group in rules.items():
        if isinstance(group, list):
            rules[name] = [_compile_rule(rule) for rule in group]
    return rules


def _compile_rule(rule: Any) -> Any:
    if isinstance(rule, str):
        return re.compile(rule, re.IGNORECASE)
    return {key: re.compile(value, re.IGNORECASE) if key in _PATTERNS else value for key, value in rule.items()}


@cache
def _load_defaults(stack: str) -> Defaults:
    fields = dict(_load_rules()["defaults"][stack])
    chunks = fields.get("interleave", 1)
    fields["interleave"] = tuple(chunks) if isinstance(chunks, list) else (chunks,)
    return Defaults(**{**fields, "overlap": tuple(fields["overlap"])})


@lru_cache(maxsize=_REMEMBERED)
def _read_text_columns(texts: tuple[str, ...]) -> RowText:
    row = dict(zip(TEXT_COLUMNS, texts, strict=True))
    stack: str = _find_first_rule("stacks", row)["stack"]
    architecture = [rule for rule in _load_rules()["architecture"] if _is_match(rule, row)]
    rate = _find_first_rule("rates", row)
    return RowText(
        stack=stack,
        defaults=_load_defaults(stack),
        facts=_collect_facts(row),
        architecture=tuple((key, value) for rule in architecture for key, value in rule["set"].items()),
        corrected=tuple(
            f"{key}: {value} ({rule['why']})"
            for rule in architecture
            if "why" in rule
            for key, value in rule["set"].items()
        ),
        release=_parse_release(row["source"]),
        zero=_find_first_rule("sharding", {"text": row["zero_stage_or_fsdp"]}).get("zero"),
        precision=_find_first_rule("precisions", {"text": row["precision"]}).get("is"),
        optimizer=_find_first_rule("optimizers", row)["optimizer"],
        degrees=_find_first_rule("degrees", row),
        rate=Rate(**{key: value for key, value in rate.items() if key not in _PATTERNS}) if rate else None,
    )


def _is_match(rule: Mapping[str, Any], row: Row) -> bool:
    """Every column that the rule names matches (`any`: all of them together)."""
    for key, pattern in rule.items():
        if key in _PATTERNS and not pattern.search(" ".join(row.values()) if key == "any" else row[key]):
            return False
    return True


def _find_first_rule(group: str, row: Row) -> dict[str, Any]:
    return next((rule for rule in _load_rules()[group] if _is_match(rule, row)), {})


def _collect_facts(row: Row) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for rule in _load_rules()["facts"]:
        if rule["fact"] not in facts and _is_match(rule, row):
            facts[rule["fact"]] = _extract_number(rule, row) if rule.get("number") else rule["value"]
    return facts


def _extract_number(rule: Mapping[str, Any], row: Row) -> int:
    """The number that the first group of the rule's pattern holds."""
    column = next(key for key in rule if key in _PATTERNS)
    match = rule[column].search(row[column])
    return int(next(group for group in match.groups() if group)[:9])


def _parse_release(source: str) -> float | None:
    for pattern in _load_rules()["releases"]:
        match = pattern.search(source)
        if match:
            return int(match["year"]) + int(match["month"]) / 12
    return None


AXES = ("tp", "pp", "dp", "cp")
_REMEMBERED_STRATEGIES = 16384
_SPLIT = re.compile(r"layers incl\. embedding/head per stage ([\d/]+)")


@dataclass(frozen=True, kw_only=True)
class StrategyCells:
    """The columns of a row that make its strategy; None: not stated."""

    ep: int | None
    micro_batch: int | None
    interleave: int | None
    sequence_parallel: int | None
    recompute: str
    modules: str
    """Modules recomputed, as the recipe columns name them."""
    tensor_overlap: str
    notes: str
    layout: PipelineLayout | None = None


@dataclass(frozen=True, kw_only=True)
class PipelineLayout:
    """What each virtual stage holds, in pipeline order."""

    layers: tuple[int, ...]
    mtp_layers: int


LONGEST_LAYOUT = 10_000  # Letters of an unrolled layout
_LAYOUT_NOTE = re.compile(r"pipeline layout ([EtmL|*()\d,]+)")
_LAYOUT = re.compile(r"[EtmL|*()\d,\s]+")
_REPEATED = re.compile(r"(?:\(([^()]*)\)|([EtmL|]))\*(\d{1,4})")


def parse_pipeline_layout(text: str) -> PipelineLayout | None:
    """Megatron's layout string: E embedding, t layer, m multi-token prediction, L loss, | between virtual stages.

        parse_pipeline_layout("Et*4|(t*4|)*14tmL")      # 4, fourteen times 4, 1 layers; 1 of multi-token prediction

    `x*3` repeats a letter, `(...)*3` a group. None: no layout, or one that does not hold one E and one L.
    """
    unrolled = re.sub(r"[\s,]", "", text)
    if not unrolled or not _LAYOUT.fullmatch(text):
        return None
    # letters first, then the groups they stand in
    for pattern in (re.compile(r"()([EtmL|])\*(\d{1,4})"), _REPEATED):
        unrolled = pattern.sub(lambda m: (m[1] or m[2])[:LONGEST_LAYOUT] * int(m[3]), unrolled)
        if len(unrolled) > LONGEST_LAYOUT:
            return None
    unrolled = unrolled.replace("(", "").replace(")", "")
    if unrolled.count("E") != 1 or unrolled.count("L") != 1 or not unrolled.startswith("E") or "*" in unrolled:
        return None
    stages = unrolled.split("|")
    return PipelineLayout(layers=tuple(stage.count("t") for stage in stages), mtp_layers=unrolled.count("m"))


def read_layout(row: Row) -> PipelineLayout | None:
    """The pipeline layout of a row: in its column, else in its notes."""
    note = _LAYOUT_NOTE.search(row.get("notes", "")[:LONGEST_TEXT])
    return parse_pipeline_layout((row.get("pipeline_layout") or (note[1] if note else ""))[:LONGEST_TEXT])


@dataclass
class Assumptions:
    """What was assumed, and whether any of it decides the time."""

    statements: list[str] = field(default_factory=list)
    decisive: bool = False

    def add(self, what: str, value: object, why: str = "stack default", *, decisive: bool = False) -> None:
        """Note one more."""
        self.statements.append(f"{what}: {value} ({why})")
        self.decisive |= decisive


def complete_degrees(
    stated: Mapping[str, int | None],
    gpus: int,
    assumed: Assumptions,
    published: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """All of tp, pp, dp and cp, from those stated and t p c d = G. [R1]

    `published`: degrees that a source states elsewhere than in the row, and where (`why`).
    """
    degrees_by_axis = {axis: value for axis, value in stated.items() if value is not None}
    for axis in AXES:
        if published and axis in published and axis not in degrees_by_axis:
            degrees_by_axis[axis] = published[axis]
            assumed.add(axis, published[axis], published["why"])
    if "cp" not in degrees_by_axis:
        degrees_by_axis["cp"] = 1
        assumed.add("cp", 1, "not stated")
    missing = [axis for axis in ("tp", "pp", "dp") if axis not in degrees_by_axis]
    remaining, remainder = divmod(gpus, math.prod(degrees_by_axis.values()))
    if remainder or (not missing and remaining != 1):
        stated_degrees = " x ".join(f"{axis} {degrees_by_axis[axis]}" for axis in AXES if axis in degrees_by_axis)
        raise RowError("degrees_clash", f"The degrees do not multiply to the {gpus} GPUs: {stated_degrees}.")
    if len(missing) > 1 and remaining != 1:
        raise RowError("no_degrees", f"The parallel degrees are not stated: {', '.join(missing)} missing.")
    for axis in missing:
        degrees_by_axis[axis] = remaining
        assumed.add(axis, remaining, "from the number of GPUs", decisive=gpus > 1)
    return degrees_by_axis


def build_user_strategy(row: StrategyCells, text: RowText, axes: Mapping[str, int], batch: int) -> Strategy:
    """What a user would write: what is stated; the rest follows from framework and release."""
    shard_ranks = text.facts.get("shard_group")
    stated: dict[str, Any] = {**axes, "ep": row.ep, "micro_batch": row.micro_batch}
    stated |= {"interleave": row.interleave if axes["pp"] > 1 else None, "zero": text.zero}
    if row.sequence_parallel is not None:
        stated["sequence_parallel"] = bool(row.sequence_parallel) and axes["tp"] > 1
    if row.recompute.lower() in ("none", "selective", "full"):
        stated["recompute"] = row.recompute.lower()
    if isinstance(shard_ranks, int) and shard_ranks < axes["dp"]:
        stated["shard_ranks"] = shard_ranks
    if (row.micro_batch or 1) * axes["dp"] > batch:
        raise RowError(
            "batch_clash", f"The batch of {batch} is less than micro-batch {row.micro_batch} x dp {axes['dp']}."
        )
    return _build_cached_strategy(**{name: value for name, value in stated.items() if value is not None})


# Launches by the first word of a cell of cuda_graph.
LAUNCHES = {"none": "eager", "partial": "partial-graph", "full": "full-graph"}


def build_software(row: Row, facts: Mapping[str, Fact]) -> Software | None:
    """Switches that the optional recipe columns and the notes state."""
    stated: dict[str, Any] = {}
    graph = row.get("cuda_graph", "").split(" ")[0].lower()
    if graph in LAUNCHES:
        stated["launch"] = LAUNCHES[graph]
    if row.get("moe_dispatcher", "").lower() in ("alltoall", "deepep", "hybridep"):
        stated["dispatcher"] = row["moe_dispatcher"].lower()
    elif facts.get("dispatcher"):
        stated["dispatcher"] = facts["dispatcher"]
    if row.get("moe_overlap", "") in ("0", "1"):
        stated["expert_overlap"] = row["moe_overlap"] == "1"
    modules = tuple(name for name in row.get("recompute_modules", "").split() if name in MODULES)
    if modules:
        stated["recompute_modules"] = modules
    if "fp8" in row.get("attention_precision", "").lower():
        stated["attention_precision"] = "fp8"
    if facts.get("cp_all_to_all"):
        stated["context_exchange"] = "all-to-all"
    return _build_cached_software(**stated) if stated else None


MODULES = get_args(RecomputeModule)


@cache
def _build_cached_software(**fields: Any) -> Software:
    return Software(**fields)


def build_strategy(
    row: StrategyCells,
    text: RowText,
    axes: Mapping[str, int],
    batch: int,
    model: Model,
    per_node: int,
    assumed: Assumptions,
) -> Strategy:
    """The strategy of a row; `per_node` GPUs make a node."""
    layers = model.layers
    defaults, tp, pp, dp = text.defaults, axes["tp"], axes["pp"], axes["dp"]
    stated = row.layout.layers if row.layout and pp > 1 else None
    interleave = row.interleave
    if interleave is None and pp > 1 and "interleave" in text.degrees:
        interleave = int(text.degrees["interleave"])
        assumed.add("interleave", interleave, text.degrees["why"])
    interleave = interleave or _select_interleave(row, text, pp, layers, assumed)
    if stated is not None and row.interleave is None and len(stated) % pp == 0:
        interleave = len(stated) // pp
    if stated is not None and (len(stated) != pp * interleave or sum(stated) != layers):
        # a recipe's layout for other degrees than those of the row
        assumed.add("layers_per_stage", "dealt out evenly", f"the layout has {len(stated)} virtual stages")
        stated = None
    micro_batch = row.micro_batch
    if micro_batch is None:
        local = max(1, batch // dp)
        micro_batch = max(1, local // pp) if defaults.micro_batches == "stages" else min(defaults.micro_batch, local)
        assumed.add("micro_batch", micro_batch, decisive=True)
    if micro_batch * dp > batch:
        raise RowError("batch_clash", f"The batch of {batch} is less than micro-batch {micro_batch} x dp {dp}.")
    recompute = row.recompute.lower()
    if recompute not in ("none", "selective", "full"):
        recompute = "selective" if row.modules else defaults.recompute
        if not row.modules:
            assumed.add("recompute", recompute, decisive=True)
    zero = text.zero
    if zero is None:
        zero = defaults.zero
        assumed.add("zero", zero)
    split_sequence = bool(row.sequence_parallel) and tp > 1
    if row.sequence_parallel is None and tp > 1:
        split_sequence = defaults.sequence_parallel
        assumed.add("sequence_parallel", "on" if split_sequence else "off")
    group = text.facts.get("shard_group")
    shard_ranks = group if isinstance(group, int) and group < dp else None
    in_node = shard_ranks is not None and shard_ranks * tp == per_node
    cut_experts = text.facts.get("expert_tp")
    gradients, weights, tensor = defaults.overlap
    fp32 = text.facts.get("fp32_gradients") or text.facts.get("fp32_reductions")
    communication = _build_communication(
        gradient_dtype="fp32" if fp32 else defaults.gradient_dtype,
        # what a stack overlaps by default, as far as the run has it: frameworks refuse the switch without it
        overlap_gradients=gradients,
        overlap_parameters=weights and zero > 0,
        overlap_tensor=(row.tensor_overlap == "1" if row.tensor_overlap else tensor or bool(text.facts.get("async_tp")))
        and split_sequence,
    )
    return _build_cached_strategy(
        tp=tp,
        pp=pp,
        dp=dp,
        cp=axes["cp"],
        ep=row.ep or 1,
        micro_batch=micro_batch,
        interleave=interleave,
        sequence_parallel=split_sequence,
        recompute=recompute,
        zero=zero,
        layers_per_stage=stated or split_stage_layers(model, pp, interleave, row.notes, text),
        shard_within="node" if in_node else "all",
        shard_ranks=None if in_node else shard_ranks,
        expert_tp=cut_experts if isinstance(cut_experts, int) else None,
        communication=communication,
    )


@lru_cache(maxsize=_REMEMBERED_STRATEGIES)
def _build_cached_strategy(**fields: Any) -> Strategy:
    return Strategy(**fields)


@cache
def _build_communication(**fields: Any) -> Communication:
    return Communication(**fields)


def split_stage_layers(model: Model, stages: int, interleave: int, notes: str, text: RowText) -> tuple[int, ...] | None:
    """Layers of each stage and chunk in pipeline order, where the split is known to be other than even.

    A split "incl. embedding/head" counts the embedding as a layer of the first stage and the head as one of the last.
    Where the two take slots of their own, L + 2 slots are dealt out evenly.
    """
    layers, chunks = model.layers, stages * interleave
    if chunks > 1 and text.defaults.balanced_stages:
        return balance_stage_layers(model, chunks)
    if chunks == 1 or chunks > layers + 2:
        return None
    match = _SPLIT.search(notes)
    if match:
        slots = [int(part[:9]) for part in match[1].split("/") if part]
        if len(slots) != chunks or sum(slots) != layers + 2:
            return None
    elif text.facts.get("embedding_slots") or _has_uneven_slots(layers, chunks, text):
        slots_each, extra_slots = divmod(layers + 2, chunks)
        slots = [slots_each + (index < extra_slots) for index in range(chunks)]
    else:
        return None
    if chunks < 2 or not (slots[0] and slots[-1]):
        return None
    slots[0] -= 1
    slots[-1] -= 1
    return tuple(slots)


def balance_stage_layers(model: Model, stages: int) -> tuple[int, ...]:
    """Layers of each stage as nanotron deals them out: by the weights of their matmuls, the head's included.

    A stage ends with the layer whose cumulative cost passes its share, so that later stages may have none.
    """
    layer_cost = 4 * model.hidden**2 + (3 if model.gated else 2) * model.hidden * model.ffn_hidden
    total = model.layers * layer_cost + model.vocab * model.hidden
    counts = [0] * stages
    stage = 0
    for layer in range(1, model.layers + 1):
        counts[stage] += 1
        if layer * layer_cost > total * ((stage + 1) / stages):
            stage = min(stage + 1, stages - 1)
    return tuple(counts)


def _has_uneven_slots(layers: int, chunks: int, text: RowText) -> bool:
    return text.defaults.slots_when_uneven and layers % chunks != 0 and (layers + 2) % chunks == 0


def _select_interleave(row: StrategyCells, text: RowText, pp: int, layers: int, assumed: Assumptions) -> int:
    if pp == 1:
        return 1
    defaults = text.defaults
    value = next((chunks for chunks in defaults.interleave if layers % (pp * chunks) == 0), 1)
    if defaults.interleaved and "interleaved" in row.notes.lower():
        value = defaults.interleaved
    assumed.add("interleave", value, decisive=True)
    return value


SHAPE_COLUMNS = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab")
EXPERT_COLUMNS = ("n_experts", "top_k")
# What makes an architecture; key/value heads are as many as heads where they are not stated.
NEEDED_SHAPE = ("layers", "hidden", "heads", "ffn_hidden", "vocab")

GPT_STYLE: Mapping[str, Any] = {
    "activation": "gelu",
    "positions": "learned",
    "norm": "layernorm",
    "bias": ("qkv", "out", "mlp"),
}
LLAMA_STYLE: Mapping[str, Any] = {"activation": "swiglu", "positions": "rotary", "norm": "rmsnorm", "bias": ()}
STYLES = tuple({**style, "tied_embeddings": tied} for style in (GPT_STYLE, LLAMA_STYLE) for tied in (True, False))


class Architectures:
    """Models of rows; equal columns are built once."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.build = lru_cache(maxsize=_REMEMBERED)(self._build)

    def _build(
        self,
        name: str,
        columns: tuple[int | None, ...],
        params_b: float | None,
        seq_len: int,
        text: tuple[tuple[str, Any], ...],
        vocab_multiple: int | None,
        vocab_default: int | None,
    ) -> tuple[Model, tuple[str, ...]]:
        """The model, and what was assumed of it.

        columns:        SHAPE_COLUMNS and EXPERT_COLUMNS, None where empty
        text:           fields that the notes state; those that are columns too correct the column
        vocab_multiple: the embedding table is padded to a multiple of this
        """
        row_fields = {
            key: value
            for key, value in zip((*SHAPE_COLUMNS, *EXPERT_COLUMNS), columns, strict=True)
            if value is not None
        }
        row_fields |= {key: value for key, value in text if key in row_fields}
        text_fields = {key: value for key, value in text if key not in (*SHAPE_COLUMNS, *EXPERT_COLUMNS)}
        first_dense = text_fields.pop("first_dense", None)
        assumed: list[str] = []
        if "vocab" not in row_fields and vocab_default:
            row_fields["vocab"] = vocab_default
            assumed.append(f"vocab: {vocab_default} (stack default)")
        base = self._find_entry(name)
        if base:
            fields = _overlay_entry(base, row_fields, params_b, seq_len, text_fields, assumed)
        else:
            fields = _infer_fields(row_fields, params_b, text_fields, seq_len, assumed)
        if first_dense is not None and fields.get("moe"):
            fields["moe"] = {**fields["moe"], "first_dense": first_dense}
        return _build_model(fields, name, seq_len, vocab_multiple), tuple(assumed)

    def _find_entry(self, name: str) -> Model | None:
        entry = self._catalogue.find("models", name) if name else None
        if isinstance(entry, ModelEntry):
            return entry.model
        reason = self._catalogue.unsupported.get(normalize_name(name))
        if reason:
            raise RowError("no_architecture", f"The architecture of {name} is not known or not a transformer. {reason}")
        return None


def _overlay_entry(
    base: Model,
    row_fields: dict[str, int],
    params_b: float | None,
    seq_len: int,
    text_fields: dict[str, Any],
    assumed: list[str],
) -> dict[str, Any]:
    """The fields of a catalogue entry with the row's columns on top."""
    missing = [key for key in NEEDED_SHAPE if key not in row_fields]
    differing = [
        key for key in ("layers", "hidden", "heads") if row_fields.get(key, getattr(base, key)) != getattr(base, key)
    ]
    if differing and set(missing) - {"vocab", "ffn_hidden"}:
        key = differing[0]
        clash = f"{key} is {row_fields[key]}, of the catalogue's {base.name} {getattr(base, key)}"
        raise RowError("no_architecture", f"The architecture is not known: {', '.join(missing)} missing, and {clash}.")
    if missing:
        assumed.append(f"{', '.join(missing)}: as {base.name} of the catalogue")
    if differing and base.pattern is not None:
        key = differing[0]
        clash = f"{key} is {row_fields[key]}, of the catalogue's {base.name} {getattr(base, key)}"
        raise RowError("no_architecture", f"The blocks of the hybrid are not known: {clash}.")
    fields = {key: getattr(base, key) for key in base.model_fields_set if key != "name"}
    if "layers" in differing:  # some layers of a model, to measure layers: without what follows the last one
        fields.pop("mtp_layers", None)
    if "hidden" in differing or "heads" in differing:  # another model of the same name
        fields.pop("head_dim", None)
        fields.pop("window", None)
        if "kv_heads" not in row_fields and base.kv_heads == base.heads:
            fields.pop("kv_heads", None)
    if "hidden" in differing:
        fields.pop("embedding_width", None)
    if "vocab" in row_fields:
        fields.pop("vocab_padded_to", None)
    fields |= {key: row_fields[key] for key in SHAPE_COLUMNS if key in row_fields and key != "ffn_hidden"}
    if base.moe or "n_experts" in row_fields:
        moe: dict[str, Any] = base.moe.to_plain() if base.moe else {"ffn_hidden": base.ffn_hidden}
        columns = {"experts": "n_experts", "top_k": "top_k", "ffn_hidden": "ffn_hidden"}
        moe |= {key: row_fields[column] for key, column in columns.items() if column in row_fields}
        fields["moe"] = moe | {"first_dense": min(moe.get("first_dense", 0), fields["layers"] - 1)}
    else:
        fields["ffn_hidden"] = row_fields.get("ffn_hidden", base.ffn_hidden)
    fields |= text_fields
    if not params_b:
        return fields
    choices = [fields]
    if fields.get("embedding_width", fields["hidden"]) != fields["hidden"]:  # other frameworks may not project
        choices.append({key: value for key, value in fields.items() if key != "embedding_width"})
    if differing and "tied_embeddings" not in text_fields:
        choices.append({**fields, "tied_embeddings": not base.tied_embeddings})
    return _select_nearest(choices, params_b, seq_len)


def _infer_fields(
    row_fields: dict[str, int], params_b: float | None, text_fields: dict[str, Any], seq_len: int, assumed: list[str]
) -> dict[str, Any]:
    """Fields of a model no catalogue knows: the MLP and tying whose parameter count is nearest to the stated one."""
    missing = [key for key in NEEDED_SHAPE if key not in row_fields]
    if missing == ["ffn_hidden"] and "n_experts" not in row_fields:
        row_fields["ffn_hidden"] = 4 * row_fields["hidden"]
        assumed.append("ffn_hidden: 4 x hidden")
    elif missing:
        raise RowError("no_architecture", f"The architecture is not known: {', '.join(missing)} missing.")
    fields: dict[str, Any] = {key: row_fields[key] for key in SHAPE_COLUMNS if key in row_fields}
    has_experts = "n_experts" in row_fields
    if has_experts:
        if "top_k" not in row_fields:
            raise RowError("no_architecture", "The architecture is not known: top_k missing.")
        fields["moe"] = {
            "experts": row_fields["n_experts"],
            "top_k": row_fields["top_k"],
            "ffn_hidden": row_fields["ffn_hidden"],
        }
    if params_b:
        chosen = _select_nearest([{**fields, **style, **text_fields} for style in STYLES], params_b, seq_len)
    else:
        is_gpt_style = row_fields["ffn_hidden"] == 4 * row_fields["hidden"] and not has_experts
        chosen = {
            **fields,
            **(GPT_STYLE if is_gpt_style else LLAMA_STYLE),
            "tied_embeddings": is_gpt_style,
            **text_fields,
        }
    kind = "gated" if chosen["activation"] == "swiglu" else "two-matrix"
    tie = "tied" if chosen["tied_embeddings"] else "untied"
    assumed.append(f"MLP: {kind}, embeddings: {tie} ({'nearest to params_b' if params_b else 'by the shape'})")
    return chosen


def _select_nearest(choices: list[dict[str, Any]], params_b: float, seq_len: int) -> dict[str, Any]:
    """The fields whose parameter count is nearest to `params_b` (1e9)."""

    def measure_error(fields: dict[str, Any]) -> float:
        return abs(parameters(_build_model(fields, "", seq_len, None)).total / 1e9 - params_b)

    return min(choices, key=measure_error)


def _build_model(fields: dict[str, Any], name: str, seq_len: int, vocab_multiple: int | None) -> Model:
    if fields.get("positions") == "learned":
        fields = {**fields, "max_seq_len": seq_len}  # published runs size the table by their sequence
    if "head_dim" not in fields and not fields.get("mla") and fields["hidden"] % fields["heads"]:
        fields = {**fields, "head_dim": max(1, round(fields["hidden"] / fields["heads"]))}
    if vocab_multiple:
        padded = -(-fields["vocab"] // vocab_multiple) * vocab_multiple
        fields = {**fields, "vocab_padded_to": padded if padded > fields["vocab"] else None}
    printable = "".join(c for c in name if c.isprintable())[:100].strip()
    return Model(**{**fields, "name": printable or "custom"})
