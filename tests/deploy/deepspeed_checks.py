"""Questions to DeepSpeed itself, asked in the environment that has it: `python deepspeed_checks.py < questions.json`.

Each question is [name of a function below, its arguments]; the answers come as one JSON list on the last line.
DeepSpeedConfig takes the world size from torch.distributed; torch's fake process group lets one process ask for 512.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed
import torch
import torch.distributed as dist
from deepspeed.launcher import runner
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.pipe.topology import ProcessTopology
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from torch.testing._internal.distributed.fake_pg import FakeStore  # private: the only such group there is


def config(text: dict, world: int, replicas: int) -> dict:
    """What DeepSpeed makes of a configuration on so many ranks; stages and tensor ranks share a replica."""
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    try:
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
        mpu = None if replicas == world else SimpleNamespace(get_data_parallel_world_size=lambda: replicas)
        read = DeepSpeedConfig(text, mpu)
    except Exception as error:  # whatever it refuses with
        return {"refused": f"{type(error).__name__}: {error}"}
    finally:
        dist.destroy_process_group()
    batch = [read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps]
    return {"batch": batch, "world": read.world_size, "stage": int(read.zero_optimization_stage)}


def one_bit(text: dict) -> dict:
    """Three steps of one rank with a 1-bit optimizer; its reduction, which needs CUDA, is never called by one rank."""
    alone = ModuleType("deepspeed.runtime.comm.nccl")
    alone.NcclBackend = lambda mpu: SimpleNamespace(size=1)
    sys.modules[alone.__name__] = alone
    text |= {"train_batch_size": 1, "gradient_accumulation_steps": 1, "gradient_clipping": 0.0}
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed(dist_backend="fake", auto_mpi_discovery=False, verbose=False)
        module = torch.nn.Linear(8, 8)
        before = module.weight.detach().clone()
        engine, *_ = deepspeed.initialize(model=module, model_parameters=module.parameters(), config=text)
        reduces = []
        for _ in range(3):
            reduces.append(engine.enable_backward_allreduce)
            engine.backward(engine(torch.ones(1, 8, dtype=module.weight.dtype)).float().square().mean())
            engine.step()
        moved = not torch.equal(before, module.weight.detach().float())
        return {"optimizer": type(engine.basic_optimizer).__name__, "reduces": reduces, "moved": moved}
    finally:
        dist.destroy_process_group()


def unread(top: dict[str, str], zero: dict[str, str]) -> list[str]:
    """Keys of the list that this DeepSpeed does not read where the list says."""
    folder = Path(importlib.util.find_spec("deepspeed").origin).parent.parent
    found = [key for key, file in top.items() if not _quoted(key, folder / file)]
    known = {field.alias or name for name, field in DeepSpeedZeroConfig.model_fields.items()}
    return found + [key for key in zero if key not in known]


def _quoted(key: str, file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    return f'"{key}"' in text or f"'{key}'" in text


def launched(words: list[str], hostfile: str) -> dict:
    """What DeepSpeed's launcher reads from its command line and host list."""
    args = runner.parse_args(words)
    slots = dict(runner._parse_hostfile(hostfile.splitlines()))
    given = {
        name: getattr(args, name) for name in ("no_ssh", "node_rank", "master_addr", "master_port", "no_local_rank")
    }
    return {**given, "script": args.user_script, "arguments": args.user_args, "slots": slots}


def topology(axes: list[str], dims: list[int]) -> list[dict[str, int]]:
    """Each rank's coordinates."""
    made = ProcessTopology(axes=axes, dims=dims)
    return [dict(made.get_coord(rank)._asdict()) for rank in range(made.world_size())]


if __name__ == "__main__":
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    questions = json.load(sys.stdin)
    print(json.dumps([globals()[name](*arguments) for name, *arguments in questions]))
