"""A bundle as a user makes it: files, refusals, templates, archives, names that try to get out."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from conftest import ROOT
from crosszone import load_scenario
from crosszone.deploy.deploy import build_bundle
from crosszone.deploy.environment import read_variables
from crosszone.deploy.frameworks import FRAMEWORKS
from crosszone.deploy.launchers import LAUNCHERS
from crosszone.deploy.settings import LaunchSettings
from crosszone.errors import InputError, InvalidError
from crosszone.inputs.scenario import read_scenario
from crosszone.predict.predict import build_prediction, build_predictor
from deploy.conftest import scenario

TWO = scenario(zones=2, gpus=2, strategy={"dp": 4}, job={"framework": "ddp"})
SETTINGS = LaunchSettings(image="registry.example.org/train:1", steps=100)
INVENTED = (
    "NCCL_COMPRESSION", "DEEPSPEED_REGION_AWARE", "multi-dc", "NCCL_SCATTER_XDC", "NCCL_ALLNET_ENABLE",
    "NCCL_IB_FABRICID_MAXRAIL", "hierarchical_allreduce", "--overlap-p2p-comm ", "--delay-grad-reduce", "init_inference",
    "master_node_ip",
)  # fmt: skip
"""Names that no framework has; the seeds printed some of them."""


def bundle(fields, **how):
    return build_bundle(read_scenario(fields), settings=how.pop("settings", SETTINGS), **how)


def test_the_files_of_a_bundle_are_those_its_manifest_counts():
    made = bundle(TWO)
    told = json.loads(made.get_text("bundle.json"))
    sums = {one.path: hashlib.sha256(one.text.encode()).hexdigest() for one in made.files if one.path != "bundle.json"}
    assert told["sha256"] == sums
    assert {key: told[key] for key in ("name", "framework", "launcher", "world_size", "template")} == {
        "name": "tiny", "framework": "ddp", "launcher": "nodes", "world_size": 4, "template": False,
    }  # fmt: skip


def test_the_plan_in_a_bundle_predicts_the_same_step():
    made = bundle(TWO)
    again = build_prediction(build_predictor(load_scenario(yaml.safe_load(made.get_text("plan.yaml")))))
    assert json.loads(made.get_text("settings.json"))["predicted"]["step_s"] == again.step_time_s.model_dump()


def test_every_node_has_its_own_interface():
    fields = scenario(zones=2, gpus=2, strategy={"dp": 4}, job={"framework": "ddp"})
    fields["cluster"]["zones"][1]["nodes"][0]["hosts"][0]["interface"] = "ens5"
    made = bundle(fields)
    assert "interface=lo\n" in made.get_text("nodes/000.sh")
    assert "interface=ens5\n" in made.get_text("nodes/001.sh")


def test_every_option_is_explained_in_the_readme_and_every_variable_is_on_the_list():
    talk = {"compression": "powersgd", "compression_rank": 4, "flows": 8, "algorithm": "ring", "bucket_mb": 100.0}
    made = bundle(scenario(zones=2, strategy={"dp": 4, "communication": talk}, job={"framework": "ddp"}))
    about = made.get_text("README.md")
    for one in made.options:
        assert f"`{one.name}`" in about
        assert one.why in about
    exported = set(
        re.findall(r"^\s*export ([A-Z_]+)=", made.get_text("env.sh") + made.get_text("nodes/000.sh"), re.MULTILINE)
    )
    assert exported == {"MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_ALGO",
                        "NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"}  # fmt: skip
    assert exported <= set(read_variables())
    assert "NCCL_SOCKET_NTHREADS=8" in made.get_text("env.sh")


def test_a_missing_address_is_refused_and_the_node_named():
    with pytest.raises(InvalidError) as caught:
        bundle(scenario(zones=2, strategy={"dp": 4}, job={"framework": "ddp"}, hosts=False))
    assert [one.field for one in caught.value.notices] == [
        "cluster.zones[0].nodes[0].hosts",
        "cluster.zones[1].nodes[0].hosts",
    ]
    assert "a-0" in caught.value.notices[0].message("en")


def test_one_node_needs_no_address(deploy, tmp_path):
    folder = deploy(scenario(strategy={"dp": 2}, job={"framework": "ddp"}, hosts=False))
    stub_torchrun(tmp_path)
    started = run(["bash", "nodes/000.sh", "--tiny"], folder, tmp_path)
    assert started.stdout == "--standalone --nproc-per-node 2 train.py settings.json --tiny\n", started.stderr


def test_a_template_refuses_to_run_until_it_is_filled(deploy, tmp_path):
    fields = scenario(zones=2, strategy={"dp": 4}, job={"framework": "ddp"}, hosts=False)
    folder = deploy(fields, "--template")
    stub_torchrun(tmp_path)

    def started():
        return run(["bash", "nodes/001.sh"], folder, tmp_path)

    assert started().returncode == 2
    assert "fill.py" in started().stderr
    unfilled = run([sys.executable, "fill.py", "hosts.txt"], folder, tmp_path)
    assert unfilled.returncode != 0
    assert "'?' is no host name" in unfilled.stderr
    (folder / "hosts.txt").write_text("000 10.1.0.1 -\n001 10.2.0.1 ens5\n")
    assert run([sys.executable, "fill.py", "hosts.txt"], folder, tmp_path).returncode == 0
    assert started().stdout.split("\n")[0] == (
        "--nnodes 2 --node-rank 1 --nproc-per-node 2 --master-addr 10.1.0.1 --master-port 29500 train.py settings.json"
    )
    assert "interface=ens5" in (folder / "nodes/001.sh").read_text()
    assert not re.search(r"@ADDRESS_\d", "".join(path.read_text() for path in folder.rglob("*.sh")))


def test_a_folder_is_written_whole_and_only_a_bundle_is_replaced(tmp_path):
    made, folder = bundle(TWO), tmp_path / "bundle"
    made.write(folder)
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == sorted(
        one.path for one in made.files
    )
    assert os.access(folder / "nodes/000.sh", os.X_OK)
    with pytest.raises(InvalidError, match="exists"):
        made.write(folder)
    (folder / "left-over").write_text("x")
    made.write(folder, force=True)
    assert not (folder / "left-over").exists()
    other = tmp_path / "precious"
    other.mkdir()
    (other / "thesis.txt").write_text("x")
    with pytest.raises(InputError):
        made.write(other, force=True)
    assert (other / "thesis.txt").exists()


def test_an_archive_holds_one_folder_and_equal_bundles_are_equal_archives():
    one, other = bundle(TWO), bundle(TWO)
    assert one.pack_zip("tiny") == other.pack_zip("tiny")
    with zipfile.ZipFile(io.BytesIO(one.pack_zip("tiny"))) as archive:
        assert all(name.startswith("tiny/") for name in archive.namelist())
        assert archive.read("tiny/plan.yaml").decode() == one.get_text("plan.yaml")


NASTY = [
    "$(touch pwned)",
    "`touch pwned`",
    "'; touch pwned; '",
    '"; touch pwned; "',
    "北京 ☃ é",
    "-rf ~",
    "a/../../b",
    "*",
    "#",
    "{x}",
    "x" * 100,
]


def hostile(name: str, local: bool, framework: str):
    strategy = {"dp": 4, **({"local_update": {"steps": 10}} if local else {})}
    if framework == "megatron":
        strategy |= {"zero": 1}
    fields = scenario(zones=2, gpus=2, strategy=strategy, job={} if local else {"framework": framework})
    fields["name"] = name
    fields["model"] = {**fields["model"], "name": name}
    for number, zone in enumerate(fields["cluster"]["zones"]):
        zone["name"] = f"{name[:98]}{number}"
        zone["nodes"][0]["hosts"][0]["name"] = name
    return fields


@pytest.mark.parametrize(
    ("framework", "name"),
    [
        # all frameworks quote alike: outside ./test --long each meets a name or two, and each name one of them
        pytest.param(
            framework,
            name,
            marks=[] if number == 0 == at else pytest.mark.slow if at == number % len(FRAMEWORKS) else pytest.mark.long,
        )
        for number, name in enumerate(NASTY)
        for at, framework in enumerate(FRAMEWORKS)
    ],
)
def test_names_never_run_and_never_break_a_file(name, framework, tmp_path):
    """Every launcher's files parse, every script is sound, and starting a node does what was planned and nothing else."""
    local = framework == "torchft"
    fields = hostile(name, local, framework)
    stub_torchrun(tmp_path)
    zones = [zone["name"] for zone in fields["cluster"]["zones"]]
    for launcher in LAUNCHERS:
        how = {"settings": SETTINGS.replace(zone_labels=dict.fromkeys(zones, "z"))}
        try:
            made = bundle(fields, framework=framework, launcher=launcher, **how)
        except InputError as error:
            placed = launcher in ("slurm", "kubernetes", "skypilot") and framework in ("horovod", "torchft")
            unknown = placed and error.notices[0].code == "framework_no_address"
            assert launcher == "pytorchjob" or unknown, error  # pytorchjob cannot place zones
            continue
        folder = tmp_path / launcher
        made.write(folder)
        for path in folder.rglob("*"):
            if path.suffix == ".json":
                json.loads(path.read_text("utf-8"))
            elif path.suffix in (".yaml", ".yml"):
                list(yaml.safe_load_all(path.read_text("utf-8")))
            elif path.suffix in (".sh", ".sbatch"):
                assert run(["bash", "-n", str(path)], folder, tmp_path).returncode == 0
        started = run(["bash", "nodes/001.sh"], folder, tmp_path, MASTER_ADDR="127.0.0.1")
        assert framework == "megatron" or started.returncode == 0, started.stderr
    assert list(tmp_path.rglob("pwned")) == []
    assert not (ROOT / "pwned").exists()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_invented_name_is_ever_written(framework):
    made = bundle(hostile("plain", framework == "torchft", framework), framework=framework)
    whole = "\n".join(one.text for one in made.files)
    assert [name for name in INVENTED if name in whole] == []


