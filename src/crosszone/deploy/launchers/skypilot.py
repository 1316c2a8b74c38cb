"""SkyPilot: a cluster lies in one place, so each run of equal nodes is a task of its own; they meet at the first one.

The environment variables are those of SkyPilot 0.14 (docs, "Distributed Multi-Node Jobs"); one without a value has to
be given with --env.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from crosszone.deploy.launch import Launch, Node, build_refusal
from crosszone.deploy.launchers import group_equal_nodes, make_job_name, render_yaml
from crosszone.inputs.shipped import read_shipped
from crosszone.text import label

NEEDS_ADDRESSES = False


def build_files(launch: Launch) -> dict[str, str]:
    """A task for each run of equal nodes."""
    head = label("bundle_skypilot", launch.language)
    return {
        _name_task_file(number): render_yaml(head, _build_task(launch, number, run))
        for number, run in enumerate(group_equal_nodes(launch))
    }


def list_start_commands(launch: Launch) -> tuple[str, ...]:
    """Start the first task, ask for its address, start the others with it."""
    name, count = make_job_name(launch), len(list(group_equal_nodes(launch)))
    lines = [f"sky launch -y -d -c {name}-0 {_name_task_file(0)}"]
    if count > 1:
        lines.append(f"MASTER_ADDR=$(sky status --ip {name}-0)")
    for number in range(1, count):
        lines.append(f'sky launch -y -d -c {name}-{number} --env MASTER_ADDR="$MASTER_ADDR" {_name_task_file(number)}')
    return (*lines, f"sky logs {name}-0")


@cache
def read_accelerators() -> dict[str, str]:
    """GPU -> SkyPilot's name of it."""
    loaded: dict[str, str] = read_shipped("crosszone.deploy.launchers", "skypilot_gpus.yaml").value
    return loaded


def _build_task(launch: Launch, number: int, run: tuple[Node, ...]) -> dict[str, Any]:
    node = run[0]
    if node.gpu not in read_accelerators():
        raise build_refusal("launch_no_accelerator", "--launcher", "skypilot", gpu=node.gpu, zone=node.zone)
    resources: dict[str, Any] = {
        "accelerators": {read_accelerators()[node.gpu]: node.gpus},
        "ports": [launch.settings.port],
    }
    if node.zone in launch.settings.infra:
        resources["infra"] = launch.settings.infra[node.zone]
    if launch.settings.image is not None:
        resources["image_id"] = f"docker:{launch.settings.image}"
    # The first run finds the address by itself; the others must be told, and SkyPilot insists on it.
    master = {} if number == 0 else {"MASTER_ADDR": None}
    return {
        "name": f"{make_job_name(launch)}-{number}",
        "num_nodes": len(run),
        "resources": resources,
        "workdir": ".",
        "envs": {"FIRST_NODE": str(node.number), "ARGUMENTS": "", **master},
        "run": (_EXPORT_MASTER if number == 0 else "") + _START,
    }


def _name_task_file(number: int) -> str:
    return f"sky-{number}.yaml"


_EXPORT_MASTER = 'export MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
_START = """\
declare -i node=FIRST_NODE+SKYPILOT_NODE_RANK
printf -v script nodes/%03d.sh "$node"
# Words for the training program, e.g. --env ARGUMENTS="--tiny --steps 5".
read -ra arguments <<<"$ARGUMENTS"
bash "$script" "${arguments[@]}"
"""
