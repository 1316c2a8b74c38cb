"""Check one node before training: python3 verify.py [--node N] [--json]

Run it on every node. It looks at this machine's interface, GPUs, disk, software and data, whether it reaches the other
nodes and whether the port at which ranks meet is free (first node) or can be reached (others). It changes nothing and
needs only Python's standard library. Exit status 0: all good; 1: something failed; warnings alone do not fail.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PACKAGES = {"ddp": ["torch"], "fsdp": ["torch"], "deepspeed": ["torch", "deepspeed"], "megatron": ["torch"]}
PACKAGES |= {"horovod": ["torch", "horovod"], "torchft": ["torch", "torchft"]}
WHEELS = {"cupy": "cupy-cuda12x"}  # Packages that pip knows under another name than Python does
FREE_GIB = 20  # Least free disk below which a warning is given, when no checkpoint's size is known
WAIT_S = 5


def load_json(name):
    """A JSON file of the bundle."""
    return json.loads((HERE / name).read_text(encoding="utf-8"))


def list_own_addresses():
    """Every address of this machine with its interface, as `ip` tells; empty where there is no `ip`."""
    if shutil.which("ip") is None:
        return {}
    shown = subprocess.run(["ip", "-o", "addr", "show"], capture_output=True, text=True, check=False).stdout
    interface_of_address = {}
    for line in shown.splitlines():
        words = line.split()
        if len(words) > 3:
            interface_of_address[words[3].split("/")[0]] = words[1]
    return interface_of_address


def resolve_name(name):
    """The addresses a name stands for; empty: none."""
    try:
        return sorted({info[4][0] for info in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def find_this_node(nodes, number):
    """The entry of this machine: as asked, else the one whose address is ours."""
    if number is not None:
        return next((node for node in nodes if node["number"] == number), None)
    own_names = set(list_own_addresses()) | {socket.gethostname()}
    for node in nodes:
        if node["address"] and (node["address"] in own_names or set(resolve_name(node["address"])) & own_names):
            return node
    return None


def is_reachable(address, port):
    """Whether a connection to the port is answered, even if only by a refusal (then nothing listens yet)."""
    try:
        socket.create_connection((address, port), timeout=WAIT_S).close()
    except ConnectionRefusedError:
        return True, "nothing listens there yet"
    except OSError as error:
        return False, str(error)
    return True, "connected"


def check_port(port):
    """Whether this machine can listen at the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return False, str(error)
    return True, "free"


