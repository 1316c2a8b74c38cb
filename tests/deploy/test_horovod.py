"""Horovod: the command line it gets, what it cannot be told, and its trainer, run on a stand-in for Horovod."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT
from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import InputError
from crosszone.inputs.scenario import read_scenario
from deploy.conftest import scenario
from deploy.settings_example import write_settings

TRAINER = ROOT / "src" / "crosszone" / "deploy" / "trainer"

# Flags of horovodrun that a bundle may use, and whether each takes a value.
# Read in Horovod 0.28.1 (1d217b59949986d025f6db93c49943fb6b6cc78f), horovod/runner/launch.py, parse_args.
FLAGS = {
    "-np": True,
    "-H": True,
    "-p": True,
    "--gloo": False,
    "--gloo-timeout-seconds": True,
    "--start-timeout": True,
    "--network-interfaces": True,
    "--fusion-threshold-mb": True,
}


def bundle(fields, launcher="nodes", **settings):
    """The bundle of a scenario for Horovod."""
    return build_bundle(
        read_scenario(fields), framework="horovod", launcher=launcher, settings=LaunchSettings(**settings)
    )


def refusal(fields, launcher="nodes") -> str:
    """What is said when it is refused."""
    with pytest.raises(InputError) as error:
        bundle(fields, launcher)
    return str(error.value)


def flags_of(command: str) -> dict[str, str]:
    """The flags, checked against Horovod's; what follows them is the program."""
    first, *rest = shlex.split(command.replace("\\\n", " "))
    assert first == "horovodrun"
    found = {}
    while rest and rest[0].startswith("-"):
        name = rest.pop(0)
        assert name in FLAGS, f"{name} is not a flag of horovodrun 0.28.1"
        found[name] = rest.pop(0) if FLAGS[name] else ""
    assert rest == ["python3", "train.py", "settings.json", "$@"]
    return found


def test_one_horovodrun_on_the_first_node_starts_all_ranks():
    made = bundle(scenario(zones=2, gpus=2, job={"global_batch": 9}, strategy={"dp": 3}))
    (command,) = made.nodes[0].commands
    flags = flags_of(command)
    assert flags["-np"] == "3"
    assert flags["-H"] == "127.0.0.1:2,127.0.0.2:1"  # unequal slots, in rank order
    assert all(re.fullmatch(r"[\w.-]+:[0-9]+", host) for host in flags["-H"].split(","))  # hosts.py
    assert flags["--network-interfaces"] == "lo"
    assert made.nodes[1].commands == ()


def test_every_option_of_the_plan_lands():
    talk = {"bucket_mb": 64.0, "compression": "fp16", "overlap_gradients": False}
    made = bundle(
        scenario(zones=2, gpus=2, strategy={"dp": 4, "communication": talk, "recompute": "full"}), ssh_port=2222
    )
    flags = flags_of(made.nodes[0].commands[0])
    assert flags["--fusion-threshold-mb"] == "62"  # 64e6 / 2**20 = 61.04 MiB, whole ones only
    assert flags["-p"] == "2222"
    told = {one.name: one.value for one in made.options}
    assert told["DistributedOptimizer(compression)"] == "Compression.fp16"
    # 8 samples on 4 replicas are 2 micro-batches; one more, and no backward pass completes the count.
    assert told["DistributedOptimizer(backward_passes_per_step)"] == 3
    assert told["torch.utils.checkpoint"] == "full"


def test_the_interface_is_left_to_horovod_where_it_is_not_known():
    fields = scenario(zones=2, gpus=2, strategy={"dp": 4})
    del fields["cluster"]["zones"][1]["nodes"][0]["hosts"][0]["interface"]
    assert "--network-interfaces" not in flags_of(bundle(fields).nodes[0].commands[0])


def test_the_readme_says_that_horovod_must_be_built():
    assert "C++17" in bundle(scenario(zones=2, gpus=2, strategy={"dp": 4})).get_text("README.md")


@pytest.mark.parametrize("strategy", [{"tp": 2, "dp": 2}, {"pp": 2, "dp": 2}, {"dp": 4, "zero": 1}])
def test_only_data_parallelism(strategy):
    assert "Horovod" in refusal(scenario(zones=2, gpus=2, strategy=strategy))


