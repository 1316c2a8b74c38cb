"""Megatron-LM: torchrun starts its own pretrain_gpt.py through a hook that measures; flags stand in `megatron.args`.

MEGATRON_PATH names a checkout of NVIDIA/Megatron-LM on the nodes. Every flag is in `megatron_flags.yaml`, the list of
all flags of its parser at one commit, which scripts/megatron_flags.py makes.

Names, meanings and conditions were read in Megatron-LM d98e8a64:
- strategy: megatron/training/arguments.py (validate_args) and initialize.py, megatron/core/parallel_state.py,
  pipeline_parallel/schedules.py, transformer/moe and optimizer;
- architecture: arguments.py, megatron/core/transformer/transformer_config.py, gpt_builders.py,
  megatron/core/models/gpt/gpt_layer_specs.py, megatron/core/transformer/moe;
- layout of stages: megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from crosszone.deploy.bundle import Option, build_option
from crosszone.deploy.launch import Agent, Launch, build_refusal, build_torchrun
from crosszone.deploy.shell import Raw, format_comment, quote_word
from crosszone.deploy.trainer.tiny import scale_to_tiny
from crosszone.deploy.trainer_files import build_trainer_settings, read_trainer_file
from crosszone.errors import IllegalError, Notice
from crosszone.inputs.job import state_bytes
from crosszone.inputs.model import Model
from crosszone.inputs.strategy import AXES, Strategy
from crosszone.predict.batch import get_bucket_bytes
from crosszone.schedule.orders import choose_group_size
from crosszone.text import label

# The flags, and those of the same kind of run shrunk to seconds (`--tiny`).
ARGUMENTS, TINY_ARGUMENTS = "megatron.args", "megatron-tiny.args"
HOOK, METRICS_FILE, DATA = "megatron_hook.py", "metrics_file.py", "megatron_data.py"
DATA_PREFIX = "megatron-data/tokens"  # Where megatron_data.py leaves tokens as Megatron reads them
CHECKPOINTS = "out/checkpoints"
TINY_STEPS = 5
PROGRAM = Raw('"${MEGATRON_PATH:?set MEGATRON_PATH to a checkout of NVIDIA/Megatron-LM}/pretrain_gpt.py"')
# Flags of each precision; weights stay bf16 and are cast in each step, as the plan counts them.
PRECISIONS: dict[str, tuple[tuple[str, Any], ...]] = {
    "fp32": (),
    "bf16": (("--bf16", True),),
    "fp16": (("--fp16", True),),
    "fp8": (("--bf16", True), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    "mxfp8": (("--bf16", True), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--bf16", True), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
# Megatron's adam has decoupled weight decay, so it is AdamW.
OPTIMIZERS = {"adamw": "adam", "adam": "adam", "sgd": "sgd", "sgd-momentum": "sgd", "lion": "lion", "muon": "muon"}
# Work queues of a GPU: one keeps communication in the order it was launched; CUDA's own number.
ONE_CONNECTION, USUAL_CONNECTIONS = 1, 8

Flag = tuple[str, Any, str, dict[str, Any]]
"""Name, value, key of the sentence that explains it, and that sentence's parameters."""


@dataclass(frozen=True, kw_only=True)
class RunShape:
    """What differs between the planned run and a tiny one."""

    model: Model
    seq_len: int
    global_batch: int
    micro_batch: int
    micro_batches: int
    layers: tuple[int, ...]
    """Of each chunk, in pipeline order."""
    steps: int
    training: dict[str, Any]

    @classmethod
    def from_settings(cls, settings: dict[str, Any], steps: int) -> RunShape:
        """The shape that a settings.json has."""
        job, strategy = settings["job"], settings["strategy"]
        return cls(
            model=Model(**settings["model"]),
            seq_len=job["seq_len"],
            global_batch=job["global_batch"],
            micro_batch=strategy["micro_batch"],
            micro_batches=strategy["micro_batches"],
            layers=tuple(strategy["chunk_layers"]),
            steps=steps,
            training=settings["training"],
        )


