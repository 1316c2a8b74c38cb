"""Slurm: one heterogeneous job, a component for each run of equal nodes, and one step over all of them.

Slurm 22.05 numbers the tasks of a step over the components in their order (SLURM_PROCID), so with one task a node the
task's number is the node's number. tests/deploy/test_slurm.py runs such a job.
"""

from __future__ import annotations

import re

from crosszone.deploy.launch import Launch, Node, refused
from crosszone.deploy.launchers.request import check_name, gpus_asked, job_name, runs
from crosszone.deploy.shell import Raw, command_line, comment
from crosszone.text import label

NEEDS_ADDRESSES = False
NODE_FILE = "slurm-node.sh"
FILE = "job.sbatch"
MAX_COMPONENTS = 128  # Of a heterogeneous job (MAX_HET_JOB_COMPS, Slurm 22.05)
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+-]*")
HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
# Minutes, minutes:seconds, hours:minutes:seconds, days-hours, ...
TIME_LIMIT = re.compile(r"\d+(:\d\d?){0,2}|\d+-\d+(:\d\d?){0,2}")


def files(launch: Launch) -> dict[str, str]:
    """The batch script."""
    components = list(runs(launch))
    if len(components) > MAX_COMPONENTS:
        params = {"count": len(components), "limit": MAX_COMPONENTS}
        raise refused("launch_many_components", "placement", None, **params)
    lines = ["#!/bin/bash", comment(label("bundle_slurm", launch.language))]
    for number, run in enumerate(components):
        if number:
            lines.append("#SBATCH hetjob")
        lines += [f"#SBATCH {one}" for one in (*_job(launch, first=number == 0), *_component(launch, run))]
        lines.append(f"# {number}: {_range(run)}")
    several = len(components) > 1
    first = '"$SLURM_JOB_NODELIST_HET_GROUP_0"' if several else '"$SLURM_JOB_NODELIST"'
    step = [
        "srun",
        *([f"--het-group=0-{len(components) - 1}"] if several else []),
        "--label",
        "--kill-on-bad-exit=1",
        "--cpu-bind=none",
        *(("bash", NODE_FILE) if _all_named(launch.nodes) else ("bash", "-c", _NODE, "node")),
        Raw('"$@"'),
    ]
    lines += [
        "",
        "set -euo pipefail",
        _SHARED,
        *_master(launch, first),
        command_line(step),
    ]
    script = {FILE: "\n".join(lines) + "\n"}
    return script | ({NODE_FILE: _by_name(launch)} if _all_named(launch.nodes) else {})


def places_nodes(nodes: tuple[Node, ...]) -> bool:
    """Slurm orders machines as it likes: only by their names is each the node that was planned."""
    return not _all_named(nodes)


def how(launch: Launch) -> tuple[str, ...]:
    """Check, then submit, from a folder that all nodes see."""
    del launch
    return (f"sbatch --test-only {FILE}", f"sbatch {FILE}", "squeue --me")


_NODE = 'printf -v script nodes/%03d.sh "$SLURM_PROCID"; exec bash "$script" "$@"'
_SHARED = 'cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch, from the folder of the bundle}"'


def _job(launch: Launch, *, first: bool) -> list[str]:
    """Options of every component; the name and the output are the job's."""
    settings = launch.settings
    made = [f"--job-name={job_name(launch)}", "--output=slurm-%j.out"] if first else []
    if settings.account is not None:
        made.append(f"--account={check_name(settings.account, WORD, 'account', 'Slurm', 'research')}")
    if settings.time_limit is not None:
        made.append(f"--time={check_name(settings.time_limit, TIME_LIMIT, 'time_limit', 'Slurm', '2-00:00:00')}")
    return made


def _component(launch: Launch, run: tuple[Node, ...]) -> list[str]:
    """Whole nodes, one task each."""
    zone = run[0].zone
    made = [f"--nodes={len(run)}", "--ntasks-per-node=1", "--exclusive", "--mem=0"]
    if launch.settings.gres:
        made.append(f"--gres=gpu:{gpus_asked(run[0])}")
    if zone in launch.settings.partitions:
        partition = check_name(launch.settings.partitions[zone], WORD, f"partitions.{zone}", "Slurm", "gpu")
        made.append(f"--partition={partition}")
    if _all_named(launch.nodes):
        made.append(f"--nodelist={','.join(str(node.host) for node in run)}")
    return made


def _all_named(nodes: tuple[Node, ...]) -> bool:
    """The scenario gives every machine a name of its own, which is its name in Slurm."""
    names = [node.host or "" for node in nodes]
    return len(set(names)) == len(names) and all(HOST_NAME.fullmatch(name) for name in names)


def _master(launch: Launch, first: str) -> list[str]:
    """Where ranks meet: the address of the first node where its machine is known, else what Slurm put first."""
    if _all_named(launch.nodes):
        return []
    return [f"MASTER_ADDR=$(scontrol show hostnames {first} | head -n 1)", "export MASTER_ADDR"]


def _by_name(launch: Launch) -> str:
    """The script of a task: which node this machine is."""
    cases = [f"  {node.host}) script={node.script} ;;" for node in launch.nodes]
    head = ["#!/usr/bin/env bash", comment(label("bundle_slurm_node", launch.language)), "set -euo pipefail"]
    last = '  *) echo "$SLURMD_NODENAME is none of the machines of this bundle" >&2; exit 2 ;;'
    return "\n".join([*head, 'case "$SLURMD_NODENAME" in', *cases, last, "esac", 'exec bash "$script" "$@"']) + "\n"


def _range(run: tuple[Node, ...]) -> str:
    text = f"{run[0].script} - {run[-1].script}, {run[0].zone}, {run[0].gpu}"
    return comment(" ".join(text.split()), mark="")
