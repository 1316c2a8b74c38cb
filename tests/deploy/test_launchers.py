from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT
from crosszone.deploy.launchers import LAUNCHERS as NAMES
from crosszone.deploy.launchers import kubernetes, make_job_name, skypilot, slurm, ssh
from crosszone.errors import IllegalError, InvalidError
from crosszone.inputs.catalogue import catalogue
from deploy.launching import UNEQUAL, bundle, fields, group, launch_of, node_rank, stubbed
from effort import examples

CHECKS = Path(__file__).with_name("launcher_checks.py")
IMAGE = "pytorch/pytorch:2.13.0"
HOSTILE = 'it\'s "x" $(touch pwned) `touch pwned` \\ ; # 训练 ${HOME}'
EQUAL = {"a": [group(3, 2)]}


def checked(python: Path, kind: str, file: Path, *more: str, home: Path) -> subprocess.CompletedProcess[str]:
    command = [str(python), str(CHECKS), kind, str(file), *more]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}
    )


def written(folder: Path, launcher: str, given, **more) -> Path:
    bundle(launcher, given, **more).write(folder / "bundle")
    return folder / "bundle"


def pod_of(job):
    return job["template"]["spec"]["template"]["spec"]


def run_pod(spec, folder: Path, **environment: str) -> str:
    """Run a pod's command here, with the bundle's archive in place of the ConfigMap and a stub in place of torchrun."""
    (container,) = spec["containers"]
    archive, work = folder / "bundle.tgz", folder / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    subprocess.run(["tar", "-czf", archive, "-C", folder / "bundle", "."], check=True)
    command = [word.replace("/bundle/bundle.tgz", str(archive)) for word in container["command"]]
    env = stubbed(folder / "stubs") | {one["name"]: one["value"] for one in container.get("env", [])} | environment
    done = subprocess.run([*command, "--steps", "5 6"], cwd=work, env=env, capture_output=True, text=True, check=True)
    assert "word=5\\ 6" in done.stdout
    return done.stdout


def test_every_launcher_stands_in_the_documents_and_in_the_commands_help(say):
    documents = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    launchers = documents[documents.index("## Launchers") : documents.index("## The trainer")]
    _, shown, _ = say("deploy", "--help")
    for name in NAMES:
        assert f"`{name}`" in launchers, name
        assert re.search(rf"\b{name}\b", shown), name


# Kubernetes


@pytest.mark.framework
def test_kubeflow_trainer_reads_every_field_of_the_job(tmp_path, check_python):
    more = {"zone_labels": {"a": "us-east-1a"}, "service_account": "training", "namespace": "research"}
    folder = written(tmp_path, "kubernetes", fields(UNEQUAL), image=IMAGE, **more)
    done = checked(check_python, "kubernetes", folder / "trainjob.yaml", home=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["jobs"] == 3
    assert told["runtime"] == told["refers"]


@pytest.mark.framework
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("backoffLimit:", "backofLimit:"),
        ("completions: 2", "completions: two"),
        ("mountPath:", "mountPat:"),
        ("runtimeRef:", "runtime:"),
    ],
)
def test_a_misspelt_field_is_noticed(tmp_path, check_python, right, wrong):
    folder = written(tmp_path, "kubernetes", fields(UNEQUAL), image=IMAGE)
    text = (folder / "trainjob.yaml").read_text()
    assert right in text
    (folder / "trainjob.yaml").write_text(text.replace(right, wrong))
    assert checked(check_python, "kubernetes", folder / "trainjob.yaml", home=tmp_path).returncode != 0