def build_options(launch: Launch) -> tuple[Option, ...]:
    """Everything pretrain_gpt.py is told, and how GPUs queue work."""
    sections = _list_sections(launch, RunShape.from_settings(build_trainer_settings(launch), launch.steps))
    return (*(option for _, options_of_section in sections for option in options_of_section), *_list_variables(launch))


def build_files(launch: Launch) -> dict[str, str]:
    """The flags, the hook that starts and measures pretrain_gpt.py, and what prepares its data."""
    settings = build_trainer_settings(launch)
    # first: it refuses models that have no tiny one either
    planned = _list_sections(launch, RunShape.from_settings(settings, launch.steps))
    tiny_shape = RunShape.from_settings(scale_to_tiny(settings), TINY_STEPS)
    texts = {
        ARGUMENTS: _render_arguments(launch, planned),
        TINY_ARGUMENTS: _render_arguments(launch, _list_sections(launch, tiny_shape)),
        HOOK: read_trainer_file(HOOK),
        METRICS_FILE: read_trainer_file(METRICS_FILE),
    }
    return texts | ({DATA: read_trainer_file(DATA)} if launch.settings.data is not None else {})


def build_command(launch: Launch, agent: Agent) -> tuple[str | Raw, ...] | None:
    """One torchrun."""
    return build_torchrun(launch, agent, HOOK, PROGRAM)


def _list_sections(launch: Launch, shape: RunShape) -> list[tuple[str, tuple[Option, ...]]]:
    """Flags under the title they stand together."""
    if launch.settings.init_from is not None:
        raise build_refusal("megatron_init_from", "init_from", launch.settings.init_from)
    s = launch.predictor.strategy
    require_parallel(launch)
    require_gpt(shape.model, tp=s.tp, ep=s.ep)
    sections: dict[str, Iterable[Flag]] = {
        "model": _list_model_flags(shape.model, shape.seq_len, s.tp),
        "data": _list_data_flags(launch, shape),
        "batch": _list_batch_flags(launch, shape),
        "parallel": _list_degree_flags(launch, shape.layers, shape.micro_batches),
        "communication": chain(_list_sharding_flags(launch), _list_overlap_flags(launch), _list_gradient_flags(launch)),
        "memory": _list_memory_flags(s),
        "run": _list_run_flags(launch, shape),
    }
    return [
        (
            title,
            tuple(
                build_option("flag", name, value, launch.language, key=f"megatron_{key}", **params)
                for name, value, key, params in flags
            ),
        )
        for title, flags in sections.items()
    ]


def _list_data_flags(launch: Launch, shape: RunShape) -> Iterator[Flag]:
    yield "--seq-length", shape.seq_len, "seq_length", {}
    yield "--tokenizer-type", "NullTokenizer", "tokenizer", {}
    if launch.settings.data is None:
        yield "--mock-data", True, "mock_data", {}
    else:
        yield "--data-path", [DATA_PREFIX], "data_path", {"path": launch.settings.data, "script": DATA}
        yield "--split", "100,0,0", "split", {}
    yield "--no-create-attention-mask-in-dataloader", True, "no_mask", {}


