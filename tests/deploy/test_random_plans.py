"""Plans of random clusters, on every framework and launcher: what is written holds together."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.frameworks import deepspeed
from crosszone.deploy.launchers import LAUNCHERS, load_launcher
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import InputError
from crosszone.inputs.scenario import load_scenario, read_scenario
from crosszone.plan.plan import apply_plan
from crosszone.plan.planner import plan
from deploy import megatron_plans
from deploy.plans import FRAMEWORKS, random_plans, random_scenario
from deploy.test_deepspeed import asked
from effort import amount, mostly_long

pytestmark = [pytest.mark.slow, pytest.mark.scaled]
EACH = amount(usual=16, long=60)
HERE = Path(__file__).parent
SETTINGS = LaunchSettings(image="registry.example.org/train:1", steps=100)


@pytest.fixture(scope="module", params=FRAMEWORKS)
def bundles(request):
    """Bundles of some plans of a framework, the launchers in turn; and how many were refused, by reason."""
    made, refused = [], Counter()
    for number, scenario in enumerate(random_plans(request.param, EACH)):
        launcher = LAUNCHERS[number % len(LAUNCHERS)]
        try:
            made.append(build_bundle(read_scenario(scenario.to_fields()), launcher=launcher, settings=SETTINGS))
        except InputError as error:
            # PyTorchJob cannot place unequal nodes or zones; horovodrun must know addresses, which pods have not yet.
            if launcher == "pytorchjob" or error.notices[0].code == "framework_no_address":
                made.append(build_bundle(read_scenario(scenario.to_fields()), launcher="ssh", settings=SETTINGS))
            else:
                refused[error.notices[0].code] += 1
    return made, refused


def test_what_the_planner_finds_can_be_deployed(bundles):
    """But for updates in fp8 where a replica is split, which torchft cannot and the trainer's own averaging does not, and
    for experts over ranks in an order that Megatron-LM has not.
    """
    made, refused = bundles
    assert set(refused) <= {"averaging_dtype", "megatron_expert_order"}
    assert len(made) + sum(refused.values()) == EACH
    assert len(made) >= EACH - amount(usual=2, long=8)


def test_ranks_are_a_permutation_and_every_gpu_is_used_once(bundles):
    for bundle in bundles[0]:
        nodes = json.loads(bundle.get_text("nodes.json"))
        ranks, gpus = [], []
        for node in nodes:
            for agent in node["agents"]:
                ranks += range(agent["first_rank"], agent["first_rank"] + len(agent["gpus"]))
                gpus += [(node["name"], node["address"], gpu) for gpu in agent["gpus"]]
                assert max(agent["gpus"]) < node["gpus"]
        assert sorted(ranks) == list(range(bundle.world_size))
        assert len(set(gpus)) == bundle.world_size


def test_the_batch_is_shared_out_whole(bundles):
    for bundle in bundles[0]:
        told = json.loads(bundle.get_text("settings.json"))
        s = told["strategy"]
        assert s["tp"] * s["pp"] * s["dp"] * s["cp"] == bundle.world_size == len(told["zone_of_rank"])
        assert sum(s["replica_micro_batches"]) * s["micro_batch"] == told["job"]["global_batch"]
        assert sum(s["chunk_layers"]) == told["model"]["layers"]


def test_every_node_has_its_own_address_and_interface(bundles):
    for bundle in bundles[0]:
        addresses = [node.address for node in bundle.nodes]
        if None in addresses:  # a launcher that places nodes as it likes
            assert set(addresses) == {None}
            assert not load_launcher(bundle.launcher).needs_addresses
            continue
        assert len(set(addresses)) == len(addresses)
        for node in bundle.nodes:
            script = bundle.get_text(node.script)
            assert f"address={node.address} interface={node.interface}\n" in script
            own = int(node.address.rsplit(".", 1)[1]) - 1
            assert node.interface == ("eth0" if bundle.framework == "horovod" else f"eth{own}")


def test_every_script_is_sound(bundles, tmp_path):
    scripts = {one.text: one for bundle in bundles[0] for one in bundle.files if one.path.endswith((".sh", ".sbatch"))}
    paths = []
    for number, one in enumerate(scripts.values()):
        path = tmp_path / f"{number}-{one.path.replace('/', '-')}"
        path.write_text(one.text, encoding="utf-8")
        paths.append(str(path))
    for path in paths:
        subprocess.run(["bash", "-n", path], check=True)


@pytest.mark.framework
@pytest.mark.parametrize("bundles", mostly_long(FRAMEWORKS, "megatron"), indirect=True)
def test_shellcheck_finds_nothing(bundles, tmp_path):
    """One script of each kind and bundle; those of nodes differ in numbers only."""
    folders = []
    for number, bundle in enumerate(bundles[0][:20]):
        bundle.write(tmp_path / str(number))
        folders += [str(tmp_path / str(number) / one.path) for one in bundle.files
                    if one.path.endswith((".sh", ".sbatch")) and one.path not in {n.script for n in bundle.nodes[1:]}]  # fmt: skip
    done = subprocess.run(["shellcheck", "-S", "warning", *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[:4000]


def in_sets(within):
    """Bundles of DeepSpeed plans whose states are shared inside zones or nodes (MiCS), where that can be."""
    for seed in range(1, amount(usual=9, long=25)):
        fields = random_scenario(seed, "deepspeed").to_fields()
        asked_for = fields.get("strategy", {}) | {"zero": 3, "shard_within": within, "offload": "none"}
        pinned = load_scenario(fields | {"strategy": asked_for})
        try:
            found = apply_plan(pinned, plan(pinned, top=1).plans[0])
            yield build_bundle(read_scenario(found.to_fields()), launcher="slurm", settings=SETTINGS)
        except InputError as error:
            assert error.notices[0].code in ("nothing_fits", "zones_unequal", "deepspeed_mics_ranks")


@pytest.mark.framework
@pytest.mark.parametrize("bundles", ["deepspeed"], indirect=True)
def test_deepspeed_accepts_every_configuration(bundles, train_python):
    questions, expected, needed = [], [], Counter()
    for bundle in (*bundles[0], *in_sets("zone"), *in_sets("node")):
        config, told = json.loads(bundle.get_text("ds_config.json")), json.loads(bundle.get_text("settings.json"))
        s, batch = told["strategy"], told["job"]["global_batch"]
        deepspeed.check_keys(config)
        needed[told["requires"].get("deepspeed")] += 1
        questions.append(["config", config, bundle.world_size, s["dp"]])
        expected.append({"batch": [batch, s["micro_batch"], s["micro_batches"]], "world": s["dp"], "stage": s["zero"]})
    assert asked(train_python, *questions) == expected
    assert needed["<0.19.7"] >= amount(usual=1, long=5)


@pytest.mark.framework
@pytest.mark.parametrize("bundles", mostly_long(FRAMEWORKS, "ddp"), indirect=True)
def test_schedulers_read_every_job(bundles, check_python, tmp_path):
    """Kubernetes' schema (strict), Kubeflow's models with a round trip, SkyPilot's own parser."""
    for number, bundle in enumerate(bundles[0]):
        if bundle.launcher in ("kubernetes", "pytorchjob", "skypilot"):
            bundle.write(tmp_path / str(number))
    command = [check_python, HERE / "launcher_checks.py", "folder", tmp_path]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"HOME": str(tmp_path)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(done.stdout.splitlines()[-1])
    assert bundles[0][0].framework in ("horovod", "torchft") or min(
        counted["kubernetes"], counted["skypilot"]
    ) >= amount(usual=1, long=4)


@pytest.mark.parametrize("bundles", ["megatron"], indirect=True)
def test_megatron_has_every_flag(bundles):
    flags = megatron_plans.known()["flags"]
    for bundle in bundles[0]:
        for file in ("megatron.args", "megatron-tiny.args"):
            for flag, values in megatron_plans.read(megatron_plans.words(bundle.get_text(file))).items():
                takes, choices, _ = flags[flag]
                assert {"none": 0, "one": 1}.get(takes, len(values) or 1) == len(values), flag
                assert not choices or set(values) <= set(map(str, choices)), flag