def test_addresses_are_needed_whatever_the_launcher():
    fields = scenario(zones=2, gpus=2, strategy={"dp": 4}, hosts=False)
    assert "horovodrun needs the address" in refusal(fields, "slurm")


def test_interfaces_of_different_names_are_refused():
    fields = scenario(zones=2, gpus=2, strategy={"dp": 4})
    fields["cluster"]["zones"][1]["nodes"][0]["hosts"][0]["interface"] = "ens5"
    assert "ens5, lo" in refusal(fields)


def test_an_address_with_colons_is_refused():
    fields = scenario(zones=2, gpus=2, strategy={"dp": 4})
    fields["cluster"]["zones"][1]["nodes"][0]["hosts"][0]["address"] = "fd00::2"
    assert "fd00::2" in refusal(fields)


def test_a_node_that_does_not_use_its_first_gpus_is_refused():
    fields = scenario(zones=2, gpus=4, strategy={"dp": 4})
    fields["placement"] = {"blocks": [{"zone": zone, "first": 2, "count": 2} for zone in "ab"]}
    assert "horovodrun gives a node one run of ranks" in refusal(fields)


# ---- the trainer, on a stand-in ----

STAND_IN = '''
"""A stand-in for Horovod's PyTorch part over torch.distributed: the calls, the order and the errors of 0.28.1."""

import contextlib
import os

import torch
import torch.distributed as dist

Average, Sum = "average", "sum"


def init():
    dist.init_process_group("gloo", rank=int(os.environ["HOROVOD_RANK"]), world_size=int(os.environ["HOROVOD_SIZE"]))


def rank():
    return dist.get_rank()


def size():
    return dist.get_world_size()


def local_rank():
    return int(os.environ["HOROVOD_LOCAL_RANK"])


def barrier():
    dist.barrier()


def shutdown():
    dist.destroy_process_group()


def allreduce(tensor, name=None, op=Average):
    assert name, "tensors are matched by name"
    made = tensor.clone()
    dist.all_reduce(made)
    return made / size() if op == Average else made


def broadcast_object(value, root_rank=0, name=None):
    held = [value]
    dist.broadcast_object_list(held, src=root_rank)
    return held[0]


def broadcast_parameters(params, root_rank):
    assert isinstance(params, dict | list), "invalid params"
    for _, one in sorted(params.items()) if isinstance(params, dict) else params:
        dist.broadcast(one.data, src=root_rank)


def broadcast_optimizer_state(optimizer, root_rank):
    """A rank without a state makes one by a step with gradients of 0, as Horovod does."""
    if not optimizer.state_dict()["state"]:
        for group in optimizer.param_groups:
            for one in group["params"]:
                one.grad = torch.zeros_like(one)
        super(type(optimizer), optimizer).step(None)
    for _, kept in sorted(optimizer.state_dict()["state"].items()):
        for key in sorted(kept):
            dist.broadcast(kept[key], src=root_rank)


class Compression:
    class none:
        dtype = None

    class fp16:
        dtype = torch.float16


class Distributed(torch.optim.Optimizer):
    def __init__(self, params, named, compression, passes):
        super(type(self), self).__init__(params)
        held = {id(one) for group in self.param_groups for one in group["params"]}
        assert held <= {id(one) for _, one in named}, "one or more model parameters were not named"
        self.named, self.compression, self.passes = named, compression, passes
        self.left = {one: passes for _, one in named}
        self.handles, self.reduced_in_backward, self.may_synchronize, self.synchronized = {}, 0, True, False
        for one in self.left:
            one.register_post_accumulate_grad_hook(self.counted)

    def counted(self, one):
        assert self.left[one] > 0, "gradients were computed more than backward_passes_per_step times before step()"
        self.left[one] -= 1
        if self.left[one] == 0:
            self.reduced_in_backward += 1
            self.handles[one] = self.begun(one)
        else:
            self.handles[one] = None

    def begun(self, one):
        wire = one.grad if self.compression.dtype is None else one.grad.to(self.compression.dtype)
        return wire, dist.all_reduce(wire, async_op=True)

    def synchronize(self):
        for one in self.left:
            wire, work = self.handles.get(one) or self.begun(one)
            work.wait()
            one.grad.copy_(wire / size())
            self.left[one] = self.passes
        self.handles.clear()
        self.synchronized = True

    @contextlib.contextmanager
    def skip_synchronize(self):
        self.may_synchronize = False
        yield
        self.may_synchronize = True

    def step(self, closure=None):
        if self.may_synchronize:
            assert not self.synchronized, "step() after synchronize() needs skip_synchronize()"
            self.synchronize()
        self.synchronized = False
        return super(type(self), self).step(closure)

    def zero_grad(self):
        assert not self.handles, "zero_grad() before step() or synchronize()"
        return super(type(self), self).zero_grad()


def DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none, backward_passes_per_step=1,
                         op=Average, gradient_predivide_factor=1.0):
    assert backward_passes_per_step > 0 and op == Average
    kind = type(optimizer)
    made = type(kind.__name__, (kind,), dict(Distributed.__dict__))
    made = made(optimizer.param_groups, list(named_parameters), compression, backward_passes_per_step)
    print("PASSES", backward_passes_per_step, compression.__name__, flush=True)
    return made
'''