def _list_batch_flags(launch: Launch, shape: RunShape) -> Iterator[Flag]:
    job, training = launch.scenario.job, shape.training
    dp = launch.predictor.strategy.dp or 1
    params = {"m": shape.micro_batches, "dp": dp, "batch": shape.global_batch, "micro": shape.micro_batch}
    yield "--global-batch-size", shape.global_batch, "global_batch", params
    yield "--micro-batch-size", shape.micro_batch, "micro_batch", params
    recipe = {"--fp8-recipe": job.fp8_recipe} if job.fp8_recipe else {}
    for name, value in PRECISIONS[job.precision]:
        yield name, recipe.get(name, value), "precision", {"precision": job.precision}
    yield "--optimizer", OPTIMIZERS[job.optimizer], "optimizer", {"optimizer": job.optimizer}
    if job.optimizer in ("adamw", "adam"):
        yield "--adam-beta1", training["beta1"], "training", {}
        yield "--adam-beta2", training["beta2"], "training", {}
        yield "--adam-eps", training["eps"], "training", {}
    elif job.optimizer in ("sgd", "sgd-momentum"):
        yield "--sgd-momentum", 0.9 if job.optimizer == "sgd-momentum" else 0.0, "training", {}
    yield "--weight-decay", training["weight_decay"], "training", {}
    yield "--clip-grad", training["clip"], "training", {}
    yield "--lr", training["lr"], "training", {}
    yield "--min-lr", min(training["min_lr"], training["lr"]), "training", {}
    yield "--lr-decay-style", "cosine", "training", {}
    yield "--lr-decay-iters", shape.steps, "training", {}
    yield "--lr-warmup-iters", min(training["warmup_steps"], shape.steps // 10), "training", {}


def _list_run_flags(launch: Launch, shape: RunShape) -> Iterator[Flag]:
    yield "--train-iters", shape.steps, "train_iters", {}
    yield "--eval-iters", 0, "no_eval", {}
    yield "--eval-interval", shape.steps, "no_eval", {}  # counted with even where no step of it is run
    yield "--seed", shape.training["seed"], "training", {}
    yield "--save", CHECKPOINTS, "checkpoints", {}
    yield "--load", CHECKPOINTS, "resume", {}
    yield "--save-interval", shape.training["checkpoint_every"], "save_interval", {}
    if get_zero_stage(launch) in FSDP_STRATEGIES:
        yield "--ckpt-format", "fsdp_dtensor", "fsdp_checkpoints", {}
    yield "--log-interval", 1, "log", {}
    yield "--log-throughput", True, "log", {}


def _list_variables(launch: Launch) -> Iterator[Option]:
    """CUDA_DEVICE_MAX_CONNECTIONS: validate_args asks for 1 with tp or cp before Blackwell, never with its FSDP."""
    s = launch.predictor.strategy
    has_older_gpus = any(group.gpu.architecture != "blackwell" for _, group in launch.scenario.cluster.zone_groups)
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    if get_zero_stage(launch) in FSDP_STRATEGIES:
        yield build_option("variable", name, USUAL_CONNECTIONS, launch.language, key="megatron_connections_fsdp")
    elif (s.tp > 1 or s.cp > 1) and has_older_gpus:
        yield build_option("variable", name, ONE_CONNECTION, launch.language, key="megatron_connections")


def _render_arguments(launch: Launch, sections: Sequence[tuple[str, tuple[Option, ...]]]) -> str:
    """One flag a line as a shell would read it, its reason above it; equal reasons are said once."""
    lines = [format_comment(label("megatron_arguments", launch.language))]
    for title, options in sections:
        lines += ["", format_comment(label(f"megatron_section_{title}", launch.language), mark="## ")]
        previous_reason = ""
        for option in options:
            if option.why != previous_reason:
                lines.append(format_comment(option.why))
            previous_reason = option.why
            lines.append(format_flag(option))
    return "\n".join(lines) + "\n"


def format_flag(option: Option) -> str:
    """A flag with its value as a shell would read it."""
    values = [] if option.value is True else option.value if isinstance(option.value, list | tuple) else [option.value]
    return " ".join([option.name, *map(quote_word, values)])


# ---- layers of each stage ----

LAYOUT_FLAG = "--pipeline-model-parallel-layout"


def format_layout(layers: Sequence[int], mtp_layers: int = 0) -> str:
    """The layout of chunks that hold so many layers each; equal neighbours are written once.

        format_layout([3, 2, 2, 1])      # "Et*3|(t*2|)*2,tL"
        format_layout([0, 1, 1, 0])      # "E|(t|)*2,L": embedding and loss account for a layer each

    E is the embedding, t a layer, m one of multi-token prediction, L the loss; stages are split by |, in pipeline order
    (with interleaving the first chunk of every stage comes first). `x*3` repeats a letter and `(...)*3` a group; commas
    mean nothing.
    """
    if len(layers) == 1:
        return f"E{_format_run(layers[0])}{'m' * mtp_layers}L"
    inner = [(count, len(list(same))) for count, same in groupby(layers[1:-1])]
    parts = [f"E{_format_run(layers[0])}|"]
    for count, times in inner:
        parts.append(f"({_format_run(count)}|)*{times}" if times > 1 else f"{_format_run(count)}|")
    text = "".join(part if part.endswith("|") else f"{part}," for part in parts)
    return f"{text}{_format_run(layers[-1])}{'m' * mtp_layers}L"


def _format_run(count: int) -> str:
    return "t" * count if count < 2 else f"t*{count}"


# ---- architecture: what has no flag of Megatron's GPT model is refused ----

NORMS = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}
POSITIONS = {"rotary": "rope", "learned": "learned_absolute", "none": "none"}
# gelu is what it takes when nothing is said. --quick-geglu is a sigmoid in place of GELU, so no geglu.
ACTIVATIONS = {"gelu": None, "swiglu": "--swiglu", "squared-relu": "--squared-relu"}
EPSILON = {"rmsnorm": 1e-5, "layernorm": 1e-5}
# Linear layers that can have a bias together.
BIAS_LAYERS = {(): "none", ("qkv",): "qkv", ("mlp", "out", "qkv"): "all"}
VOCAB_MULTIPLE = 128
AUX_LOSS_WEIGHT = 0.01  # Weight of the router's balancing loss that Megatron's help recommends to begin with


