"""Slurm: one heterogeneous job, a component for each run of equal nodes, and one step over all of them.

Slurm 22.05 numbers the tasks of a step over the components in their order (SLURM_PROCID), so with one task a node the
task's number is the node's number. tests/deploy/test_slurm.py runs such a job.
"""

from __future__ import annotations

import re

from crosszone.deploy.launch import Launch, Node, build_refusal
from crosszone.deploy.launchers import check_name, count_requested_gpus, group_equal_nodes, make_job_name
from crosszone.deploy.shell import Raw, format_command, format_comment
from crosszone.text import label

NEEDS_ADDRESSES = False
NODE_FILE = "slurm-node.sh"
JOB_FILE = "job.sbatch"
MAX_COMPONENTS = 128  # Of a heterogeneous job (MAX_HET_JOB_COMPS, Slurm 22.05)
WORD_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:+-]*")
HOST_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
# Minutes, minutes:seconds, hours:minutes:seconds, days-hours, ...
TIME_PATTERN = re.compile(r"\d+(:\d\d?){0,2}|\d+-\d+(:\d\d?){0,2}")


def build_files(launch: Launch) -> dict[str, str]:
    """The batch script."""
    components = list(group_equal_nodes(launch))
    if len(components) > MAX_COMPONENTS:
        params = {"count": len(components), "limit": MAX_COMPONENTS}
        raise build_refusal("launch_many_components", "placement", None, **params)
    lines = ["#!/bin/bash", format_comment(label("bundle_slurm", launch.language))]
    for number, run in enumerate(components):
        if number:
            lines.append("#SBATCH hetjob")
        lines += [
            f"#SBATCH {option}"
            for option in (*_list_job_options(launch, first=number == 0), *_list_component_options(launch, run))
        ]
        lines.append(f"# {number}: {_describe_nodes(run)}")
    is_heterogeneous = len(components) > 1
    first = '"$SLURM_JOB_NODELIST_HET_GROUP_0"' if is_heterogeneous else '"$SLURM_JOB_NODELIST"'
    step = [
        "srun",
        *([f"--het-group=0-{len(components) - 1}"] if is_heterogeneous else []),
        "--label",
        "--kill-on-bad-exit=1",
        "--cpu-bind=none",
        *(("bash", NODE_FILE) if _has_named_nodes(launch.nodes) else ("bash", "-c", _RUN_NODE_SCRIPT, "node")),
        Raw('"$@"'),
    ]
    lines += [
        "",
        "set -euo pipefail",
        _ENTER_FOLDER,
        *_render_master(launch, first),
        format_command(step),
    ]
    script = {JOB_FILE: "\n".join(lines) + "\n"}
    return script | ({NODE_FILE: _render_node_script(launch)} if _has_named_nodes(launch.nodes) else {})


def places_nodes(nodes: tuple[Node, ...]) -> bool:
    """Slurm orders machines as it likes: only by their names is each the node that was planned."""
    return not _has_named_nodes(nodes)


def list_start_commands(launch: Launch) -> tuple[str, ...]:
    """Check, then submit, from a folder that all nodes see."""
    del launch
    return (f"sbatch --test-only {JOB_FILE}", f"sbatch {JOB_FILE}", "squeue --me")


_RUN_NODE_SCRIPT = 'printf -v script nodes/%03d.sh "$SLURM_PROCID"; exec bash "$script" "$@"'
_ENTER_FOLDER = 'cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch, from the folder of the bundle}"'


def _list_job_options(launch: Launch, *, first: bool) -> list[str]:
    """Options of every component; the name and the output are the job's."""
    settings = launch.settings
    options = [f"--job-name={make_job_name(launch)}", "--output=slurm-%j.out"] if first else []
    if settings.account is not None:
        options.append(f"--account={check_name(settings.account, WORD_PATTERN, 'account', 'Slurm', 'research')}")
    if settings.time_limit is not None:
        options.append(f"--time={check_name(settings.time_limit, TIME_PATTERN, 'time_limit', 'Slurm', '2-00:00:00')}")
    return options


def _list_component_options(launch: Launch, run: tuple[Node, ...]) -> list[str]:
    """Whole nodes, one task each."""
    zone = run[0].zone
    options = [f"--nodes={len(run)}", "--ntasks-per-node=1", "--exclusive", "--mem=0"]
    if launch.settings.gres:
        options.append(f"--gres=gpu:{count_requested_gpus(run[0])}")
    if zone in launch.settings.partitions:
        partition = check_name(launch.settings.partitions[zone], WORD_PATTERN, f"partitions.{zone}", "Slurm", "gpu")
        options.append(f"--partition={partition}")
    if _has_named_nodes(launch.nodes):
        options.append(f"--nodelist={','.join(str(node.host) for node in run)}")
    return options


def _has_named_nodes(nodes: tuple[Node, ...]) -> bool:
    """The scenario gives every machine a name of its own, which is its name in Slurm."""
    names = [node.host or "" for node in nodes]
    return len(set(names)) == len(names) and all(HOST_NAME_PATTERN.fullmatch(name) for name in names)


def _render_master(launch: Launch, first: str) -> list[str]:
    """Where ranks meet: the address of the first node where its machine is known, else what Slurm put first."""
    if _has_named_nodes(launch.nodes):
        return []
    return [f"MASTER_ADDR=$(scontrol show hostnames {first} | head -n 1)", "export MASTER_ADDR"]


def _render_node_script(launch: Launch) -> str:
    """The script of a task: which node this machine is."""
    cases = [f"  {node.host}) script={node.script} ;;" for node in launch.nodes]
    head = ["#!/usr/bin/env bash", format_comment(label("bundle_slurm_node", launch.language)), "set -euo pipefail"]
    last = '  *) echo "$SLURMD_NODENAME is none of the machines of this bundle" >&2; exit 2 ;;'
    return "\n".join([*head, 'case "$SLURMD_NODENAME" in', *cases, last, "esac", 'exec bash "$script" "$@"']) + "\n"


def _describe_nodes(run: tuple[Node, ...]) -> str:
    text = f"{run[0].script} - {run[-1].script}, {run[0].zone}, {run[0].gpu}"
    return format_comment(" ".join(text.split()), mark="")
