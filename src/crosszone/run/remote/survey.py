"""Survey: what a machine is and has: host, CPUs, memory, GPUs, network interfaces, clock, disk, software."""

from __future__ import annotations

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

from crosszone.run.remote.place import place

SIOCGIFADDR = 0x8915
WAIT_S = 90
PACKAGES = ("torch", "deepspeed", "horovod", "megatron-core", "torchft", "ray", "nvidia-nccl-cu12", "nvidia-nccl-cu13")

# Read from what is installed, without importing it: torch alone would take seconds.
VERSIONS = """
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
RATES = """
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


def facts(folder: str, python: str = "python3") -> dict[str, Any]:
    """All of it; what cannot be found out is null."""
    cards = gpus()
    return {
        "host": socket.gethostname(),
        "boot": _text("/proc/sys/kernel/random/boot_id"),
        "system": platform.platform(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_gib": memory_gib(),
        "uptime_s": _number("/proc/uptime"),
        "clock": time.time(),
        "disk_free_gib": disk_free_gib(folder),
        "interfaces": interfaces(),
        "software": software(python),
        "cpu": None if cards["gpus"] else _told(python, RATES),
        **cards,
    }


def memory_gib() -> float:
    """Memory of the machine, or what the container may use of it."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _text("/sys/fs/cgroup/memory.max")
    if limit and limit.isdigit():
        found = min(found, int(limit))
    return round(found / 2**30, 3)


def disk_free_gib(folder: str) -> float:
    """Room where the task will write: in the nearest folder that exists."""
    path = place(folder)
    while not path.exists():
        path = path.parent
    return round(shutil.disk_usage(path).free / 2**30, 3)


def interfaces() -> dict[str, str]:
    """IPv4 address of each network interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                told = fcntl.ioctl(probe, SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            found[name] = socket.inet_ntoa(told[20:24])
    return found


def software(python: str) -> dict[str, Any]:
    """Versions of what training needs, as the given Python sees them; `missing`: why there is none."""
    return _told(python, VERSIONS, *PACKAGES)


def _told(python: str, program: str, *arguments: str) -> dict[str, Any]:
    """What a program prints; `missing`: why it does not."""
    words = [python, "-c", program, *arguments]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"missing": "{}: {}".format(python, getattr(error, "strerror", None) or type(error).__name__)}
    if told.returncode != 0:
        return {"missing": (told.stderr.strip().splitlines() or [python])[-1]}
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def gpus() -> dict[str, Any]:
    """GPUs as nvidia-smi tells them; `gpu_problem` says why none are known."""
    words = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    except FileNotFoundError:
        return {"gpus": [], "driver": None, "gpu_problem": None}  # a machine without GPUs
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"gpus": [], "driver": None, "gpu_problem": type(error).__name__}
    if told.returncode != 0:
        said = (told.stdout + told.stderr).strip().splitlines() or ["nvidia-smi failed"]
        return {"gpus": [], "driver": None, "gpu_problem": said[-1]}
    rows = [[word.strip() for word in line.split(",")] for line in told.stdout.splitlines() if line.strip()]
    found = [{"name": name, "memory_gib": round(float(mib) / 1024, 3)} for name, mib, _ in rows]
    return {"gpus": found, "driver": rows[0][2] if rows else None, "gpu_problem": None}


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _number(path: str) -> float | None:
    text = _text(path)
    return float(text.split()[0]) if text else None
