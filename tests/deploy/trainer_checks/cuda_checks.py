"""Checks of the shipped model on an NVIDIA GPU: check -> error or null, as JSON.

python cuda_checks.py TRAINER_FOLDER
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

warnings.simplefilter("error")
sys.path[:0] = [sys.argv[1], str(Path(__file__).parents[1])]

import model as model_file  # noqa: E402
import torch  # noqa: E402
from checks import run_checks  # noqa: E402
from model import build, compute_loss, init_weights, set_recompute  # noqa: E402
from settings_example import MODEL  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

WIDE = MODEL | {"layers": 2, "hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn_hidden": 384, "vocab": 512}
WIDE |= {"embedding_width": 256, "max_seq_len": 512}
MIXTURE = {"experts": 8, "top_k": 2, "ffn_hidden": 128, "shared_experts": 1, "shared_ffn_hidden": 128}
MIXTURE |= {"shared_gate": True, "first_dense": 0, "every": 1}
LATENT = {"q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
KINDS = {
    "llama": {},
    "bloom": {"positions": "alibi", "tied_embeddings": True, "norm": "layernorm"},
    "windowed": {"window": {"tokens": 50, "full_every": 2}, "qk_norm": "full"},
    "mixtral": {"moe": MIXTURE},
    "oss": {
        "moe": MIXTURE,
        "bias": ["qkv", "out", "mlp", "router"],
        "attention_sinks": True,
        "window": {"tokens": 48, "full_every": 2},
    },
    "deepseek": {"mla": LATENT, "moe": MIXTURE | {"first_dense": 1}},
    "bert": {"kind": "encoder", "positions": "learned", "final_norm": False, "mlm_head": True, "pooler": True},
}
TOKENS = torch.randint(0, 512, (2, 200), generator=torch.Generator().manual_seed(0))


def made(changes, device):
    return init_weights(build(WIDE | changes), 1, device=device)


def loss_and_gradients(model, device, autocast=False):
    x = TOKENS.to(device)
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        loss = compute_loss(model(x[:, :-1]), x[:, 1:])
    loss.backward()
    return loss.item(), {name: p.grad.float().cpu() for name, p in model.named_parameters()}


def close(a, b, tolerance):
    for name in a:
        gap = (a[name] - b[name]).norm() / (b[name].norm() + 1e-8)
        assert gap < tolerance, (name, gap.item())


def check_first_values_are_those_of_a_cpu():
    for changes in KINDS.values():
        here, there = made(changes, "cuda").state_dict(), made(changes, "cpu").state_dict()
        assert all(torch.equal(here[name].cpu(), there[name]) for name in there)


def check_losses_and_gradients_are_those_of_a_cpu():
    for name, changes in KINDS.items():
        loss, grads = loss_and_gradients(made(changes, "cuda"), "cuda")
        wanted, wanted_grads = loss_and_gradients(made(changes, "cpu"), "cpu")
        assert abs(loss - wanted) < 1e-4, (name, loss, wanted)
        if "moe" not in changes:  # a token at the edge between two experts may go either way
            close(grads, wanted_grads, 5e-3)


def check_recomputation_gives_the_same_loss_in_bf16():
    for name, changes in KINDS.items():
        losses = []
        for kind in ("none", "selective", "full"):
            model = made(changes, "cuda")
            set_recompute(model, kind)
            losses.append(loss_and_gradients(model, "cuda", autocast=True)[0])
        assert losses[0] == losses[1] == losses[2], (name, losses)


def check_the_grouped_product_equals_the_loop():
    torch.manual_seed(0)
    for bias in ([], ["mlp"]):
        block = made({"moe": MIXTURE, "bias": bias}, "cuda").layers["0"].mlp.experts.bfloat16()
        for parameter in block.parameters():
            torch.nn.init.normal_(parameter, std=0.1)
        counts = torch.tensor([5, 0, 100, 33, 0, 1, 60, 1], device="cuda")  # an idle expert, uneven rest
        x = torch.randn(200, 256, device="cuda").bfloat16()
        results = []
        for grouped in (True, False):
            chosen, model_file._has_grouped = model_file._has_grouped, lambda _, grouped=grouped: grouped
            y = x.clone().requires_grad_()
            out = block(y, counts)
            out.float().square().sum().backward()
            results.append({"out": out.detach().float(), "x": y.grad.float()})
            results[-1] |= {name: p.grad.float() for name, p in block.named_parameters()}
            block.zero_grad()
            model_file._has_grouped = chosen
        close(results[0], results[1], 0.02)
        assert model_file._has_grouped(x) and not model_file._has_grouped(x.float())


def check_plain_and_sink_layers_run_on_flash_kernels():
    for changes in ({}, {"kv_heads": 4}, {"attention_sinks": True}):
        model = made(changes, "cuda").bfloat16()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # an error where it cannot
            loss_and_gradients(model, "cuda")


def check_windows_and_latent_attention_need_no_full_scores():
    for changes in ({"window": {"tokens": 50, "full_every": None}}, {"mla": LATENT}, {"positions": "alibi"}):
        model = made(changes, "cuda").bfloat16()
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
            loss_and_gradients(model, "cuda")


if __name__ == "__main__":
    run_checks(globals())
