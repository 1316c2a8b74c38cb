"""Fine-tuning: a bundle begins with published weights, the same ones however the model is split."""

from __future__ import annotations

import json
import subprocess

import pytest

from deploy.conftest import scenario
from deploy.starting import measured_losses, train

pytestmark = [pytest.mark.framework, pytest.mark.long]
MODEL = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn_hidden": 48, "vocab": 61}
MAKE = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import save_file
folder = Path(sys.argv[1]); folder.mkdir()
config = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 61, "intermediate_size": 48, "rope_theta": 500.0,
          "rms_norm_eps": 0.01, "hidden_act": "silu"}
(folder / "config.json").write_text(json.dumps(config))
made = torch.Generator().manual_seed(4)
def some(*shape, around=0.0): return around + 0.3 * torch.randn(*shape, generator=made)
found = {"model.embed_tokens.weight": some(61, 32), "model.norm.weight": some(32, around=1), "lm_head.weight": some(61, 32)}
for layer in range(2):
    at = f"model.layers.{layer}."
    for name, rows, columns in (("q", 32, 32), ("k", 16, 32), ("v", 16, 32), ("o", 32, 32)):
        found[f"{at}self_attn.{name}_proj.weight"] = some(rows, columns)
    for name in ("input_layernorm", "post_attention_layernorm"):
        found[f"{at}{name}.weight"] = some(32, around=1)
    for name, rows, columns in (("gate", 48, 32), ("up", 48, 32), ("down", 32, 48)):
        found[f"{at}mlp.{name}_proj.weight"] = some(rows, columns)
save_file(found, folder / "model.safetensors")
"""
WAYS = {
    "ddp": ("ddp", {"dp": 2}),
    "fsdp": ("fsdp", {"dp": 2, "zero": 3}),
    "tensor": ("fsdp", {"tp": 2, "dp": 1}),
    "pipeline": ("fsdp", {"pp": 2, "dp": 1}),
    "deepspeed": ("deepspeed", {"dp": 2, "zero": 3}),
}


def test_every_way_of_splitting_begins_with_the_same_published_weights(deploy, train_python, tmp_path):
    weights = tmp_path / "weights"
    subprocess.run([train_python, "-c", MAKE, weights], check=True)
    found = {}
    for name, (framework, strategy) in WAYS.items():
        job = {"seq_len": 32, "global_batch": 4, "precision": "fp32", "framework": framework}
        fields = scenario(model=MODEL, job=job, strategy={"micro_batch": 1, **strategy})
        more = ("--framework", framework, "--set", f"init_from={weights}", "--set", "training.warmup_steps=0")
        folder = deploy(fields, *more)
        assert json.loads((folder / "settings.json").read_text())["data"]["init_from"] == str(weights)
        train(folder, train_python, "--steps", "2", tiny=False)
        again = train(folder, train_python, "--steps", "3", tiny=False)  # goes on, with the weights it has
        assert "step 3" in again.output
        found[name] = measured_losses(folder)
    for name in WAYS:
        assert found[name] == pytest.approx(found["ddp"], rel=1e-4), name
    assert found["ddp"][1] > 1.2 * 4.11  # weights this wild are worse than ln 61: those of a fresh start are not
