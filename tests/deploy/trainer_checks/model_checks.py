"""Checks of the shipped model's arithmetic, run by the training environment's python: check -> error or null, as JSON.

python model_checks.py TRAINER_FOLDER
"""

from __future__ import annotations

import math
import sys
import warnings
from pathlib import Path

warnings.simplefilter("error")
sys.path[:0] = [sys.argv[1], str(Path(__file__).parents[1])]

import attention as core  # noqa: E402
import model as model_file  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from checks import run_checks  # noqa: E402
from kinds import BERT, KINDS, LATENT, MIXTURE, SMALL, differ, made, same, stirred, tokens  # noqa: E402
from model import compute_loss, is_moe  # noqa: E402
from torch import nn  # noqa: E402

# ---- what a token sees


def check_a_decoder_never_sees_later_tokens():
    for name, changes in KINDS.items():
        if name == "bert":
            continue
        model, x = stirred(changes), tokens()
        y = x.clone()
        y[:, 12] = (y[:, 12] + 1) % 97
        a, b = model(x), model(y)
        same(a[:, :12], b[:, :12], 1e-5)
        differ(a[:, 12:], b[:, 12:])


def check_an_encoder_sees_later_tokens():
    model, x = stirred(BERT), tokens()
    y = x.clone()
    y[:, 12] = (y[:, 12] + 1) % 97
    differ(model(x)[:, :12], model(y)[:, :12])


def check_a_window_of_five_sees_five_tokens():
    for layers, reach in ((1, 4), (2, 8)):  # each layer adds four tokens of reach
        model = stirred({"layers": layers, "window": {"tokens": 5, "full_every": None}})
        x = tokens()
        y = x.clone()
        y[:, 3] = (y[:, 3] + 1) % 97
        a, b = model(x), model(y)
        same(a[:, 3 + reach + 1 :], b[:, 3 + reach + 1 :], 0)
        differ(a[:, 3 + reach], b[:, 3 + reach])


def check_an_encoders_window_reaches_both_ways():
    model = stirred(BERT | {"layers": 1, "window": {"tokens": 5, "full_every": None}})
    x = tokens()
    y = x.clone()
    y[:, 9] = (y[:, 9] + 1) % 97
    gap = (model(x) - model(y)).abs().amax(dim=(0, 2)) > 0
    assert gap.nonzero().flatten().tolist() == list(range(5, 14)), gap


def check_one_layer_in_three_is_full_and_one_in_two_has_experts():
    changes = SMALL | {"window": {"tokens": 5, "full_every": 3}}
    assert [core.get_window(changes, i) for i in range(7)] == [5, 5, None, 5, 5, None, 5]
    changes = SMALL | {"moe": MIXTURE | {"first_dense": 1, "every": 2}}
    assert [is_moe(changes, i) for i in range(7)] == [False, False, True, False, True, False, True]


# ---- attention against plain arithmetic


def plain_attention(q, k, v, scale, seen, bias=0.0, sinks=None):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * scale + bias
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=-1)
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1)[..., : k.shape[2]], v)


def check_every_way_to_attend_equals_the_plain_one():
    torch.manual_seed(0)
    for length in (3, 7, 16, 23):
        place = torch.arange(length)
        gap = place.unsqueeze(1) - place.unsqueeze(0)
        for causal in (True, False):
            for window in (None, 7):
                for sinks in (None, torch.tensor([0.5, -1.0, 2.0, 0.0])):
                    for alibi in (False, True):
                        layer = nn.Module()
                        layer.causal, layer.window, layer.sinks, layer.scale = causal, window, sinks, 0.3
                        layer.slopes, layer.first_head = core.compute_alibi_slopes(4) if alibi else None, 0
                        q, k, v = (
                            torch.randn(2, 4, length, 8),
                            torch.randn(2, 2, length, 8),
                            torch.randn(2, 2, length, 8),
                        )
                        seen = (gap >= 0) if causal else torch.ones_like(gap, dtype=torch.bool)
                        if window:
                            seen = seen & (gap.abs() < window)
                        bias = -torch.tensor([0.25, 0.0625, 0.015625, 0.00390625]).view(4, 1, 1) * gap.abs()
                        wide = [t.repeat_interleave(2, dim=1) for t in (k, v)]
                        wanted = plain_attention(q, *wide, 0.3, seen, bias if alibi else 0.0, sinks)
                        same(core.AttentionCore.attend(layer, q, k, v), wanted, 2e-6)


