"""Checks of the shipped model where it starts, splits and learns, run by the training environment's python: check -> error or null, as JSON.

python start_checks.py TRAINER_FOLDER
"""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path

warnings.simplefilter("error")
sys.path[:0] = [sys.argv[1], str(Path(__file__).parents[1])]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from checks import run_checks  # noqa: E402
from kinds import KINDS, MIXTURE, SMALL, differ, made, same, stirred, tokens  # noqa: E402
from model import build, compute_loss, init_weights, set_recompute  # noqa: E402
from weights import generate_noise  # noqa: E402

# ---- recomputation, first values, stages


def check_recomputation_changes_no_gradient_and_keeps_less():
    for name, changes in KINDS.items():
        grads, kept = {}, {}
        for kind in ("none", "selective", "full"):
            model, sizes = stirred(changes), []
            set_recompute(model, kind)
            with torch.autograd.graph.saved_tensors_hooks(
                lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
            ):
                loss = compute_loss(model(tokens()), tokens(seed=1))
            loss.backward()
            grads[kind], kept[kind] = [p.grad for p in model.parameters()], sum(sizes)
        for kind in ("selective", "full"):
            assert all(torch.equal(a, b) for a, b in zip(grads["none"], grads[kind], strict=True)), (name, kind)
        assert kept["full"] < kept["selective"] < kept["none"], (name, kept)


def check_first_values_are_the_same_whole_or_in_stages():
    for name, changes in KINDS.items():
        whole = made(changes, seed=5)
        stages = [
            made(changes, seed=5, layers=[0], last=False),
            made(changes, seed=5, layers=[1], first=False, last=False),
            made(changes, seed=5, layers=[2], first=False),
        ]
        state, seen = whole.state_dict(), set()
        for stage in stages:
            for held, value in stage.state_dict().items():
                key = stage.tied.get(held, held)
                assert torch.equal(value, state[key]), (name, key)
                seen.add(key)
        assert seen == set(state), name
        assert stages[2].tied == ({"head.weight": "embed.weight"} if whole.head.weight is None else {})
        assert stages[1].embed is None and stages[1].norm is None and stages[1].head is None
        assert list(stages[1].layers) == ["1"]
        x = tokens()
        for stage in stages:
            x = stage(x)
        same(x, whole(tokens()), 0)


def check_first_values_have_the_right_size_and_depend_on_seed_and_name():
    model = made(
        {"layers": 2, "hidden": 64, "head_dim": 16, "embedding_width": 64, "norm": "layernorm", "bias": ["qkv"]}
    )
    state = model.state_dict()
    layer = model.layers["1"]
    for weight, spread in (
        (model.embed.weight, 0.02),
        (layer.mlp.up.weight, 0.02),
        (layer.attention.out.weight, 0.02 / 2),  # root of twice two layers
        (layer.mlp.down.weight, 0.02 / 2),
    ):
        assert abs(weight.std() / spread - 1) < 0.05 and abs(weight.mean()) < spread / 10, weight.std()
    assert (layer.attention_norm.weight == 1).all() and (layer.attention_norm.bias == 0).all()
    assert (layer.attention.q.bias == 0).all()
    differ(state["layers.0.mlp.up.weight"], state["layers.1.mlp.up.weight"], 0.01)
    differ(state["layers.0.mlp.up.weight"], state["layers.0.mlp.gate.weight"], 0.01)
    differ(state["embed.weight"], made({"hidden": 64, "embedding_width": 64}, seed=2).embed.weight, 0.01)
    rows = model.embed.weight.detach()
    cosine = F.cosine_similarity(rows[:-1], rows[1:]).abs().max()
    assert cosine < 0.6, cosine


def check_noise_is_near_normal_and_the_same_in_pieces():
    import weights

    values = generate_noise((400, 500), "key", 2.0)
    assert abs(values.mean()) < 0.02 and abs(values.std() - 2) < 0.02 and values.abs().max() < 7
    within = (values.abs() < 2).float().mean()  # 68.3 % of a normal within one deviation; 67.2 % of four uniforms' sum
    assert abs(within - 0.672) < 0.01, within
    weights.CHUNK = 777
    assert torch.equal(values, generate_noise((400, 500), "key", 2.0))


def check_shards_get_their_part_of_the_whole():
    """Rank 3 of 4, tensor-parallel over 2 and sharded over 2; no communication, so one process shows it."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    changes = {"vocab": 97, "moe": MIXTURE}
    whole = made(changes, seed=7).state_dict()
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    try:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        model = build(SMALL | changes)
        for block in model.layers.values():
            plan = {"attention.q": ColwiseParallel(), "attention.out": RowwiseParallel()}
            parallelize_module(block, mesh["tp"], plan, src_data_rank=None)
            fully_shard(block, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
        init_weights(model, 7, device="cpu")
        parts = {
            "layers.1.attention.q.weight": lambda t: t.chunk(2)[1].chunk(2)[1],
            "layers.1.attention.out.weight": lambda t: t.chunk(2, dim=1)[1].chunk(2)[1],
            "layers.1.mlp.experts.up": lambda t: t.chunk(2)[1],
            "embed.weight": lambda t: t[49:],  # 97 rows: 49 and 48
        }
        state = model.state_dict()
        for name, part in parts.items():
            assert torch.equal(state[name].to_local(), part(whole[name])), name
    finally:
        dist.destroy_process_group()


def check_every_kind_learns_in_bf16_autocast():
    for name, changes in KINDS.items():
        model = made(changes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x = (torch.arange(20).unsqueeze(0) * torch.tensor([[3], [7]]) + 5) % 97
        losses = []
        for _ in range(12):
            with torch.autocast("cpu", torch.bfloat16):
                loss = compute_loss(model(x[:, :-1]), x[:, 1:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert abs(losses[0] - math.log(97)) < 0.35 and losses[-1] < 3.6, (name, losses)


def check_all_in_bf16_works():
    for name, changes in KINDS.items():
        model = made(changes).bfloat16()
        loss = compute_loss(model(tokens()), tokens(seed=1))
        loss.backward()
        assert math.isfinite(loss.item()), name


if __name__ == "__main__":
    run_checks(globals())
