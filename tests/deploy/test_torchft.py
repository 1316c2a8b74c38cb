"""torchft: what zones and the lighthouse are told, what is refused, and a real run of two zones on CPUs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import ROOT
from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import InputError
from crosszone.inputs.scenario import read_scenario
from deploy.conftest import scenario
from deploy.settings_example import write_settings
from deploy.test_horovod import free_port, losses

TRAINER = ROOT / "src" / "crosszone" / "deploy" / "trainer"
LOCAL = {"steps": 8, "fragments": 2, "delay": 1}


def plan(local=None, *, zones=2, gpus=2, precision="bf16", model=None, framework="ddp", **strategy):
    """A scenario with local updates on whole replicas."""
    how = {"dp": zones * gpus, "local_update": {**LOCAL, **(local or {})}, **strategy}
    job = {"global_batch": 8 * zones, "precision": precision, "framework": framework}
    return scenario(zones=zones, gpus=gpus, job=job, model=model, strategy=how)


def bundle(fields, **settings):
    return build_bundle(read_scenario(fields), framework="torchft", settings=LaunchSettings(**settings))


def refusal(fields) -> str:
    """What is said when it is refused."""
    with pytest.raises(InputError) as error:
        bundle(fields)
    return str(error.value)


def words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


def after(said: list[str], flag: str) -> str:
    return said[said.index(flag) + 1]


def test_each_zone_is_a_job_of_its_own():
    fields = plan(zones=3, gpus=2)
    made = bundle(fields, port=29400)
    for number, node in enumerate(made.nodes):
        (command,) = map(words, node.commands)
        assert f"REPLICA_GROUP_ID={number}" in command
        assert after(command, "--nnodes") == "1"
        assert after(command, "--node-rank") == "0"
        assert after(command, "--nproc-per-node") == "2"
        # Never --standalone: other zones reach the job's store by this address.
        assert after(command, "--master-addr") == f"127.0.0.{number + 1}"
        assert after(command, "--master-port") == str(29400 + number)
        assert command[-3:] == ["train.py", "settings.json", "$@"]


def test_nodes_of_a_zone_join_at_its_first_node():
    fields = plan(zones=2, gpus=2, dp=8)
    for at, zone in enumerate(fields["cluster"]["zones"]):
        hosts = [{"address": f"10.0.{at}.{number}"} for number in (1, 2)]
        zone["nodes"] = [{**zone["nodes"][0], "count": 2, "hosts": hosts}]
    said = [words(node.commands[0]) for node in bundle(fields).nodes]
    assert [after(one, "--master-addr") for one in said] == ["10.0.0.1"] * 2 + ["10.0.1.1"] * 2
    assert [after(one, "--node-rank") for one in said] == ["0", "1", "0", "1"]
    assert {after(one, "--nnodes") for one in said} == {"2"}


def test_the_first_node_runs_the_lighthouse():
    made = bundle(plan(zones=3))
    script = made.get_text("lighthouse.sh")
    assert "torchft_lighthouse --bind '[::]:29510' --min_replicas 3 &" in script
    starts = [words(node.commands[0])[:2] == ["bash", "lighthouse.sh"] for node in made.nodes]
    assert starts == [True, False, False]
    assert "export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510" in made.get_text("env.sh")


def test_every_option_of_the_averaging_lands():
    told = {one.name: one.value for one in bundle(plan({"dtype": "fp8"})).options}
    assert told["DiLoCo(sync_every)"] == 8
    assert told["DiLoCo(model_fragments)"] == 2
    assert told["DiLoCo(fragment_sync_delay)"] == 1
    assert told["DiLoCo(should_quantize)"] is True
    # A bucket is one dimension, of which torchft makes rows of one number with a scale each: 8 bytes for 4.
    assert told["DiLoCo(use_bucketization)"] is False


def test_sharding_inside_a_zone_is_fsdp():
    told = {one.name: one.value for one in bundle(plan(framework="fsdp", zero=3)).options}
    assert told["fully_shard(reshard_after_forward)"] is True
    assert "DistributedDataParallel(bucket_cap_mb)" not in told


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (plan({"delay": 4}), "delay=4"),  # 8 steps in 2 fragments: one every 4, so at most 3
        (plan({"fragments": 8, "delay": 0}), "the model has 4"),
        (plan({"dtype": "bf16"}), "fp32, fp8, int8"),
        (plan({"dtype": "fp32"}, precision="bf16-pure"), "bf16, fp8, int8"),
        (plan({"dtype": "int4"}), "--framework fsdp"),
        (plan(precision="fp16"), "loss scaler"),
        (plan(framework="fsdp", tp=2, dp=2), "--framework fsdp"),
        (plan(framework="fsdp", offload="optimizer+weights"), "host memory"),
        (plan(replica_micro_batches=[4, 4, 3, 5], micro_batch=1), None),  # uneven inside the zones only
        (plan(replica_micro_batches=[5, 5, 3, 3], micro_batch=1), "a 10, b 6"),
        (plan(communication={"compression": "powersgd", "compression_rank": 2}), "powersgd"),
        (scenario(zones=2, gpus=2, strategy={"dp": 4}), "local updates"),
    ],
)
def test_what_torchft_cannot_do_is_refused(fields, says):
    if says is None:
        bundle(fields)
    else:
        assert says in refusal(fields)


def test_experts_are_not_quantised():
    model = {"layers": 4, "hidden": 256, "heads": 4, "ffn_hidden": 688, "vocab": 1000}
    model["moe"] = {"experts": 4, "top_k": 2, "ffn_hidden": 256}
    assert "matrices only" in refusal(plan({"dtype": "fp8"}, model=model))
    bundle(plan({"dtype": "fp32"}, model=model))


# ---- real runs ----


@contextlib.contextmanager
def lighthouse(python: Path, zones: int) -> Iterator[str]:
    """A lighthouse on a free port; its address."""
    port = free_port()
    flags = ["--bind", f"127.0.0.1:{port}", "--min_replicas", str(zones)]
    program = subprocess.Popen(
        [str(python.with_name("torchft_lighthouse")), *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        program.kill()
        program.wait()


def zone_job(python: Path, address: str, settings: Path, number: int, ranks: int, *arguments: str) -> subprocess.Popen:
    """The torchrun of one zone, as a bundle starts it."""
    own = {"TORCHFT_LIGHTHOUSE": address, "REPLICA_GROUP_ID": str(number), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [
            *(str(python), "-m", "torch.distributed.run", "--nnodes", "1", "--node-rank", "0"),
            *("--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(free_port())),
            *(str(TRAINER / "train_torchft.py"), str(settings), "--device", "cpu", "--tiny"),
            *("--out", str(settings.parent / "out"), *arguments),
        ],
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def trained(python: Path, settings: Path, *arguments: str, ranks: int = 1) -> list[str]:
    """What the first rank of each of two zones prints."""
    with lighthouse(python, 2) as address:
        zones = [zone_job(python, address, settings, number, ranks, *arguments) for number in range(2)]
        said = [one.communicate(timeout=300)[0] for one in zones]
    assert [one.returncode for one in zones] == [0, 0], "\n".join(said)
    return said


WEIGHTS = """
import json, sys, torch
found = [torch.load(path, map_location="cpu", weights_only=True) for path in sys.argv[1:]]
one, other = (state["model"] for state in found)
print(json.dumps(max(float((one[name] - other[name]).abs().max()) for name in one)))
"""


def difference(python: Path, settings: Path, step: int) -> float:
    """The largest difference of a weight between the checkpoints of two zones."""
    out = settings.parent / "out"
    paths = [folder / "checkpoints" / f"step-{step:08d}" / "copy-0.pt" for folder in (out, out / "zone-1")]
    done = subprocess.run([str(python), "-c", WEIGHTS, *map(str, paths)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.framework
def test_two_zones_learn_and_are_equal_after_an_averaging(train_python, tmp_path):
    local = {"steps": 2, "fragments": 1, "delay": 0, "dtype": "fp32"}
    settings = write_settings(tmp_path, framework="torchft", strategy={"local_update": local})
    said = trained(train_python, settings, "--steps", "5", "--checkpoint-every", "4")
    for zone in said:
        found = losses(zone)
        assert len(found) == 5
        assert found[-1] < found[0] - 0.3
    assert difference(train_python, settings, 4) == 0.0  # averaged after steps 2 and 4
    assert difference(train_python, settings, 5) > 0.0  # one step on its own
    rows = (tmp_path / "out" / "metrics-stage-0.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(row)["step"] for row in rows[1:]] == [1, 2, 3, 4, 5]


@pytest.mark.framework
@pytest.mark.long
def test_sharded_zones_with_fragments_under_way_go_on_after_a_stop(train_python, tmp_path):
    """Two ranks a zone with FSDP2; fragments are sent one step before they are used."""
    strategy = {
        "dp": 4,
        "replica_micro_batches": [2] * 4,
        "zero": 3,
        "shard_ranks": 2,
        "local_update": {"steps": 4, "fragments": 2, "delay": 1, "dtype": "fp32"},
    }
    fields = {"framework": "torchft", "job": {"global_batch": 16}, "strategy": strategy}
    places = {"zone_of_rank": [0, 0, 1, 1], "node_of_rank": [0, 0, 1, 1]}
    settings = write_settings(tmp_path, **fields, **places)
    whole = [
        losses(zone) for zone in trained(train_python, settings, "--steps", "6", "--checkpoint-every", "4", ranks=2)
    ]
    # Step 6 gone: they go on from step 4, where an averaging had just ended.
    for folder in (tmp_path / "out", tmp_path / "out" / "zone-1"):
        (folder / "checkpoints" / "step-00000006").rename(folder / "set-aside")
    again = trained(train_python, settings, "--steps", "6", ranks=2)
    for zone, before in zip(again, whole, strict=True):
        assert "resumed after step 4" in zone
        assert losses(zone) == pytest.approx(before[4:], abs=2e-4)


@pytest.mark.framework
@pytest.mark.long
def test_a_zone_that_was_lost_gets_the_state_of_the_others(train_python, tmp_path):
    local = {"steps": 2, "fragments": 1, "delay": 0, "dtype": "fp32"}
    settings = write_settings(tmp_path, framework="torchft", strategy={"local_update": local})
    arguments = ("--steps", "40", "--checkpoint-every", "0")
    with lighthouse(train_python, 2) as address:
        kept, lost = (zone_job(train_python, address, settings, number, 1, *arguments) for number in range(2))
        for line in lost.stdout:
            if line.startswith("step 6 "):
                break
        children = Path(f"/proc/{lost.pid}/task/{lost.pid}/children").read_text("ascii").split()
        lost.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), 9)
        lost.communicate()
        time.sleep(0.5)
        back = zone_job(train_python, address, settings, 1, 1, *arguments)
        said = [one.communicate(timeout=300)[0] for one in (kept, back)]
    assert [kept.returncode, back.returncode] == [0, 0], "\n".join(said)
    steps = [int(step) for step in re.findall(r"^step (\d+) ", said[1], re.MULTILINE)]
    assert steps[:2] == [1, 2]  # its own, before it met the other zone
    assert steps[2] >= 7  # then where the other one is
    assert difference(train_python, settings, 40) == 0.0
