"""Checks of reading Hugging Face folders, run by the training environment's python: check -> error or null, as JSON.

python huggingface_checks.py TRAINER_FOLDER

The reference is written out here in plain arithmetic, token by token where it is short, from the papers' formulas.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import warnings
from pathlib import Path

warnings.simplefilter("error")
sys.path[:0] = [sys.argv[1], str(Path(__file__).parents[1])]

import torch  # noqa: E402
from checks import run_checks  # noqa: E402
from model import build, load_huggingface, read_config  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from settings_example import MODEL  # noqa: E402
from weights import WeightsError  # noqa: E402

SMALL = MODEL | {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn_hidden": 48, "vocab": 61}
SMALL |= {"embedding_width": 32}
MIXTURE = {"experts": 4, "top_k": 2, "ffn_hidden": 48, "shared_experts": 0, "shared_ffn_hidden": 48}
MIXTURE |= {"shared_gate": False, "first_dense": 0, "every": 1}
CONFIG = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIG |= {"num_key_value_heads": 2, "vocab_size": 61, "rope_theta": 500.0, "rms_norm_eps": 0.01, "hidden_act": "silu"}
TOKENS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]])


def tensors(config):
    """Random weights under the names of the family."""
    generator = torch.Generator().manual_seed(4)

    def some(*shape, around=0.0):
        return around + 0.3 * torch.randn(*shape, generator=generator)

    found = {"model.embed_tokens.weight": some(61, 32), "model.norm.weight": some(32, around=1)}
    if not config.get("tie_word_embeddings"):
        found["lm_head.weight"] = some(61, 32)
    for layer in range(2):
        at = f"model.layers.{layer}."
        for name, rows, columns in (("q", 32, 32), ("k", 16, 32), ("v", 16, 32), ("o", 32, 32)):
            found[f"{at}self_attn.{name}_proj.weight"] = some(rows, columns)
            if config["model_type"] == "qwen2" and name != "o":
                found[f"{at}self_attn.{name}_proj.bias"] = some(rows)
        if config["model_type"].startswith("qwen3"):
            found |= {f"{at}self_attn.{name}_norm.weight": some(8, around=1) for name in "qk"}
        found[f"{at}input_layernorm.weight"] = some(32, around=1)
        found[f"{at}post_attention_layernorm.weight"] = some(32, around=1)
        if config["model_type"] == "mixtral":
            found[f"{at}block_sparse_moe.gate.weight"] = some(4, 32)
            for e in range(4):
                for name, rows, columns in (("w1", 48, 32), ("w2", 32, 48), ("w3", 48, 32)):
                    found[f"{at}block_sparse_moe.experts.{e}.{name}.weight"] = some(rows, columns)
        else:
            for name, rows, columns in (("gate", 48, 32), ("up", 48, 32), ("down", 32, 48)):
                found[f"{at}mlp.{name}_proj.weight"] = some(rows, columns)
    return found


def written(config, found, files=3, folder=None):
    """A folder with these weights, in several files with an index, or in one without."""
    folder = Path(folder or tempfile.mkdtemp(dir=SCRATCH))
    (folder / "config.json").write_text(json.dumps(config))
    if files == 1:
        save_file(found, folder / "model.safetensors")
        return folder
    names = sorted(found)
    places = {name: f"model-{i % files + 1:05}-of-{files:05}.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(places.values())):
        save_file({name: found[name] for name in names if places[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def reference(config, w, tokens):
    """Logits of a LLaMA-like model, position by position, in double precision."""
    w = {name: value.double() for name, value in w.items()}
    theta, eps = config["rope_theta"], config["rms_norm_eps"]

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean() + eps) * weight

    def turn(x, place):  # halves of a head are the two coordinates of its four pairs
        angles = torch.tensor([place / theta ** (2 * i / 8) for i in range(4)], dtype=torch.float64)
        a, b = x[:4], x[4:]
        return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()])

    def silu(x):
        return x / (1 + torch.exp(-x))

    stream = [w["model.embed_tokens.weight"][t] for t in tokens]
    for layer in range(2):
        at = f"model.layers.{layer}."
        queries, keys, values = [], [], []
        for place, before in enumerate(stream):
            x = norm(before, w[f"{at}input_layernorm.weight"])
            for name, into, count in (("q", queries, 4), ("k", keys, 2), ("v", values, 2)):
                y = w[f"{at}self_attn.{name}_proj.weight"] @ x + w.get(f"{at}self_attn.{name}_proj.bias", 0)
                heads = list(y.view(count, 8))
                if f"{at}self_attn.{name}_norm.weight" in w:
                    heads = [norm(h, w[f"{at}self_attn.{name}_norm.weight"]) for h in heads]
                into.append(heads if name == "v" else [turn(h, place) for h in heads])
        for place in range(len(stream)):
            mixed = []
            for head in range(4):
                scores = torch.stack(
                    [queries[place][head] @ keys[j][head // 2] / math.sqrt(8) for j in range(place + 1)]
                )
                mixed.append(sum(s * values[j][head // 2] for j, s in enumerate(scores.softmax(0))))
            x = stream[place] + w[f"{at}self_attn.o_proj.weight"] @ torch.cat(mixed)
            y = norm(x, w[f"{at}post_attention_layernorm.weight"])
            if config["model_type"] == "mixtral":
                share = (w[f"{at}block_sparse_moe.gate.weight"] @ y).softmax(0)
                best = share.argsort(descending=True)[:2].tolist()
                for e in best:
                    one, two, three = (w[f"{at}block_sparse_moe.experts.{e}.w{i}.weight"] for i in (1, 2, 3))
                    x = x + share[e] / sum(share[b] for b in best) * (two @ (silu(one @ y) * (three @ y)))
            else:
                gate, up, down = (w[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
                x = x + down @ (silu(gate @ y) * (up @ y))
            stream[place] = x
    head = w.get("lm_head.weight", w["model.embed_tokens.weight"])
    return torch.stack([head @ norm(x, w["model.norm.weight"]) for x in stream]).float()


def agree(config, model, files=3):
    found = tensors(config)
    transformer = build(SMALL | model)
    load_huggingface(transformer, written(config, found, files), device="cpu")
    wanted = reference(config, found, TOKENS[0].tolist())
    worst = (transformer(TOKENS)[0, :, :61] - wanted).abs().max().item()
    assert worst < 2e-4 < wanted.abs().max(), worst
    return transformer, found


def refused(config, found, model, *words):
    try:
        load_huggingface(build(SMALL | model), written(config, found), device="cpu")
    except WeightsError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError("was accepted")


def check_llama_gives_the_references_logits():
    agree(CONFIG, {})
    agree(CONFIG, {}, files=1)


def check_qwen2_with_its_biases_gives_the_references_logits():
    agree(CONFIG | {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, {"bias": ["qkv"]})


def check_qwen3_with_its_query_and_key_norms_gives_the_references_logits():
    agree(CONFIG | {"model_type": "qwen3", "head_dim": 8}, {"qk_norm": "head"})


def check_mixtral_with_its_experts_gives_the_references_logits():
    agree(CONFIG | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}, {"moe": MIXTURE})


def check_tied_and_padded_embeddings_give_the_references_logits():
    tied = CONFIG | {"tie_word_embeddings": True}
    transformer, _ = agree(tied, {"tied_embeddings": True, "vocab_padded_to": 64})
    assert transformer(TOKENS).shape[-1] == 64 and (transformer.embed.weight[61:] == 0).all()
    agree(tied, {"tied_embeddings": False})  # the head starts as the embedding and goes its own way


def check_stages_load_their_own_part_and_give_the_same_logits():
    tied = CONFIG | {"tie_word_embeddings": True}
    found = tensors(tied)
    folder = written(tied, found, files=8)
    (folder / "model-00001-of-00008.safetensors").rename(folder / "gone")  # holds tensors of one stage only
    places = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    gone = {name for name, file in places.items() if file.startswith("model-00001")}
    model, errors, x = SMALL | {"tied_embeddings": True}, [], TOKENS
    for parts in ({"layers": [0], "last": False}, {"layers": [1], "first": False}):
        stage = build(model, **parts)
        try:
            load_huggingface(stage, folder, device="cpu")
        except WeightsError as error:
            errors.append(str(error))
    needs = {n.split(".")[2] for n in gone if n.startswith("model.layers.")} | (
        {"0", "1"} if "model.embed_tokens.weight" in gone else set()
    )
    assert len(errors) == len(needs) and all("model-00001" in e for e in errors), (gone, errors)
    (folder / "gone").rename(folder / "model-00001-of-00008.safetensors")
    for parts in ({"layers": [0], "last": False}, {"layers": [1], "first": False}):
        stage = build(model, **parts)
        load_huggingface(stage, folder, device="cpu")
        x = stage(x)
    worst = (x[0] - reference(tied, found, TOKENS[0].tolist())).abs().max()
    assert worst < 2e-4, worst


def check_weights_take_the_models_dtype():
    transformer = build(SMALL).bfloat16()
    found = tensors(CONFIG)
    load_huggingface(transformer, written(CONFIG, {n: t.half() for n, t in found.items()}), device="cpu")
    assert transformer.embed.weight.dtype == torch.bfloat16
    assert torch.equal(transformer.embed.weight, found["model.embed_tokens.weight"].half().bfloat16())


def check_a_sharded_parameter_keeps_its_part():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    found = tensors(CONFIG)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        transformer = build(SMALL)
        fully_shard(transformer, mesh=init_device_mesh("cpu", (2,)))
        load_huggingface(transformer, written(CONFIG, found), device="cpu")
        assert torch.equal(transformer.embed.weight.to_local(), found["model.embed_tokens.weight"][31:])
        part = transformer.layers["1"].mlp.down.weight.to_local()
        assert torch.equal(part, found["model.layers.1.mlp.down_proj.weight"][16:])
    finally:
        dist.destroy_process_group()


def check_llama3_scaling_keeps_short_waves_and_stretches_long_ones():
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope["original_max_position_embeddings"] = 1000
    transformer = build(SMALL)
    read_config(transformer, written(CONFIG | {"rope_scaling": rope}, tensors(CONFIG)))
    waves = torch.tensor([100.0, 249.0, 400.0, 1001.0])  # kept below 1000 / 4, stretched eightfold above 1000 / 1
    got = 2 * math.pi / transformer.scaling(2 * math.pi / waves)
    # 400 fits 2.5 times: (2.5 - 1) / 3 = half of the frequency is kept, half divided by 8: 1 / (1/800 + 1/6400)
    wanted = torch.tensor([100.0, 249.0, 1 / (1 / 800 + 1 / 6400), 8008.0])
    assert torch.allclose(got, wanted, rtol=1e-4), got
    assert transformer.theta == 500.0


def check_newer_config_files_are_read():
    config = {k: v for k, v in CONFIG.items() if k != "rope_theta"} | {
        "rope_parameters": {"rope_theta": 77.0, "rope_type": "default"}
    }
    transformer = build(SMALL)
    read_config(transformer, written(config, tensors(CONFIG)))
    assert transformer.theta == 77.0 and transformer.norm.eps == 0.01 and transformer.scaling is None


def check_what_does_not_fit_is_refused_by_name():
    found = tensors(CONFIG)
    less = {n: t for n, t in found.items() if n != "model.layers.1.self_attn.k_proj.weight"}
    refused(CONFIG, less, {}, "model.layers.1.self_attn.k_proj.weight", "layers.1.attention.k.weight")
    refused(CONFIG, found, {"ffn_hidden": 64}, "mlp.gate_proj.weight", "[48, 32]", "[64, 32]")
    refused(CONFIG, found, {"vocab": 50}, "embed_tokens", "[61, 32]", "[50, 32]")
    refused(CONFIG, found, {"heads": 2, "kv_heads": 1, "head_dim": 16}, "num_attention_heads=4", "model.heads=2")
    refused(CONFIG | {"model_type": "gpt2"}, found, {}, "gpt2", "llama")
    refused(CONFIG | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, found, {}, "yarn", "llama3")
    refused(CONFIG, found, {"positions": "alibi"}, "model.positions=rotary", "alibi")
    refused(CONFIG, found, {"tied_embeddings": True}, "tie_word_embeddings", "model.tied_embeddings")
    refused(CONFIG | {"sliding_window": 8}, found, {}, "sliding_window=8", "model.window")
    biased = CONFIG | {"model_type": "qwen2"}
    refused(biased, tensors(biased), {}, "_proj.bias", "no place")
    try:
        load_huggingface(build(SMALL), Path(SCRATCH) / "nowhere", device="cpu")
    except WeightsError as error:
        assert "config.json" in str(error)
    else:
        raise AssertionError("was accepted")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as SCRATCH:
        run_checks(globals())
