"""Small models of every kind, for the checks."""

from __future__ import annotations

import torch
from model import build, init_weights
from settings_example import MODEL
from weights import generate_noise

SMALL = MODEL | {"layers": 3, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn_hidden": 48}
SMALL |= {"vocab": 97, "embedding_width": 32, "max_seq_len": 64}
MIXTURE = {"experts": 4, "top_k": 2, "ffn_hidden": 24, "shared_experts": 0, "shared_ffn_hidden": 24}
MIXTURE |= {"shared_gate": False, "first_dense": 0, "every": 1}
LATENT = {"q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 10}
BERT = {"kind": "encoder", "positions": "learned", "final_norm": False, "embedding_norm": True, "norm": "layernorm"}
BERT |= {"tied_embeddings": True, "token_types": 2, "pooler": True, "mlm_head": True, "activation": "gelu"}
KINDS = {
    "llama": {},
    "gpt": {"positions": "learned", "norm": "layernorm", "bias": ["qkv", "out", "mlp", "head"], "activation": "gelu"},
    "bloom": {"positions": "alibi", "embedding_norm": True, "tied_embeddings": True, "kv_heads": 4, "heads": 4},
    "windowed": {"window": {"tokens": 5, "full_every": 2}, "qk_norm": "full", "activation": "reglu"},
    "gemma": {"norms_per_layer": 4, "qk_norm": "head", "activation": "geglu", "norm": "layernorm-no-bias"},
    "falcon": {"norms_per_layer": 1, "parallel_residual": True, "kv_heads": 1, "activation": "squared-relu"},
    "oss": {
        "moe": MIXTURE,
        "bias": ["qkv", "out", "mlp", "router"],
        "attention_sinks": True,
        "window": {"tokens": 4, "full_every": 2},
    },
    "deepseek": {"mla": LATENT, "moe": MIXTURE | {"shared_experts": 2, "shared_gate": True, "first_dense": 1}},
    "opt": {"positions": "learned", "final_norm": False, "embedding_width": 16, "tied_embeddings": True},
    "none": {"positions": "none", "norms_per_layer": 7, "vocab_padded_to": 104, "bias": ["head"], "activation": "silu"},
    "bert": BERT,
}


def made(changes=None, seed=1, **parts):
    return init_weights(build(SMALL | (changes or {}), **parts), seed, device="cpu")


def stirred(changes=None, seed=3, **parts):
    """A model whose every parameter, norms and biases too, is random and large enough to matter."""
    model = made(changes, **parts)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(generate_noise(parameter.shape, f"{seed}{name}", 0.2))
    return model


def tokens(count=19, batch=2, seed=0):
    return torch.randint(0, 97, (batch, count), generator=torch.Generator().manual_seed(seed))


def same(a, b, tolerance=1e-5):
    assert a.shape == b.shape, (a.shape, b.shape)
    worst = (a - b).abs().max().item()
    assert worst <= tolerance, f"differ by {worst}"


def differ(a, b, least=1e-4):
    worst = (a - b).abs().max().item()
    assert worst > least, f"differ by {worst} only"
