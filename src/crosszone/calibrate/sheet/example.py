"""Example: the scenario that a workbook holds when none is given."""

from __future__ import annotations

from crosszone.inputs.scenario import Loaded, read_scenario


def example() -> Loaded:
    """LLaMA-2 7B on two nodes of eight A100, tensor and pipeline parallel: every sheet of the workbook has work."""
    return read_scenario(
        {
            "name": "example",
            "model": "llama-2-7b",
            "job": {"seq_len": 4096, "global_batch": 64, "tokens": 2.0e10, "framework": "megatron"},
            "cluster": {
                "zones": [
                    {
                        "name": "lab",
                        "nodes": [{"count": 2, "gpus": 8, "gpu": "a100-80gb-sxm", "nic_gbps_per_gpu": 200}],
                    }
                ]
            },
            "strategy": {
                "tp": 4,
                "pp": 2,
                "dp": 2,
                "micro_batch": 2,
                "sequence_parallel": True,
                "recompute": "selective",
                "zero": 1,
            },
        }
    )
