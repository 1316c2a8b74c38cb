"""Start the bundle on a Ray cluster: ray job submit --working-dir . -- python ray_job.py [arguments of the trainer]

Every node of nodes.json is reserved whole, all of them at once, and runs its nodes/NNN.sh; lines of output carry the
node's number. When one node fails the others are ended, and so is this job, with that node's exit status.
Ray keeps the folder only as long as the job runs: give the trainer an --out of your own.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

HERE = Path(__file__).resolve().parent
PIN = 0.001  # Share of a machine's own resource that ties a process to that machine
WAIT_S = float(os.environ.get("CROSSZONE_RAY_WAIT_S", "600"))  # How long to wait until all machines are free
END_S = 20  # How long a node may take to end before it is killed
# How often nodes are asked what they printed; Ray's own forwarding loses the last lines of a job that ends.
ASK_S = 0.5


@ray.remote(max_concurrency=3)
class NodeRun:
    """The script of one node, as a process group of its own on that node."""

    def __init__(self):
        self.process = None
        self.ended = False
        self.lines = deque()

    def run(self, script, arguments):
        """Run it to its end and return its exit status."""
        if self.ended:
            return 128 + signal.SIGTERM
        self.process = subprocess.Popen(
            ["bash", script, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        for line in self.process.stdout:
            self.lines.append(line)
        status = self.process.wait()
        return status if status >= 0 else 128 - status

    def take_output(self):
        """What it printed since the last time."""
        return [self.lines.popleft() for _ in range(len(self.lines))]

    def end(self):
        """End the group: asked first, then killed."""
        self.ended = True
        if self.process is None:
            return
        for signum in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, signum)
                self.process.wait(END_S)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue


def list_machines():
    """Address or name -> Ray's own address of every machine that is up."""
    addresses = {}
    for node in ray.nodes():
        if node["Alive"]:
            address = node["NodeManagerAddress"]
            addresses |= {address: address, node.get("NodeManagerHostname", address): address}
    return addresses


def place_nodes(nodes):
    """What each node reserves: its GPUs, on its own machine."""
    machines_by_name, bundles = list_machines(), []
    for node in nodes:
        address = node["address"] or ray.util.get_node_ip_address()
        machine = (
            machines_by_name.get(address)
            or machines_by_name.get(node["name"])
            or machines_by_name.get(_resolve_name(address))
        )
        if machine is None:
            number, known_names = node["number"], sorted(set(machines_by_name))
            sys.exit(f"ray_job.py: node {number:03d} ({address}) is none of the cluster's: {known_names}")
        bundles.append({"CPU": 1, "GPU": node["gpus"], f"node:{machine}": PIN})
    return bundles


def _resolve_name(address):
    try:
        return socket.gethostbyname(address)
    except OSError:
        return None


def run_nodes(nodes, arguments):
    """Run all nodes; return 0, or the exit status of the first that failed, once all have ended."""
    bundles = place_nodes(nodes)
    group = placement_group(bundles, strategy="PACK")
    if not group.wait(WAIT_S):
        sys.exit(f"ray_job.py: after {WAIT_S:.0f} s the machines do not have these free at once: {bundles}")
    runs = []
    for index, bundle in enumerate(bundles):
        where = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
        options = {"num_cpus": bundle["CPU"], "num_gpus": bundle["GPU"], "scheduling_strategy": where}
        runs.append(NodeRun.options(**options).remote())
    waiting = {node_run.run.remote(node["script"], arguments): node for node_run, node in zip(runs, nodes, strict=True)}
    try:
        while waiting:
            ended, _ = ray.wait(list(waiting), num_returns=1, timeout=ASK_S)
            _print_output(runs, nodes)
            for done in ended:
                node, status = waiting.pop(done), _get_status(done)
                if status:
                    print(f"node {node['number']:03d} failed ({status}); the others are ended", file=sys.stderr)
                    return status
        print(f"all {len(nodes)} nodes finished")
        return 0
    finally:
        if waiting:
            ray.wait([node_run.end.remote() for node_run in runs], num_returns=len(runs), timeout=2 * END_S + 10)
            _print_output(runs, nodes)


def _print_output(runs, nodes):
    """Print what each node printed, every line with its number."""
    answers = [node_run.take_output.remote() for node_run in runs]
    for node, answer in zip(nodes, answers, strict=True):
        try:
            lines = ray.get(answer)
        except ray.exceptions.RayError:
            continue  # a machine that went away: its status says so
        for line in lines:
            print(f"[{node['number']:03d}] {line.rstrip(chr(10))}", flush=True)


def _get_status(done):
    try:
        return ray.get(done)
    except ray.exceptions.RayError as error:
        print(error, file=sys.stderr)
        return 1


def main():
    """Connect, run, and end with the nodes' own exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    nodes = json.loads((HERE / "nodes.json").read_text(encoding="utf-8"))
    # A submitted job has handed the folder to every machine already; started by hand, it does so here.
    submitted = "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ
    folder = None if submitted else {"working_dir": str(HERE), "excludes": ["/out"]}
    ray.init(address="auto", runtime_env=folder, log_to_driver=False)
    try:
        status = run_nodes(nodes, sys.argv[1:])
    finally:
        ray.shutdown()
    sys.exit(status)


if __name__ == "__main__":
    main()