def require_gpt(model: Model, *, tp: int, ep: int) -> None:
    """Refuse what Megatron's GPT model has no flag for, all of it at once."""
    broken = [
        Notice(code=code, field=f"model.{field}", value=value, params={"model": model.name, **params})
        for code, field, value, params in _list_unsupported(model, tp, ep)
    ]
    if broken:
        raise IllegalError(*broken)


def _list_unsupported(m: Model, tp: int, ep: int) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    lacks = "megatron_lacks"
    if m.kind == "encoder":
        yield "megatron_encoder", "kind", m.kind, {}
        return
    for field, supported in (("activation", ACTIVATIONS), ("positions", POSITIONS), ("norm", NORMS)):
        if getattr(m, field) not in supported:
            yield lacks, field, getattr(m, field), {"allowed": list(supported)}
    for field, required in (
        ("norms_per_layer", 2),
        ("final_norm", True),
        ("embedding_norm", False),
        ("embedding_width", m.hidden),
        ("parallel_residual", False),
        ("token_types", 0),
        ("pooler", False),
        ("mlm_head", False),
    ):
        if getattr(m, field) != required:
            yield lacks, field, getattr(m, field), {"allowed": [required]}
    if m.pattern is not None:
        yield "bundle_hybrid", "pattern", m.name, {}
    if m.qk_norm == "full":
        yield lacks, "qk_norm", m.qk_norm, {"allowed": ["none", "head"]}
    if _get_bias_layers(m) is None:
        yield "megatron_bias", "bias", list(m.bias), {}
    elif m.moe and _get_bias_layers(m) == "all" and ep == 1 and tp > 1:  # "Bias in Moe is only supported when ETP==1"
        yield "megatron_expert_bias", "bias", list(m.bias), {"tp": tp}
    if m.attention_sinks and m.mla:
        yield lacks, "attention_sinks", True, {"allowed": [False]}
    if m.vocab_padded_to is not None and m.vocab_padded_to % tp:
        yield "megatron_vocabulary", "vocab_padded_to", m.vocab_padded_to, {"tp": tp}


def _get_bias_layers(m: Model) -> str | None:
    """Which linear layers have a bias: none, qkv, all or router; None where Megatron has no flags for them.

    With all of them the router has one too; on its own the router's is the correction that balances experts
    without a loss (DeepSeek-V3), which goes with sigmoid scores.
    """
    kinds = set(m.bias)
    if m.moe and kinds == {"router"}:
        return "router"
    if m.moe and kinds == {"qkv", "out", "mlp"}:
        return None
    return BIAS_LAYERS.get(tuple(sorted(kinds - {"router"} if m.moe and kinds >= {"qkv", "out", "mlp"} else kinds)))