def test_pods_of_unequal_zones_run_the_script_of_their_own_node(tmp_path):
    folder = written(tmp_path, "kubernetes", fields(UNEQUAL), image=IMAGE, zone_labels={"b": "z2"})
    runtime, job = yaml.safe_load_all((folder / "trainjob.yaml").read_text())
    jobs = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    name = job["metadata"]["name"]
    assert [one["template"]["spec"]["parallelism"] for one in jobs] == [2, 1, 1]
    assert [pod_of(one)["containers"][0]["resources"]["limits"] for one in jobs] == [
        {"nvidia.com/gpu": n} for n in (2, 2, 1)
    ]
    assert [pod_of(one).get("nodeSelector") for one in jobs] == [None, *[{"topology.kubernetes.io/zone": "z2"}] * 2]
    ranks = []
    for one in jobs:
        for index in range(one["template"]["spec"]["completions"]):
            output = run_pod(pod_of(one), tmp_path, JOB_COMPLETION_INDEX=str(index))
            assert f"master={name}-run-0-0-0.{name}:29500" in output
            ranks.append(node_rank(output))
    assert ranks == [0, 1, 2, 3]


def test_a_job_without_an_image_is_refused_with_an_example():
    with pytest.raises(InvalidError, match="--set image="):
        bundle("kubernetes", fields(UNEQUAL))


@pytest.mark.parametrize(
    "wrong", [{"namespace": "My Space"}, {"service_account": "x y"}, {"zone_labels": {"a": "$(x)"}}]
)
def test_names_that_kubernetes_refuses_are_refused_here(wrong):
    with pytest.raises(InvalidError, match="Kubernetes"):
        bundle("kubernetes", fields(UNEQUAL), image=IMAGE, **wrong)


def test_amd_gpus_are_asked_for_by_their_own_name():
    made = bundle("kubernetes", fields({"a": [group(1, 8, gpu="mi300x")]}), image=IMAGE)
    assert "amd.com/gpu: 8" in made.get_text("trainjob.yaml")


# PyTorchJob


@pytest.mark.framework
def test_the_training_operator_reads_every_field_of_a_pytorchjob(tmp_path, check_python):
    folder = written(tmp_path, "pytorchjob", fields(EQUAL), image=IMAGE)
    done = checked(check_python, "pytorchjob", folder / "pytorchjob.yaml", home=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"Master": 1, "Worker": 2}
    text = (folder / "pytorchjob.yaml").read_text()
    (folder / "pytorchjob.yaml").write_text(text.replace("cleanPodPolicy", "cleanPods"))
    assert checked(check_python, "pytorchjob", folder / "pytorchjob.yaml", home=tmp_path).returncode != 0


def test_the_operators_rank_chooses_the_node(tmp_path):
    folder = written(tmp_path, "pytorchjob", fields(EQUAL), image=IMAGE)
    replicas = yaml.safe_load((folder / "pytorchjob.yaml").read_text())["spec"]["pytorchReplicaSpecs"]
    given = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "29500"}
    for rank, kind in enumerate(["Master", "Worker", "Worker"]):
        output = run_pod(replicas[kind]["template"]["spec"], tmp_path, RANK=str(rank), **given)
        assert node_rank(output) == rank
        assert "master=job-master-0:29500" in output


def test_a_pytorchjob_of_unequal_nodes_names_both_and_the_remedy():
    with pytest.raises(IllegalError) as caught:
        bundle("pytorchjob", fields(UNEQUAL), image=IMAGE)
    said = str(caught.value)
    assert "a-0 (a, 2 x a100-80gb-sxm)" in said
    assert "b-0 (b, 2 x a100-80gb-sxm)" in said
    assert "--launcher kubernetes" in said


# SkyPilot


@pytest.mark.long
@pytest.mark.framework
def test_skypilot_reads_a_task_for_each_run_and_demands_the_master_of_all_but_the_first(tmp_path, check_python):
    folder = written(tmp_path, "skypilot", fields(UNEQUAL), image=IMAGE)
    assert sorted(path.name for path in folder.glob("sky-*.yaml")) == ["sky-0.yaml", "sky-1.yaml", "sky-2.yaml"]
    first = checked(check_python, "skypilot", folder / "sky-0.yaml", home=tmp_path)
    assert first.returncode == 0, first.stderr
    told = json.loads(first.stdout)
    assert (told["nodes"], told["accelerators"]) == (2, {"A100-80GB": 2})
    without = checked(check_python, "skypilot", folder / "sky-2.yaml", home=tmp_path)
    assert without.returncode != 0
    assert "MASTER_ADDR" in without.stderr
    given = checked(check_python, "skypilot", folder / "sky-2.yaml", "MASTER_ADDR=10.0.0.1", home=tmp_path)
    assert json.loads(given.stdout)["accelerators"] == {"H100": 1}