def list_gpus():
    """(name, memory GiB) of each GPU that nvidia-smi shows; None: there is no nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    rows = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
    parts = [row.rsplit(",", 1) for row in rows if "," in row]
    return [(name.strip(), float(size) / 1024) for name, size in parts]


def iter_checks(settings, nodes, node, port):
    """Every check as (level, what, detail); level: ok, warning or failed."""
    unfilled = [
        path.name for path in sorted(HERE.rglob("*.sh")) if re.search(r"@ADDRESS_\d+@", path.read_text("utf-8"))
    ]
    if unfilled:
        yield "failed", "template", f"{len(unfilled)} scripts have no address yet: python3 fill.py hosts.txt"
    if node is None:
        yield "warning", "node", "this machine is none of the bundle's nodes by address; say --node N"
    yield from check_network(nodes, node, port)
    yield from check_hardware(settings, node)
    yield from check_software(settings)
    yield from check_storage(settings)


def get_level(good):
    """The level of a check that passes or fails."""
    return "ok" if good else "failed"


def check_network(nodes, node, port):
    """Interface, names, reachability, port."""
    local_addresses = list_own_addresses()
    if node and node["interface"]:
        has = node["interface"] in local_addresses.values()
        missing = "" if has else f" is not here; there are {sorted(set(local_addresses.values()))}"
        yield get_level(has), "interface", node["interface"] + missing
    if node and node["address"] and local_addresses:
        mine = set(resolve_name(node["address"])) & set(local_addresses)
        yield get_level(mine), "address", f"{node['address']} is {'' if mine else 'not '}an address of this machine"
    for other in nodes:
        if other["address"] and (node is None or other["number"] != node["number"]):
            resolved_addresses = resolve_name(other["address"])
            if not resolved_addresses:
                yield "failed", f"node {other['number']:03d}", f"{other['address']} does not resolve"
    master = nodes[0]
    if node and node["number"] == master["number"]:
        good, detail = check_port(port)
        yield get_level(good), f"port {port}", detail
    elif master["address"]:
        good, detail = is_reachable(master["address"], port)
        yield get_level(good), f"first node {master['address']}:{port}", detail


def check_hardware(settings, node):
    """GPUs: as many as planned, with enough memory."""
    gpu_list = list_gpus()
    needed = sum(len(agent["gpus"]) for agent in node["agents"]) if node else 1
    if gpu_list is None:
        yield "warning", "GPUs", "no nvidia-smi here: training would run on the CPU"
        return
    yield get_level(len(gpu_list) >= needed), "GPUs", f"{len(gpu_list)} here, {needed} needed"
    peak = settings["predicted"]["memory_gib"]["expected"]
    for number, (name, size) in enumerate(gpu_list):
        if size < peak:
            yield "failed", f"GPU {number}", f"{name} has {size:.1f} GiB, the plan needs {peak:.1f}"


def check_software(settings):
    """Python and packages; every node should say the same."""
    yield "ok", "Python", sys.version.split()[0]
    for name in PACKAGES[settings["framework"]]:
        try:
            yield "ok", name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield "failed", name, f"not installed for {sys.executable}"
    requires = settings.get("requires", {})
    missing = find_unmet(requires)
    for name, limit in requires.items():
        yield get_level(name not in missing), f"{name}{limit}", missing.get(name, "as this plan needs")


def find_unmet(requires):
    """What a plan needs ({"deepspeed": "<0.19.7", "cupy": ""}) and this Python lacks, by name with what to do."""
    missing = {}
    for name, limit in requires.items():
        if importlib.util.find_spec(name) is None:
            install = f"pip install '{WHEELS.get(name, name)}{limit}'"
            missing[name] = f"this plan needs it, and it is not installed for {sys.executable}; {install}"
        elif limit and parse_version(importlib.metadata.version(name)) >= parse_version(limit.lstrip("<")):
            has = importlib.metadata.version(name)
            missing[name] = f"{has} lacks what this plan uses; pip install '{name}{limit}', or plan without it"
    return missing


def parse_version(version):
    """0.19.7+cu12 as (0, 19, 7)."""
    return tuple(int(part) for part in re.match(r"\d+(\.\d+)*", version).group().split("."))


def check_storage(settings):
    """Disk and data."""
    free = shutil.disk_usage(HERE).free / 2**30
    yield ("ok" if free > FREE_GIB else "warning"), "disk", f"{free:.0f} GiB free"
    for key in ("path", "tokenizer", "init_from"):
        path = settings["data"][key]
        if path is not None:
            is_here = Path(path).exists()
            yield get_level(is_here), f"data {key}", path if is_here else f"{path} is not here"


def main():
    """Print every check; exit 1 if one failed."""
    parser = argparse.ArgumentParser(description="Check one node before training.")
    parser.add_argument("--node", type=int, help="number of this node; default: by its address")
    parser.add_argument("--json", action="store_true", help="one JSON document")
    args = parser.parse_args()
    settings, nodes, launch = load_json("settings.json"), load_json("nodes.json"), load_json("bundle.json")
    node = find_this_node(nodes, args.node)
    rows = list(iter_checks(settings, nodes, node, launch["port"]))
    if args.json:
        documents = [{"level": level, "what": what, "told": detail} for level, what, detail in rows]
        print(json.dumps(documents, ensure_ascii=False))
    else:
        for level, what, detail in rows:
            print(f"{level:8} {what}: {detail}")
    sys.exit(1 if any(level == "failed" for level, _, _ in rows) else 0)


if __name__ == "__main__":
    main()