@pytest.fixture
def stand_in(tmp_path) -> Path:
    folder = tmp_path / "packages"
    (folder / "horovod" / "torch").mkdir(parents=True)
    (folder / "horovod" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "horovod" / "torch" / "__init__.py").write_text(STAND_IN, encoding="utf-8")
    return folder


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def trained(python: Path, packages: Path, settings: Path, *arguments: str) -> list[str]:
    """What each of two ranks prints."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "HOROVOD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    shared["PYTHONPATH"] = f"{packages}{os.pathsep}{TRAINER}"
    command = [str(python), str(TRAINER / "train_horovod.py"), str(settings), "--device", "cpu", *arguments]
    ranks = [
        subprocess.Popen(
            [*command, "--out", str(settings.parent / "out" / str(rank))],  # no shared file system
            env={**os.environ, **shared, "HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [one.communicate(timeout=240)[0] for one in ranks]
    assert [one.returncode for one in ranks] == [0, 0], "\n".join(said)
    return said


def losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^step \d+  loss ([\d.]+)", said, re.MULTILINE)]


@pytest.mark.long
@pytest.mark.framework
def test_five_steps_on_two_ranks_learn_and_go_on_after_a_stop(train_python, stand_in, tmp_path):
    settings = write_settings(tmp_path, framework="horovod")
    whole = losses(trained(train_python, stand_in, settings, "--tiny", "--steps", "5")[0])
    assert len(whole) == 5
    assert whole[-1] < whole[0] - 0.3
    (tmp_path / "again").mkdir()
    again = write_settings(tmp_path / "again", framework="horovod")
    first = trained(train_python, stand_in, again, "--tiny", "--steps", "3")[0]
    rest = trained(train_python, stand_in, again, "--tiny", "--steps", "5")[0]
    assert "going on after step 3" in rest
    assert [*losses(first), *losses(rest)] == pytest.approx(whole, abs=2e-4)
    rows = (settings.parent / "out" / "0" / "metrics-stage-0.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(row)["step"] for row in rows[1:]] == [1, 2, 3, 4, 5]


@pytest.mark.long
@pytest.mark.framework
@pytest.mark.parametrize("optimizer", ["lamb", "muon"])
def test_optimizers_that_are_not_torchs_or_several_are_wrapped_too(train_python, stand_in, tmp_path, optimizer):
    """Horovod makes an optimizer of the same class from parameter groups alone, which LAMB's own class does not allow."""
    settings = write_settings(tmp_path, framework="horovod", job={"optimizer": optimizer})
    found = losses(trained(train_python, stand_in, settings, "--tiny", "--steps", "4")[0])
    assert found[-1] < found[0]


@pytest.mark.long
@pytest.mark.framework
def test_compression_and_late_reduction_reach_the_optimizer(train_python, stand_in, tmp_path):
    talk = {"compression": "fp16", "overlap_gradients": False}
    settings = write_settings(tmp_path, framework="horovod", strategy={"communication": talk})
    said = trained(train_python, stand_in, settings, "--tiny", "--steps", "2")[0]
    assert "PASSES 3 fp16" in said  # two micro-batches, so that no backward pass completes the count


@pytest.mark.framework
def test_without_horovod_one_line_says_so(train_python, tmp_path):
    settings = write_settings(tmp_path, framework="horovod")
    command = [str(train_python), str(TRAINER / "train_horovod.py"), str(settings), "--tiny"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Horovod is not installed" in done.stderr
    assert "--framework ddp" in done.stderr