def test_skypilots_ranks_count_on_over_the_tasks(tmp_path):
    folder = written(tmp_path, "skypilot", fields(UNEQUAL))
    ranks = []
    for file in sorted(folder.glob("sky-*.yaml")):
        task = yaml.safe_load(file.read_text())
        for rank in range(task["num_nodes"]):
            env = stubbed(tmp_path / "stubs") | {key: value for key, value in task["envs"].items() if value is not None}
            env |= {
                "SKYPILOT_NODE_RANK": str(rank),
                "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8",
                "ARGUMENTS": "--steps 5",
            }
            env |= {"MASTER_ADDR": "10.0.0.7"} if "MASTER_ADDR" in task["envs"] else {}
            done = subprocess.run(
                ["bash", "-c", task["run"]], cwd=folder, env=env, capture_output=True, text=True, check=True
            )
            assert "master=10.0.0.7:29500" in done.stdout
            ranks.append(node_rank(done.stdout))
    assert ranks == [0, 1, 2, 3]


def test_a_gpu_that_skypilot_does_not_have_is_named():
    with pytest.raises(IllegalError, match="gh200-144gb"):
        bundle("skypilot", fields({"a": [group(1, 1, gpu="gh200-144gb")]}))


def test_gpus_of_the_skypilot_table_are_in_the_catalogue():
    known = set(catalogue().names("gpus"))
    assert set(skypilot.read_accelerators()) <= known


# Slurm (test_slurm.py runs the job)


def test_a_slurm_component_is_a_run_of_equal_nodes_of_a_zone():
    hosts = [{"address": f"10.0.0.{n}", "name": f"gpu{n}"} for n in (1, 2, 3)]
    zones = {"a": [group(2, 2, hosts=hosts[:2])], "b": [group(1, 4, hosts=hosts[2:])]}
    made = bundle("slurm", fields(zones), partitions={"b": "south"}, account="lab")
    parts = made.get_text("job.sbatch").split("#SBATCH hetjob")
    assert "--nodes=2" in parts[0] and "--gres=gpu:2" in parts[0] and "--nodelist=gpu1,gpu2" in parts[0]
    assert "--partition" not in parts[0]
    assert "--nodes=1" in parts[1] and "--gres=gpu:4" in parts[1] and "--partition=south" in parts[1]
    assert "--nodelist=gpu3" in parts[1]
    assert all("--account=lab" in part for part in parts)
    assert "gres" not in bundle("slurm", fields(UNEQUAL), gres=False).get_text("job.sbatch")


def test_machines_without_names_are_placed_by_slurm_so_that_no_address_is_written():
    hosts = [{"address": f"10.0.0.{n}", "interface": f"eth{n}"} for n in (1, 2)]
    made = bundle("slurm", fields({"a": [group(2, 2, hosts=hosts)]}))
    assert "--nodelist" not in made.get_text("job.sbatch")
    assert "address='' interface=''" in made.get_text("nodes/001.sh")
    assert "scontrol show hostnames" in made.get_text("job.sbatch")


@pytest.mark.parametrize(
    "wrong", [{"account": "a b"}, {"time_limit": "soon"}, {"partitions": {"a": "x --wrap=y"}}, {"account": "-x"}]
)
def test_words_that_would_be_other_options_of_slurm_are_refused(wrong):
    with pytest.raises(InvalidError, match="Slurm"):
        bundle("slurm", fields(UNEQUAL), **wrong)