def check_slopes_of_six_heads_follow_the_paper():
    # Press et al. 2022: of the nearest power of two, then every other one of the next power's
    assert core.compute_alibi_slopes(4) == [2**-2, 2**-4, 2**-6, 2**-8]
    assert core.compute_alibi_slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]


def check_a_rank_with_some_heads_takes_their_slopes():
    torch.manual_seed(0)
    layer = nn.Module()
    layer.causal, layer.window, layer.sinks, layer.scale, layer.first_head = True, None, None, 0.3, 0
    layer.slopes = core.compute_alibi_slopes(4)
    q, k, v = (torch.randn(1, 4, 9, 8) for _ in range(3))
    whole = core.AttentionCore.attend(layer, q, k, v)
    layer.first_head = 2
    same(core.AttentionCore.attend(layer, q[:, 2:], k[:, 2:], v[:, 2:]), whole[:, 2:])


def check_grouped_heads_equal_all_heads_with_repeated_weights():
    grouped, full = stirred({"qk_norm": "head"}), made({"qk_norm": "head", "kv_heads": 4})
    state = grouped.state_dict()
    for name in list(state):
        if ".attention.k." in name or ".attention.v." in name:
            state[name] = state[name].view(2, 8, -1).repeat_interleave(2, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    same(grouped(tokens()), full(tokens()))


def check_rotary_scores_depend_on_distance_only():
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(i, j):
        turned = [core.apply_rotary(t, core.build_rotary_table(torch.tensor([p]), 8)) for t, p in ((q, i), (k, j))]
        return (turned[0] * turned[1]).sum()

    same(score(5, 2), score(105, 102), 1e-4)
    differ(score(5, 2), score(5, 3))


def check_rotary_turns_by_hand():
    # width 4, base 10,000: angles p and p / 100; pairs (0, 2) and (1, 3)
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    turned = core.apply_rotary(x.view(1, 1, 1, 4), core.build_rotary_table(torch.tensor([3]), 4)).flatten()
    c, s, d, r = math.cos(3), math.sin(3), math.cos(0.03), math.sin(0.03)
    same(turned, torch.tensor([c - 3 * s, 2 * d - 4 * r, 3 * c + s, 4 * d + 2 * r]), 1e-6)


def check_given_positions_are_used():
    for changes in ({}, KINDS["gpt"]):
        model, x = stirred(changes), tokens(8)
        places = torch.tensor([0, 1, 2, 3, 10, 11, 12, 13])
        a = model(x, positions=places)
        same(a[:, :4], model(x)[:, :4])
        differ(a[:, 4:], model(x)[:, 4:])
        same(a, model(x, positions=places.expand(2, 8)))


def check_a_sequence_longer_than_the_table_of_positions_is_refused():
    made(KINDS["gpt"])(tokens(64))
    try:
        made(KINDS["gpt"])(tokens(65))
    except ValueError as error:
        assert "65" in str(error) and "model.max_seq_len=64" in str(error), error
    else:
        raise AssertionError("was accepted")


def check_latent_attention_by_hand():
    model = stirred({"mla": LATENT, "layers": 1})
    layer, x = model.layers["0"].attention, torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    assert layer.q_up.weight.shape == (4 * 12, 20) and layer.kv_up.weight.shape == (4 * 18, 12)
    assert layer.kv_down.weight.shape == (12 + 4, 32) and layer.out.weight.shape == (32, 4 * 10)

    def rms(t, w):
        return t * (t.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w

    turn = core.build_rotary_table(torch.arange(6), 4)
    q = (rms(x @ layer.q_down.weight.T, layer.q_norm.weight) @ layer.q_up.weight.T).view(2, 6, 4, 12)
    down = x @ layer.kv_down.weight.T
    kv = (rms(down[..., :12], layer.kv_norm.weight) @ layer.kv_up.weight.T).view(2, 6, 4, 18)
    shared = core.apply_rotary(down[..., 12:].unsqueeze(1), turn)
    out = []
    for head in range(4):
        q_turned = core.apply_rotary(q[:, :, head, 8:].unsqueeze(1), turn)[:, 0]
        scores = q[:, :, head, :8] @ kv[:, :, head, :8].mT + q_turned @ shared[:, 0].mT
        scores = (scores / 12**0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
        out.append(scores.softmax(-1) @ kv[:, :, head, 8:])
    same(layer(x, turn), torch.cat(out, -1) @ layer.out.weight.T)


# ---- blocks, experts, head


def check_a_single_expert_equals_the_dense_mlp():
    for activation in ("swiglu", "gelu"):
        one = MIXTURE | {"experts": 1, "top_k": 1, "ffn_hidden": 48}
        changes = {"activation": activation, "bias": ["mlp"]}
        dense, sparse = stirred(changes), made(changes | {"moe": one})
        state = dense.state_dict()
        target = sparse.state_dict()
        for name in target:
            layer, _, part = name.partition(".mlp.")
            if part.startswith("experts.") and not part.endswith("bias"):
                target[name] = state[f"{layer}.mlp.{part[8:]}.weight"].T.unsqueeze(0)
            elif part.startswith("experts."):
                target[name] = state[f"{layer}.mlp.{part[8:-5]}.bias"].unsqueeze(0)
            elif part == "down_bias":
                target[name] = state[f"{layer}.mlp.down.bias"].unsqueeze(0)
            elif not part.startswith("router"):
                target[name] = state[name]
        sparse.load_state_dict(target)
        same(dense(tokens()), sparse(tokens()))


def check_experts_equal_a_loop_over_tokens():
    changes = {"bias": ["mlp", "router"]}
    x = torch.randn(2, 5, 32, generator=torch.Generator().manual_seed(0))
    for count in (1, 2):
        mixture = MIXTURE | {"top_k": count, "shared_experts": 2, "shared_gate": True}
        moe = stirred(changes | {"moe": mixture}).layers["1"].mlp
        wanted = torch.zeros_like(x)
        for b in range(2):
            for i in range(5):
                token, e_ = x[b, i], moe.experts
                share = (moe.router.weight @ token + moe.router.bias).softmax(0)
                best = sorted(range(4), key=lambda e: -share[e])[:count]
                total = sum(share[e] for e in best) if count > 1 else 1  # one expert is weighed by its share of all
                for e in best:
                    inner = F.silu(token @ e_.gate[e] + e_.gate_bias[e]) * (token @ e_.up[e] + e_.up_bias[e])
                    wanted[b, i] += share[e] / total * (inner @ e_.down[e] + moe.down_bias[e])
                wanted[b, i] += sum(m(token) for m in moe.shared) * torch.sigmoid(moe.shared_gate(token))
        same(moe(x), wanted)


def check_berts_ends_by_hand():
    model, x = stirred(BERT | {"layers": 0}), tokens()  # no layer: the embedding's output is the head's input
    hidden = model.embed.weight[x] + model.position_table.weight[:19] + model.token_types.weight[0]

    def norm(t, part):
        return F.layer_norm(t, (32,), part.weight, part.bias)

    hidden = norm(hidden, model.embed_norm) @ model.mlm.weight.T + model.mlm.bias
    hidden = norm(hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5)), model.mlm_norm)
    same(model(x), hidden @ model.embed.weight.T + model.head.mlm_bias)


def check_a_narrow_embedding_is_projected_in_and_out():
    model, x = stirred(KINDS["opt"] | {"layers": 0}), tokens()
    hidden = model.embed.weight[x] @ model.project_in.weight.T + model.position_table.weight[:19]
    same(model(x), hidden @ model.project_out.weight.T @ model.embed.weight.T)


def check_balance_adds_the_gradient_of_its_loss():
    router_grads = []
    for balance in (0.0, 0.5):
        model = stirred({"moe": MIXTURE, "layers": 1})
        moe = model.layers["0"].mlp
        moe.balance = balance
        kept = {}
        moe.register_forward_pre_hook(lambda _, args, kept=kept: kept.update(x=args[0].detach().flatten(0, 1)))
        compute_loss(model(tokens()), tokens(seed=1)).backward()
        router_grads.append(moe.router.weight.grad.clone())
    weight = moe.router.weight.detach().requires_grad_()
    shares = (kept["x"] @ weight.T).softmax(-1)
    chosen = shares.topk(2).indices
    load = torch.stack([(chosen == e).float().mean() for e in range(4)])
    (0.5 * 4 * (load * shares.mean(0)).sum()).backward()
    same(router_grads[1] - router_grads[0], weight.grad)


def check_a_replaced_core_and_a_replaced_exchange_are_called():
    model, calls = stirred({"moe": MIXTURE, "layers": 1}), []
    wanted = model(tokens())
    layer = model.layers["0"]
    attend, run = layer.attention.attend, layer.mlp.run
    layer.attention.attend = lambda q, k, v: calls.append((q.shape, k.shape, v.shape)) or attend(q, k, v)
    layer.mlp.run = lambda x, counts: calls.append((x.shape, counts.sum())) or run(x, counts)
    same(model(tokens()), wanted, 0)
    assert calls == [((2, 4, 19, 8), (2, 2, 19, 8), (2, 2, 19, 8)), ((76, 32), 76)], calls


def check_half_of_the_heads_is_attention_of_a_narrower_model():
    # as tensor parallelism cuts it: rows of q, k, v, columns of out; the two halves add up
    whole = stirred({"layers": 1}).layers["0"].attention
    x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    turn, parts = core.build_rotary_table(torch.arange(6), 8), []
    wanted = whole(x, turn)
    state = whole.state_dict()
    for half in range(2):
        for name in ("q", "k", "v"):
            getattr(whole, name).weight = nn.Parameter(state[f"{name}.weight"].chunk(2, 0)[half])
        whole.out.weight = nn.Parameter(state["out.weight"].chunk(2, 1)[half])
        parts.append(whole(x, turn))
    same(parts[0] + parts[1], wanted)


def check_blocks_put_their_norms_where_they_say():
    x = torch.randn(2, 6, 32, generator=torch.Generator().manual_seed(0))
    turn = core.build_rotary_table(torch.arange(6), 8)

    def block(**changes):
        b = stirred(changes | {"layers": 1}).layers["0"]
        norms = (b.attention_norm, b.mlp_norm, b.attention_out_norm, b.mlp_out_norm)
        return b, lambda t: b.attention(t, turn), b.mlp, *norms

    b, attention, mlp, n1, n2, *_ = block()
    y = x + attention(n1(x))
    same(b(x, turn), y + mlp(n2(y)))
    b, attention, mlp, n1, n2, *_ = block(final_norm=False)
    y = n1(x + attention(x))
    same(b(x, turn), n2(y + mlp(y)))
    b, attention, mlp, n1, n2, n3, n4 = block(norms_per_layer=4)
    y = x + n3(attention(n1(x)))
    same(b(x, turn), y + n4(mlp(n2(y))))
    b, attention, mlp, n1, *_ = block(norms_per_layer=1, parallel_residual=True)
    same(b(x, turn), x + attention(n1(x)) + mlp(n1(x)))
    b, attention, mlp, n1, n2, *_ = block(parallel_residual=True)
    same(b(x, turn), x + attention(n1(x)) + mlp(n2(x)))
    b, attention, mlp, *_ = block(norms_per_layer=0)
    y = x + attention(x)
    same(b(x, turn), y + mlp(y))


def check_every_parameter_gets_a_gradient():
    for name, changes in KINDS.items():
        model = stirred(changes)
        compute_loss(model(tokens()), tokens(seed=1)).backward()
        missing = [n for n, p in model.named_parameters() if p.grad is None]
        assert not missing, (name, missing)


def check_the_loss_is_a_mean_over_tokens_with_a_target():
    logits = torch.tensor([[[0.0, math.log(3.0)], [9.0, 1.0]], [[5.0, 5.0], [1.0, 2.0]]]).bfloat16()
    targets = torch.tensor([[0, -100], [1, -100]])
    loss = compute_loss(logits, targets)
    assert loss.dtype == torch.float32
    assert abs(loss.item() - (math.log(4) + math.log(2)) / 2) < 2e-3, loss  # ln 3 in bf16 is off by 1e-3
    assert compute_loss(logits, torch.full((2, 2), -100)).item() == 0


def check_a_padded_vocabulary_has_the_same_logits_and_more_rows():
    padded, plain = stirred({"vocab_padded_to": 104, "bias": ["head"]}), made({"bias": ["head"]})
    state = padded.state_dict()
    plain.load_state_dict({k: v[:97] if k in ("embed.weight", "head.weight") else v for k, v in state.items()})
    assert padded(tokens()).shape == (2, 19, 104)
    same(padded(tokens())[..., :97], plain(tokens()))


def check_activations_are_what_they_are_called():
    x = torch.tensor([-1.0, 0.0, 2.0])
    same(model_file.ACTIVATIONS["squared-relu"](x), torch.tensor([0.0, 0.0, 4.0]))
    same(model_file.ACTIVATIONS["gelu"](x), x * 0.5 * (1 + torch.erf(x / 2**0.5)))
    mlp = stirred({"activation": "reglu"}).layers["0"].mlp
    y = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
    same(mlp(y), ((y @ mlp.gate.weight.T).clamp(min=0) * (y @ mlp.up.weight.T)) @ mlp.down.weight.T)
    plain = stirred({"activation": "relu"}).layers["0"].mlp
    same(plain(y), (y @ plain.up.weight.T).clamp(min=0) @ plain.down.weight.T)


if __name__ == "__main__":
    run_checks(globals())
