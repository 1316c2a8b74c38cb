"""The shipped model: it has the parameters that are counted, and computes what its architecture says.

The checks themselves run in the training environment, one process a file, and are named there; here each is a test.
"""

from __future__ import annotations

import ast
import json
import random
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.model import Mla, Model, Moe, Window
from crosszone.inputs.parameters import parameters

pytestmark = pytest.mark.framework

HERE = Path(__file__).parent / "trainer_checks"
MIXES = 150
TRAINER = Path(__file__).parents[2] / "src" / "crosszone" / "deploy" / "trainer"


def checks(file: str) -> list[str]:
    """Names of the checks in a file."""
    tree = ast.parse((HERE / file).read_text("utf-8"))
    return [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("check_")]


@cache
def results(python: Path, file: str) -> dict[str, str | None]:
    """What each check of a file found; the file runs once."""
    return json.loads(run(python, file).stdout)


def run(python: Path, file: str, text: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(python), str(HERE / file), str(TRAINER)],
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done


@cache
def counted(python: Path) -> list[tuple[str, int, int]]:
    """Name, parameters of the module that the trainer builds, parameters by formula: the catalogue, then mixes."""
    models = [catalogue().model(entry.name) for entry in catalogue().entries("models")]
    models += [any_model(random.Random(seed)) for seed in range(MIXES)]
    lines = "\n".join(json.dumps(plain(model)) for model in models)
    built = map(int, run(python, "count_parameters.py", lines).stdout.split())
    return [(model.name, count, parameters(model).total) for model, count in zip(models, built, strict=True)]


def plain(model: Model) -> dict[str, Any]:
    """The model as settings.json has it: every field."""
    return model.model_dump(mode="json")


@pytest.mark.parametrize("name", checks("model_checks.py"))
def test_model(name: str, train_python: Path) -> None:
    found = results(train_python, "model_checks.py")[name]
    assert found is None, found


@pytest.mark.parametrize("name", checks("start_checks.py"))
def test_start(name: str, train_python: Path) -> None:
    found = results(train_python, "start_checks.py")[name]
    assert found is None, found


@pytest.mark.parametrize("name", checks("huggingface_checks.py"))
def test_huggingface(name: str, train_python: Path) -> None:
    found = results(train_python, "huggingface_checks.py")[name]
    assert found is None, found


@pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="no NVIDIA GPU here")
@pytest.mark.parametrize("name", checks("cuda_checks.py"))
def test_model_on_a_gpu(name: str, train_python: Path) -> None:
    found = results(train_python, "cuda_checks.py")[name]
    assert found is None, found


def test_every_model_of_the_catalogue_has_exactly_the_parameters_that_are_counted(train_python: Path) -> None:
    """But for hybrids, which bundles do not train."""
    hybrids = {entry.name for entry in catalogue().entries("models") if catalogue().model(entry.name).pattern}
    found = [entry for entry in counted(train_python)[:-MIXES] if entry[0] not in hybrids]
    assert len(found) >= 176
    assert [name for name, built, formula in found if built != formula] == []


def test_any_mix_of_features_has_exactly_the_parameters_that_are_counted(train_python: Path) -> None:
    found = counted(train_python)[-MIXES:]
    assert [name for name, built, formula in found if built != formula] == []


def any_model(draw: random.Random) -> Model:
    """A small architecture with features mixed at random, also such as nobody has built."""

    def some(chance: float = 0.3) -> bool:
        return draw.random() < chance

    layers, heads = draw.randint(1, 5), draw.choice([2, 4, 6])
    experts = draw.randint(2, 6)
    moe = Moe(
        experts=experts,
        top_k=draw.randint(1, experts),
        ffn_hidden=draw.randint(3, 20),
        shared_experts=draw.randint(0, 2),
        shared_ffn_hidden=draw.randint(3, 20),
        shared_gate=some(),
        first_dense=draw.randint(0, layers - 1),
        every=1,
    )
    mla = Mla(q_lora_rank=draw.choice([None, 5]), kv_lora_rank=7, qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=3)
    vocab = draw.randint(20, 50)
    return Model(
        name=f"mix {draw.random()}",
        kind=draw.choice(["decoder", "encoder"]),
        layers=layers,
        hidden=24,
        heads=heads,
        kv_heads=draw.choice([1, 2, heads]),
        head_dim=draw.choice([4, 10]),
        ffn_hidden=draw.randint(3, 40),
        vocab=vocab,
        vocab_padded_to=vocab + draw.randint(0, 9) if some() else None,
        max_seq_len=16,
        activation=draw.choice(["gelu", "relu", "squared-relu", "silu", "swiglu", "geglu", "reglu"]),
        positions=draw.choice(["rotary", "learned", "alibi", "none"]),
        norm=draw.choice(["rmsnorm", "layernorm", "layernorm-no-bias"]),
        norms_per_layer=draw.randint(0, 8),
        final_norm=some(0.7),
        embedding_norm=some(),
        qk_norm=draw.choice(["none", "head", "full"]),
        bias=tuple(kind for kind in ("qkv", "out", "mlp", "head", "router") if some(0.5)),
        tied_embeddings=some(0.5),
        embedding_width=draw.choice([24, 24, 12]),
        mla=mla if some() else None,
        window=Window(tokens=3, full_every=draw.choice([None, 2])) if some() else None,
        moe=moe if some(0.5) else None,
        attention_sinks=some(),
        parallel_residual=some(),
        token_types=draw.choice([0, 2]),
        pooler=some(),
        mlm_head=some(),
    )