@pytest.mark.parametrize("limit", ["30", "30:00", "12:00:00", "2-00", "2-00:00", "2-00:00:00"])
def test_every_form_of_slurms_time_limit_is_taken(limit):
    assert f"--time={limit}" in bundle("slurm", fields(EQUAL), time_limit=limit).get_text("job.sbatch")


# Names


LAUNCH = launch_of(fields(UNEQUAL), image=IMAGE)
LAUNCHERS = {"slurm": slurm, "kubernetes": kubernetes, "skypilot": skypilot, "ssh": ssh}


def named(name: str, **settings_of):
    """The same launch with a name that no check has seen."""
    return dataclasses.replace(
        LAUNCH,
        scenario=LAUNCH.scenario.model_copy(update={"name": name}),
        settings=LAUNCH.settings.model_copy(update=settings_of),
    )


@given(st.text(min_size=1, max_size=300))
@examples(150)
def test_a_job_has_a_name_that_dns_takes_whatever_the_scenario_is_called(name):
    made = make_job_name(named(name))
    assert len(made) <= 40
    assert made[0].isascii() and made[0].isalpha() and made[-1].isalnum()
    assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_names_that_look_alike_stay_apart():
    assert len({make_job_name(named(one)) for one in ("two zones", "two-zones", "Two Zones", "two zones!")}) == 4


@given(
    st.text(min_size=1, max_size=300),
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
)
@pytest.mark.slow
@examples(40)
def test_no_name_breaks_a_file(name, folder):
    launch = named(name, workdir=folder, python=folder)
    for module in LAUNCHERS.values():
        for path, text in module.build_files(launch).items():
            if path.endswith(".yaml"):
                for one in yaml.safe_load_all(text):
                    assert one.get("name", "").startswith(make_job_name(launch)) or one["metadata"][
                        "name"
                    ] == make_job_name(launch)
            elif path != "ssh-nodes.sh":
                assert text.splitlines()[0].startswith("#!")
    nodes = ssh.build_files(launch)["ssh-nodes.sh"]
    script = f'{nodes}\nprintf \'%s\\0\' "$name" "${{#addresses[@]}}"; eval "printf \'%s\\0\' $folder $python"'
    done = subprocess.run(["bash", "-euo", "pipefail"], input=script.encode(), capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == [make_job_name(launch), "4", folder, folder]


@pytest.mark.parametrize("name", [HOSTILE, "line\nbreak\n#SBATCH --wrap=x", "'" * 300, "-rf", "\u202e\x1b[31m"])
def test_hostile_names_run_nothing_and_shellcheck_finds_nothing(tmp_path, name):
    launch = named(name, workdir=f"/tmp/{name}".replace("\0", ""), user=name)
    for module in LAUNCHERS.values():
        for path, text in module.build_files(launch).items():
            if path.endswith((".sh", ".sbatch")):
                (tmp_path / path).write_text(text)
    scripts = sorted(tmp_path.glob("*.s*"))
    assert len(scripts) == 4
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-S", "warning", *scripts], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    directives = [line for line in (tmp_path / "job.sbatch").read_text().splitlines() if line.startswith("#SBATCH")]
    assert not any("wrap" in line for line in directives if not line.startswith("#SBATCH --job-name="))
    done = subprocess.run(
        ["bash", "-c", ". ./ssh-nodes.sh && declare -p login"], cwd=tmp_path, capture_output=True, check=True
    )
    assert not list(tmp_path.rglob("pwned")), done.stdout


def test_a_hostile_zone_stays_in_its_comment():
    made = bundle("slurm", fields({HOSTILE: [group(1, 2)], "b": [group(1, 2)]}))
    lines = [line for line in made.get_text("job.sbatch").splitlines() if "pwned" in line]
    assert lines and all(line.startswith("# ") for line in lines)


@pytest.mark.parametrize("launcher", ["nodes", "ssh", "ray"])
def test_launchers_that_need_addresses_say_which_are_missing(launcher):
    with pytest.raises(InvalidError, match=r"cluster\.zones\[0\]\.nodes\[0\]\.hosts"):
        bundle(launcher, fields(UNEQUAL))
