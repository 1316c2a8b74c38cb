"""Where a measured run ran: one zone of equal nodes, from the GPU, its count and the links that the row states."""

from __future__ import annotations

import re
from functools import lru_cache

from crosszone.calibrate.runs_rules import RowError, nic_default
from crosszone.inputs.catalogue import Catalogue
from crosszone.inputs.cluster import Cluster, NodeGroup, Zone
from crosszone.inputs.gpu import Gpu

USUAL_NODE = 8
"""GPUs of a node where a row does not say."""
TRAY = 4
"""GPUs of one tray of a rack-scale system."""
_REMEMBERED = 4096
_SEVERAL_KINDS = re.compile(r"\d+x.+\+|\+\s*\d+x|;|,.*\bx\d", re.IGNORECASE)
_MEMORY_SIZE = re.compile(r"\d\s*gb", re.IGNORECASE)
_SIZE_IN_NAME = re.compile(r"\d+gb")


class Clusters:
    """Clusters of rows; equal columns are built once."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.build = lru_cache(maxsize=_REMEMBERED)(self._build)

    def _build(
        self,
        gpu_text: str,
        gpus: int,
        per_node: int | None,
        link: str,
        nic_gbps_per_gpu: float | None,
        nic_of_stack: float | None,
        link_share: float = 1.0,
    ) -> tuple[Cluster, tuple[str, ...]]:
        """One zone with the row's nodes, and what was assumed of it; `link_share`: of the fast link's rate."""
        gpu, assumed = self._gpu(gpu_text)
        if gpu.link is not None and link_share != 1.0:
            gpu = gpu.replace(link=gpu.link.replace(gb_per_s_both_ways=link_share * gpu.link.gb_per_s_both_ways))
        if per_node is None:
            per_node = TRAY if gpu.link and gpu.link.spans_nodes else USUAL_NODE
            if gpus > 1:
                assumed.append(f"gpus_per_node: {per_node} (usual system)")
        per_node = min(per_node, gpus)  # GPUs that are not used do not count
        nodes = -(-gpus // per_node)
        if nic_gbps_per_gpu is None and nodes > 1:
            nic_gbps_per_gpu, why = (nic_of_stack, "stack default") if nic_of_stack else nic_default(gpu.name)
            assumed.append(f"network: {nic_gbps_per_gpu:g} Gbit/s per GPU ({why})")
        slow = "pcie" in link.lower() and "nvlink" not in link.lower()
        group = NodeGroup(
            count=nodes,
            gpus=per_node,
            gpu=gpu,
            nic_gbps_per_gpu=None if nic_gbps_per_gpu is None else float(nic_gbps_per_gpu),
            intra_link="pcie" if slow else None,
        )
        return Cluster(zones=(Zone(name="published", nodes=(group,)),)), tuple(assumed)

    def _gpu(self, text: str) -> tuple[Gpu, list[str]]:
        if not text:
            raise RowError("no_gpu", "The GPU is not stated.")
        found = self._catalogue.find("gpus", text)
        if isinstance(found, Gpu):
            sized = _MEMORY_SIZE.search(text) or not _SIZE_IN_NAME.search(found.name)
            return found, [] if sized else [f"gpu: {found.name} (memory size not stated)"]
        if _SEVERAL_KINDS.search(text):
            raise RowError("mixed_gpus", f"The run mixes GPU kinds ({text[:60]}).")
        raise RowError("unknown_gpu", f"No catalogue entry goes by the GPU name {text[:60]!r}.")
