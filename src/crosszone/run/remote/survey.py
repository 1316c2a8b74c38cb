"""Survey: what a machine is and has (host, CPUs, memory, GPUs, interfaces, disk, software); its state before a task."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

from crosszone.run.remote.common import RemoteError, expand_path
from crosszone.run.remote.supervisor import read_state, stop

SIOCGIFADDR = 0x8915
WAIT_S = 90
TRIALS_FOLDER, STALE_TRIAL_S = "trials", 900  # Folder of trials; age after which nobody waits for one
PACKAGES = ("torch", "deepspeed", "horovod", "megatron-core", "torchft", "ray", "nvidia-nccl-cu12", "nvidia-nccl-cu13")

# Read from what is installed, without importing it: torch alone would take seconds.
VERSIONS_PROGRAM = """
import importlib.metadata, importlib.util, json, pathlib, platform, re, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
spec = importlib.util.find_spec("torch")
if spec is not None and spec.origin:
    text = (pathlib.Path(spec.origin).parent / "version.py").read_text()
    cuda = re.search(r"^cuda[^=]*= *'([^']+)'", text, re.M)
    found["cuda"] = cuda.group(1) if cuda else None
print(json.dumps(found))
"""


# Rates of the processors that train where there are no GPUs: square matrices, and a copy that no cache holds.
RATES_PROGRAM = """
import importlib.util, json, time
if importlib.util.find_spec("torch") is None:
    print(json.dumps({"missing": "torch"}))
    raise SystemExit
import torch

def best(work):
    work()
    took, end = [], time.perf_counter() + 0.5
    while len(took) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)

found = {"threads": torch.get_num_threads()}
for name, kind in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    square = torch.rand(512, 512).to(kind)
    found[name + "_tflops"] = 2 * 512**3 / best(lambda: square @ square) / 1e12
one, other = torch.zeros(2**24), torch.zeros(2**24)
found["memory_gb_per_s"] = 2 * one.nbytes / best(lambda: other.copy_(one)) / 1e9
print(json.dumps(found))
"""


def collect_facts(folder: str, python: str = "python3") -> dict[str, Any]:
    """All of it; what cannot be found out is null."""
    cards = list_gpus()
    return {
        "host": socket.gethostname(),
        "boot": read_text("/proc/sys/kernel/random/boot_id"),
        "system": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": read_memory_gib(),
        "uptime_s": read_number("/proc/uptime"),
        "clock": time.time(),
        "disk_free_gib": read_disk_free_gib(folder),
        "interfaces": list_interfaces(),
        "software": list_software(python),
        "cpu": None if cards["gpus"] else run_python_program(python, RATES_PROGRAM),
        **cards,
    }


def read_memory_gib() -> float:
    """Memory of the machine, or what the container may use of it."""
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = read_text("/sys/fs/cgroup/memory.max")
    if limit and limit.isdigit():
        size = min(size, int(limit))
    return round(size / 2**30, 3)


def read_disk_free_gib(folder: str) -> float:
    """Room where the task will write: in the nearest folder that exists."""
    path = expand_path(folder)
    while not path.exists():
        path = path.parent
    return round(shutil.disk_usage(path).free / 2**30, 3)


def list_interfaces() -> dict[str, str]:
    """IPv4 address of each network interface that has one."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            addresses[name] = socket.inet_ntoa(answer[20:24])
    return addresses


def list_software(python: str) -> dict[str, Any]:
    """Versions of what training needs, as the given Python sees them; `missing`: why there is none."""
    return run_python_program(python, VERSIONS_PROGRAM, *PACKAGES)


def run_python_program(python: str, program: str, *arguments: str) -> dict[str, Any]:
    """What a program prints; `missing`: why it does not."""
    command = [python, "-c", program, *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"missing": "{}: {}".format(python, getattr(error, "strerror", None) or type(error).__name__)}
    if process.returncode != 0:
        return {"missing": (process.stderr.strip().splitlines() or [python])[-1]}
    printed: dict[str, Any] = json.loads(process.stdout)
    return printed


def list_gpus() -> dict[str, Any]:
    """GPUs as nvidia-smi tells them; `gpu_problem` says why none are known."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    except FileNotFoundError:
        return {"gpus": [], "driver": None, "gpu_problem": None}  # a machine without GPUs
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"gpus": [], "driver": None, "gpu_problem": type(error).__name__}
    if process.returncode != 0:
        output = (process.stdout + process.stderr).strip().splitlines() or ["nvidia-smi failed"]
        return {"gpus": [], "driver": None, "gpu_problem": output[-1]}
    rows = [[word.strip() for word in line.split(",")] for line in process.stdout.splitlines() if line.strip()]
    devices = [{"name": name, "memory_gib": round(float(mib) / 1024, 3)} for name, mib, _ in rows]
    return {"gpus": devices, "driver": rows[0][2] if rows else None, "gpu_problem": None}


def read_text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def read_number(path: str) -> float | None:
    text = read_text(path)
    return float(text.split()[0]) if text else None


def read_machine_state(folder: str, python: str) -> dict[str, Any]:
    """Room and software where a task will run; `unwritable`: why nothing can be written there."""
    root = expand_path(folder)
    unwritable = None
    remove_stale_trials(root / TRIALS_FOLDER)
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe = root / f".crosszone-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        unwritable = error.strerror or str(error)
    return {
        "host": socket.gethostname(),
        "disk_free_gib": read_disk_free_gib(folder),
        "unwritable": unwritable,
        "software": list_software(python),
        **list_gpus(),
    }


def remove_stale_trials(trials: Path) -> None:
    """Delete the folders of trials whose driver was killed: nobody else would."""
    for folder in trials.glob("*"):
        with contextlib.suppress(OSError, RemoteError):
            if time.time() - folder.stat().st_mtime < STALE_TRIAL_S:
                continue
            token = read_state(folder).get("token")
            if token:
                stop(str(folder), token, grace_s=0)
            shutil.rmtree(str(folder))


def read_clock() -> dict[str, Any]:
    """What time it is here, seconds since 1970 UTC."""
    return {"clock": time.time()}