def stub_torchrun(folder: Path) -> None:
    """Launchers that only print their arguments."""
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("torchrun", "deepspeed", "horovodrun", "torchft_lighthouse"):
        (tools / name).write_text('#!/bin/sh\necho "$@"\n')
        (tools / name).chmod(0o755)


def run(words, folder: Path, tools: Path, **more: str):
    environment = os.environ | {"PATH": f"{tools / 'tools'}:{os.environ['PATH']}", "MEGATRON_PATH": str(tools)} | more
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, env=environment)


def test_why_torchft_does_not_average_is_told_in_the_readme():
    """Zones of pods have no addresses yet, which torchft needs: the trainer averages by itself, and says why."""
    strategy = {"dp": 4, "local_update": {"steps": 10}}
    made = bundle(scenario(zones=2, strategy=strategy), launcher="kubernetes")
    assert made.framework in ("ddp", "fsdp")
    assert [one["code"] for one in made.warnings][-1] == "torchft_cannot"
    assert "not by torchft" in made.get_text("README.md")


@pytest.mark.parametrize(
    ("framework", "model", "code"),
    [
        ("ddp", {"mtp_layers": 1}, "bundle_mtp"),
        ("ddp", {"moe": {"experts": 4, "top_k": 2, "ffn_hidden": 64, "latent": 32}}, "bundle_latent"),
        ("ddp", {"pattern": "M-", "mamba": {"heads": 4, "head_dim": 16, "state": 16}}, "bundle_hybrid"),
        ("megatron", {"pattern": "*-"}, "bundle_hybrid"),
    ],
)
def test_models_that_no_bundle_trains_are_refused(framework, model, code):
    """[R5] [O21] What can be predicted but not trained is said, not left out."""
    small = {"hidden": 64, "heads": 4, "ffn_hidden": 128, "vocab": 512} | ({} if "pattern" in model else {"layers": 2})
    fields = TWO | {"model": small | model, "job": TWO["job"] | {"framework": framework}}
    with pytest.raises(InputError) as caught:
        bundle(fields)
    assert [notice.code for notice in caught.value.notices] == [code]
    assert caught.value.notices[0].message("zh") and caught.value.notices[0].hint()