def _list_model_flags(m: Model, seq_len: int, tp: int) -> Iterator[Flag]:

    def describe_field(name: str, value: Any, field: str) -> Flag:
        return name, value, "model", {"field": f"model.{field}"}

    yield describe_field("--num-layers", m.layers, "layers")
    if m.mtp_layers:
        yield describe_field("--mtp-num-layers", m.mtp_layers, "mtp_layers")
    if m.mtp_layers and m.mtp_shared:
        yield describe_field("--mtp-use-repeated-layer", True, "mtp_shared")
    yield describe_field("--hidden-size", m.hidden, "hidden")
    yield describe_field("--ffn-hidden-size", m.ffn_hidden, "ffn_hidden")
    yield describe_field("--num-attention-heads", m.heads, "heads")
    yield describe_field("--kv-channels", m.v_head_dim, "mla.v_head_dim" if m.mla else "head_dim")
    if m.kv_heads != m.heads and not m.mla:
        yield describe_field("--group-query-attention", True, "kv_heads")
        yield describe_field("--num-query-groups", m.kv_heads, "kv_heads")
    activation = ACTIVATIONS[m.activation]
    if activation is not None:
        yield describe_field(activation, True, "activation")
    biases = _get_bias_layers(m)
    if m.activation == "squared-relu" and biases == "all":
        yield "--no-bias-gelu-fusion", True, "no_gelu_fusion", {}
    yield describe_field("--normalization", NORMS[m.norm], "norm")
    yield "--norm-epsilon", EPSILON[m.norm], "norm_epsilon", {}
    if m.qk_norm == "head" or m.mla:  # of latent attention: the norms between its two projections
        yield describe_field("--qk-layernorm", True, "mla" if m.mla else "qk_norm")
    if biases != "all":
        yield describe_field("--disable-bias-linear", True, "bias")
    if biases == "qkv":
        yield describe_field("--add-qkv-bias", True, "bias")
    yield describe_field("--position-embedding-type", POSITIONS[m.positions], "positions")
    rows = m.max_seq_len if m.positions == "learned" and m.max_seq_len else seq_len
    yield "--max-position-embeddings", max(rows, seq_len), "max_positions", {}
    if not m.tied_embeddings:
        yield describe_field("--untie-embeddings-and-output-weights", True, "tied_embeddings")
    if m.attention_sinks:
        yield describe_field("--softmax-type", "learnable", "attention_sinks")
    if m.window is not None:
        yield "--window-size", f"{m.window.tokens - 1},0", "window", {"tokens": m.window.tokens}
        if m.window.full_every is not None:
            yield describe_field("--window-attn-skip-freq", m.window.full_every, "window.full_every")
    yield "--attention-dropout", 0.0, "no_dropout", {}
    yield "--hidden-dropout", 0.0, "no_dropout", {}
    yield describe_field("--vocab-size", m.vocab, "vocab")
    if m.vocab_padded_to is not None:
        yield describe_field("--padded-vocab-size", m.vocab_padded_to, "vocab_padded_to")
    else:
        padded = -(-m.vocab // (VOCAB_MULTIPLE * tp)) * VOCAB_MULTIPLE * tp
        yield "--make-vocab-size-divisible-by", VOCAB_MULTIPLE, "vocab_multiple", {"tp": tp, "rows": padded}
    if m.mla is not None:
        yield from _list_mla_flags(m)
    if m.moe is not None:
        yield from _list_moe_flags(m)


def _list_mla_flags(m: Model) -> Iterator[Flag]:
    mla = m.mla
    assert mla is not None
    yield "--multi-latent-attention", True, "model", {"field": "model.mla"}
    sizes = {
        "--q-lora-rank": ("q_lora_rank", mla.q_lora_rank),
        "--kv-lora-rank": ("kv_lora_rank", mla.kv_lora_rank),
        "--qk-head-dim": ("qk_nope_head_dim", mla.qk_nope_head_dim),
        "--qk-pos-emb-head-dim": ("qk_rope_head_dim", mla.qk_rope_head_dim),
        "--v-head-dim": ("v_head_dim", mla.v_head_dim),
    }
    for name, (field, value) in sizes.items():
        if value is not None:
            yield name, value, "model", {"field": f"model.mla.{field}"}
    yield "--rope-type", "rope", "plain_rope", {}
    yield "--no-rope-fusion", True, "no_rope_fusion", {}


def _list_moe_flags(m: Model) -> Iterator[Flag]:
    moe = m.moe
    assert moe is not None
    yield "--num-experts", moe.experts, "model", {"field": "model.moe.experts"}
    yield "--moe-router-topk", moe.top_k, "model", {"field": "model.moe.top_k"}
    yield "--moe-ffn-hidden-size", moe.ffn_hidden, "model", {"field": "model.moe.ffn_hidden"}
    if moe.latent:
        yield "--moe-latent-size", moe.latent, "model", {"field": "model.moe.latent"}
    if moe.shared_experts:
        width = moe.shared_experts * moe.shared_ffn_hidden
        params = {"count": moe.shared_experts, "width": moe.shared_ffn_hidden}
        yield "--moe-shared-expert-intermediate-size", width, "shared_experts", params
        if moe.shared_gate:
            yield "--moe-shared-expert-gate", True, "model", {"field": "model.moe.shared_gate"}
    if m.moe_layers != m.layers:
        params = {"sparse": m.moe_layers, "layers": m.layers}
        yield "--moe-layer-freq", format_moe_pattern(m), "moe_layers", params
    if _get_bias_layers(m) == "router":
        yield "--moe-router-score-function", "sigmoid", "router_bias", {}
        yield "--moe-router-enable-expert-bias", True, "router_bias", {}
        yield "--moe-router-load-balancing-type", "none", "router_bias", {}
    else:
        if moe.top_k == 1:
            yield "--moe-router-pre-softmax", True, "router_top_1", {}
        yield "--moe-router-load-balancing-type", "aux_loss", "router_balance", {}
        yield "--moe-aux-loss-coeff", AUX_LOSS_WEIGHT, "router_balance", {}
    yield "--moe-grouped-gemm", True, "grouped_gemm", {}
    yield "--moe-token-dispatcher-type", "alltoall", "dispatcher", {}


def format_moe_pattern(m: Model) -> str:
    """The layers with experts (1) and without (0), as `--moe-layer-freq` takes them: `([0]*3+[1]*58)`."""
    moe = m.moe
    assert moe is not None
    rounds, trailing_dense = divmod(m.layers - moe.first_dense, moe.every)
    parts = [f"[0]*{moe.first_dense}"] if moe.first_dense else []
    parts.append(f"[1]*{rounds}" if moe.every == 1 else f"([0]*{moe.every - 1}+[1])*{rounds}")
    if trailing_dense:
        parts.append(f"[0]*{trailing_dense}")
    return f"({'+'.join(parts)})"


# ---- strategy: degrees, order of ranks, sharding, overlap, gradients, memory ----

# Orders of ranks that Megatron has, and whether `--use-tp-pp-dp-mapping` gives them.
RANK_ORDERS = {("tp", "cp", "dp", "pp"): False, ("tp", "cp", "pp", "dp"): True}
# ZeRO stages of Megatron-FSDP by the name of its sharding strategy.
FSDP_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
# Those that Megatron-FSDP, optimizer instances and host memory know.
PLAIN_OPTIMIZERS = ("adam", "adamw", "sgd", "sgd-momentum")


def get_zero_stage(launch: Launch) -> int:
    """ZeRO stage in use."""
    return launch.predictor.strategy.zero or 0


def count_optimizer_instances(launch: Launch) -> int:
    """Copies of the sharded states: one a zone where states are shared inside zones, or as many as were asked for."""
    if not get_zero_stage(launch):
        return 1
    return (launch.predictor.strategy.dp or 1) // launch.predictor.placed.shard_ranks


def is_tp_pp_dp_mapping(launch: Launch) -> bool:
    """Whether ranks are numbered tp-cp-pp-dp; `IllegalError` for an order that is neither of Megatron's two."""
    s, order = launch.predictor.strategy, launch.predictor.placed.placement.order
    used = [axis for axis in order if getattr(s, axis) > 1]
    for supported, is_mapped in RANK_ORDERS.items():
        if used == [axis for axis in supported if axis in used]:
            return is_mapped
    known_orders = ["-".join(supported_order) for supported_order in RANK_ORDERS]
    raise build_refusal("megatron_order", "placement.order", "-".join(order), allowed=known_orders, axes=list(AXES))


def require_parallel(launch: Launch) -> None:
    """Refuse what Megatron stops at when it starts, beside what its entry in frameworks.yaml already rules out."""
    predictor, s = launch.predictor, launch.predictor.strategy
    model, optimizer, zero = predictor.case.model, predictor.case.job.optimizer, get_zero_stage(launch)
    is_mapped, copies = is_tp_pp_dp_mapping(launch), count_optimizer_instances(launch)
    if model.moe and s.tp > 1 and not s.sequence_parallel:
        raise build_refusal("megatron_moe_sequence", "strategy.sequence_parallel", False, tp=s.tp)
    expert_ranks = s.expert_slices * s.ep
    if is_mapped and s.pp > 1 and model.moe and expert_ranks != s.tp * s.cp:
        raise build_refusal("megatron_expert_order", "placement.order", s.ep, held=expert_ranks, inner=s.tp * s.cp)
    if copies > 1:
        zones = predictor.placed.zone[:, :, 0, 0].reshape(s.pp, copies, -1)
        if s.shard_within == "zone" and (zones != zones[:, :, :1]).any():
            raise build_refusal("megatron_instances_torn", "strategy.shard_within", s.shard_within, copies=copies)
        expert_replicas = s.tp * s.cp * (s.dp or 1) // expert_ranks
        if model.moe and expert_replicas % copies:
            raise build_refusal("megatron_expert_instances", "strategy.ep", s.ep, spread=expert_replicas, copies=copies)
    if optimizer not in (*PLAIN_OPTIMIZERS, "lion", "muon"):
        raise build_refusal(
            "megatron_optimizer", "job.optimizer", optimizer, allowed=[*PLAIN_OPTIMIZERS, "lion", "muon"]
        )
    is_plain = optimizer in PLAIN_OPTIMIZERS
    if not is_plain and (zero > 1 or copies > 1):
        raise build_refusal("megatron_plain_optimizer", "job.optimizer", optimizer, allowed=list(PLAIN_OPTIMIZERS))
    if s.offload != "none" and optimizer not in ("adam", "adamw"):
        raise build_refusal("megatron_plain_optimizer", "job.optimizer", optimizer, allowed=["adam", "adamw"])
    communication, precision = s.communication, predictor.case.job.precision
    if is_reduced_in_bf16(s) and precision in ("fp16", "fp32"):
        value = communication.gradient_dtype or communication.compression
        raise build_refusal("megatron_gradients", "strategy.communication.gradient_dtype", value, precision=precision)


def is_reduced_in_bf16(s: Strategy) -> bool:
    """Gradients are bf16 on the wire."""
    return "bf16" in (s.communication.gradient_dtype, s.communication.compression)


def _list_degree_flags(launch: Launch, layers: Sequence[int], micro_batches: int) -> Iterator[Flag]:
    """How ranks split the model: `layers` of each chunk in pipeline order, `micro_batches` of a replica a step."""
    s = launch.predictor.strategy
    dp, world = s.dp or 1, launch.world_size
    ranks = {"tp": s.tp, "pp": s.pp, "cp": s.cp, "dp": dp, "world": world}
    yield "--tensor-model-parallel-size", s.tp, "tp", ranks
    if s.sequence_parallel:
        yield "--sequence-parallel", True, "sequence_parallel", {"tp": s.tp}
    yield "--pipeline-model-parallel-size", s.pp, "pp", ranks
    mtp_layers = launch.scenario.model.mtp_layers
    # chunks of one size need no layout, unless it says where tokens further ahead are predicted
    if s.pp > 1 and (len(set(layers)) > 1 or mtp_layers):
        yield LAYOUT_FLAG, format_layout(layers, mtp_layers), "layout", {"layers": list(layers)}
    elif s.interleave > 1:
        yield "--num-virtual-stages-per-pipeline-rank", s.interleave, "interleave", {"chunks": s.pp * s.interleave}
    if s.interleave > 1:
        size = choose_group_size(s.pp, micro_batches)
        if size != s.pp:
            params = {"m": micro_batches, "pp": s.pp, "rest": micro_batches % s.pp}
            yield "--microbatch-group-size-per-virtual-pipeline-stage", size, "group_size", params
    yield "--context-parallel-size", s.cp, "cp", ranks
    if launch.predictor.case.model.moe:
        yield "--expert-model-parallel-size", s.ep, "ep", {"ep": s.ep}
        yield "--expert-tensor-parallel-size", s.expert_slices, "expert_tp", {"ep": s.ep}
    if is_tp_pp_dp_mapping(launch):
        yield "--use-tp-pp-dp-mapping", True, "mapping", {}
    yield "--distributed-timeout-minutes", launch.timeout_minutes, "timeout", {}


def _list_sharding_flags(launch: Launch) -> Iterator[Flag]:
    s, zero, copies = launch.predictor.strategy, get_zero_stage(launch), count_optimizer_instances(launch)
    if zero:
        yield "--use-distributed-optimizer", True, "distributed_optimizer", {"zero": zero}
    if zero in FSDP_STRATEGIES:
        yield "--use-megatron-fsdp", True, "fsdp", {"zero": zero}
        yield "--data-parallel-sharding-strategy", FSDP_STRATEGIES[zero], "fsdp_strategy", {"zero": zero}
        yield "--no-gradient-accumulation-fusion", True, "fsdp_fusion", {}
        if copies > 1:
            yield "--outer-dp-sharding-strategy", "no_shard", "fsdp_outer", {"copies": copies}
    if copies > 1:
        key = "instances_all" if s.shard_within == "all" else "instances"
        params = {"copies": copies, "each": (s.dp or 1) // copies}
        yield "--num-distributed-optimizer-instances", copies, key, params


def _list_overlap_flags(launch: Launch) -> Iterator[Flag]:
    s = launch.predictor.strategy
    communication = s.communication
    if (s.dp or 1) * s.cp > 1 and communication.overlap_gradients:
        yield "--overlap-grad-reduce", True, "overlap_gradients", {}
        if get_zero_stage(launch) and communication.overlap_parameters:
            yield "--overlap-param-gather", True, "overlap_parameters", {}
    if communication.overlap_tensor and s.tp > 1:
        yield "--tp-comm-overlap", True, "overlap_tensor", {}


def _list_gradient_flags(launch: Launch) -> Iterator[Flag]:
    predictor = launch.predictor
    s, precision = predictor.strategy, predictor.case.job.precision
    if is_reduced_in_bf16(s):
        yield "--grad-reduce-in-bf16", True, "gradients_bf16", {}
    elif precision != "fp32":
        yield "--accumulate-allreduce-grads-in-fp32", True, "gradients_fp32", {}
    if s.communication.bucket_mb is not None:
        gradient_bytes = state_bytes(predictor.case.job, framework="megatron").gradients
        size, mb = round(get_bucket_bytes(predictor.case, "megatron") / gradient_bytes), s.communication.bucket_mb
        if get_zero_stage(launch) in FSDP_STRATEGIES:
            yield "--suggested-communication-unit-size", size, "bucket", {"mb": mb}
        else:
            yield "--ddp-bucket-size", size, "bucket", {"mb": mb}


def _list_memory_flags(s: Strategy) -> Iterator[Flag]:
    if s.recompute == "selective":
        yield "--recompute-granularity", "selective", "recompute_selective", {}
        yield "--recompute-modules", ["core_attn"], "recompute_selective", {}
    elif s.recompute == "full":
        yield "--recompute-granularity", "full", "recompute_full", {}
        yield "--recompute-method", "uniform", "recompute_full", {}
        yield "--recompute-num-layers", 1, "recompute_full", {}
    if s.offload != "none":
        yield "--optimizer-cpu-offload", True, "offload", {}
        yield "--use-precision-aware-optimizer", True, "offload_precision", {}
        yield "--overlap-cpu-optimizer-d2h-h2d", True, "offload_overlap", {}
