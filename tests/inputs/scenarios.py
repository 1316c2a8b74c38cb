"""Hypothesis: any valid scenario."""

from __future__ import annotations

from hypothesis import strategies as st

from crosszone import catalogue

names = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=20).filter(
    lambda text: text.strip() != ""
)
positive = st.floats(1e-6, 1e6) | st.integers(1, 10**6)
maybe = lambda inner: st.none() | inner  # noqa: E731


def sparse(required: dict, optional: dict):
    """Mappings with all required keys and some of the optional ones."""
    return st.fixed_dictionaries(required, optional=optional)


head_shapes = st.sampled_from([(4096, 32, 32), (4096, 32, 8), (2048, 16, 1), (5120, 40, 40), (96, 3, 3)])


@st.composite
def inline_models(draw):
    hidden, heads, kv_heads = draw(head_shapes)
    fields = {
        "layers": draw(st.integers(1, 200)), "hidden": hidden, "heads": heads, "kv_heads": kv_heads,
        "ffn_hidden": draw(st.integers(1, 65536)), "vocab": draw(st.integers(1, 300_000)),
    }  # fmt: skip
    extra = draw(
        sparse(
            {},
            {
                "name": names,
                "kind": st.sampled_from(["decoder", "encoder"]),
                "activation": st.sampled_from(["gelu", "swiglu", "squared-relu"]),
                "norm": st.sampled_from(["rmsnorm", "layernorm"]),
                "bias": st.lists(st.sampled_from(["qkv", "out", "mlp", "head"]), unique=True, max_size=4),
                "tied_embeddings": st.booleans(),
                "window": sparse({"tokens": st.integers(1, 10**5)}, {"full_every": maybe(st.integers(1, 10))}),
                "moe": sparse(
                    {"experts": st.integers(8, 256), "top_k": st.integers(1, 8), "ffn_hidden": st.integers(1, 9999)},
                    {"shared_experts": st.integers(0, 2)},
                ),
                "mla": st.just(
                    {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
                ),
            },
        )
    )
    return fields | extra


models = (
    st.sampled_from(catalogue().names("models"))
    | st.fixed_dictionaries({"size_b": st.floats(0.1, 1000)})
    | inline_models()
    | st.fixed_dictionaries({"like": st.sampled_from(["llama-2-7b", "gpt-2"]), "layers": st.integers(1, 32)})
)

jobs = sparse(
    {"seq_len": st.integers(1, 10**6), "global_batch": st.integers(1, 10**6)},
    {
        "precision": st.sampled_from(["bf16", "fp16", "fp32", "fp8", "bf16-pure"]),
        "optimizer": st.sampled_from(["adamw", "sgd", "lion"]),
        "framework": st.sampled_from(["any", "ddp", "pytorch-fsdp", "megatron"]),
        "stack": names,
    },
).flatmap(
    lambda job: st.sampled_from([{}, {"tokens": 1.5e12}, {"corpus_tokens": 1e9, "epochs": 2.5}]).map(
        lambda length: job | length
    )
)

gpus = st.sampled_from(catalogue().names("gpus")) | st.just({"like": "a100-80gb-sxm", "memory_gib": 160})

groups = sparse(
    {"gpus": st.integers(1, 16), "gpu": gpus},
    {
        "count": st.integers(1, 100), "cpus": st.integers(1, 256), "memory_gib": positive, "nvlink_domain": st.just(1),
        "fabric": st.sampled_from(["rdma", "tcp"]), "usd_per_gpu_hour": st.floats(0, 100),
    },
).flatmap(lambda group: st.sampled_from([{}, {"nic_gbps": 25}, {"nic_gbps_per_gpu": 200.5}]).map(lambda nic: group | nic))  # fmt: skip

regions = st.sampled_from(catalogue().names("regions")) | st.fixed_dictionaries(
    {"lat": st.floats(-90, 90), "lon": st.floats(-180, 180)}
)

figures = {
    "gbps": positive, "rtt_ms": st.floats(0, 1000), "loss_pct": st.floats(0, 99), "usd_per_gb": st.floats(0, 1),
    "flow_gbps": positive, "jitter_ms": st.floats(0, 10),
}  # fmt: skip


@st.composite
def clusters(draw):
    names_drawn = draw(st.lists(names.map(str.strip), min_size=1, max_size=4, unique=True))
    zones = [
        draw(
            sparse(
                {"name": st.just(name), "region": regions, "nodes": st.lists(groups, min_size=1, max_size=3)},
                {"uplink_gbps": positive, "pue": st.floats(1, 2)},
            )
        )
        for name in names_drawn
    ]
    cluster = {"zones": zones}
    if len(names_drawn) > 1 and draw(st.booleans()):
        ends = draw(st.permutations(names_drawn))[:2]
        cluster["links"] = [
            {"between": ends}
            | draw(sparse({}, figures | {"km": st.floats(0, 20000), "gbps_back": positive, "measured": st.booleans()}))
        ]
    if draw(st.booleans()):
        cluster["default_link"] = draw(sparse({}, figures))
    return cluster


degree = st.integers(1, 64)
strategies = sparse(
    {},
    {
        "tp": degree, "pp": degree, "dp": maybe(degree), "cp": degree, "ep": degree, "micro_batch": degree,
        "interleave": degree, "zero": st.integers(0, 3), "recompute": st.sampled_from(["none", "selective", "full"]),
        "sequence_parallel": st.booleans(), "layers_per_stage": st.lists(st.integers(0, 100), min_size=1, max_size=8),
        "shard_within": st.sampled_from(["all", "zone", "node"]),
        "replica_micro_batches": maybe(st.lists(st.integers(1, 64), min_size=1, max_size=8)),
        "communication": sparse({}, {"overlap": st.floats(0, 1), "bucket_mb": positive, "flows": st.integers(1, 64)}),
        "local_update": st.fixed_dictionaries({"steps": st.just(100), "fragments": st.sampled_from([1, 5])}),
    },
)  # fmt: skip

scenario_fields = sparse(
    {"model": models, "job": jobs, "cluster": clusters()},
    {"name": names, "strategy": strategies, "version": st.just(1)},
)
