"""Single transfers over shaped links, as the DT-FM authors measured them, by NCCL and by Gloo."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from crosszone.analyse.published.dtfm_rig import told
from crosszone.analyse.published.result import Result
from crosszone.cost.collectives import Ring, all_reduce
from crosszone.cost.gloo import gloo_all_reduce_s, gloo_send_s
from crosszone.cost.tiers import BYTES_PER_S_PER_GBPS, Tier, figure
from crosszone.cost.wan import Transport, hosts_rtt_s

FAMILY = "tc-micro"
BYTES_PER_MB = 2**20  # Tensors are sized by powers of two
_SIZE = re.compile(r"(p2p|all-reduce)(?: \w+)? time of (\d{1,6}) MB")


def tc_micro_results(rows: Sequence[Mapping[str, str]]) -> list[Result]:
    """Every row of the family beside what the links' formulas say."""
    return [_result(row) for row in rows]


def transfer_s(
    kind: str, library: Literal["nccl", "gloo"], size_bytes: float, ranks: int, rtt_s: float, gbps: float
) -> float:
    """Seconds of one transfer over connections that are warm. [A29]

    `gbps`: what an instance may send. NCCL opens many connections, which together fill it; Gloo one, which has a
    ceiling of its own.
    """
    many = library == "nccl"
    how = Transport(library=library, flows=told()["sockets"] if many else 1)
    line = gbps * BYTES_PER_S_PER_GBPS * figure("tcp", "efficiency")
    cap = np.inf if many else told()["micro"]["flow_gbps"] * BYTES_PER_S_PER_GBPS
    rate = np.minimum(line, how.group_bytes_per_s(rtt_s, 0.0, cap))
    if kind == "p2p":
        asked = gloo_send_s(size_bytes, hosts_rtt_s(rtt_s), rate)
        return float(how.latency_s(rtt_s) + size_bytes / rate if many else asked)
    if many:
        return float(all_reduce(size_bytes, Ring(ranks=ranks, link=Tier(rate, how.latency_s(rtt_s)))).seconds)
    return float(gloo_all_reduce_s(size_bytes, ranks, hosts_rtt_s(rtt_s), rate))


def _result(row: Mapping[str, str]) -> Result:
    size, library = _SIZE.search(row["metric"]), row["method"].lower()
    predicted = None
    if size and library in ("nccl", "gloo"):
        kind, megabytes = size[1], float(size[2])
        delay_s = float(row["rtt_ms"] or 0.0) * 1e-3
        predicted = 1e3 * transfer_s(
            kind,
            "nccl" if library == "nccl" else "gloo",
            megabytes * BYTES_PER_MB,
            int(row["gpus"]),
            told()["delays_per_round_trip"] * delay_s,
            float(row["inter_zone_gbps"] or told()["nic_gbps"]),
        )
    return Result(
        id=row["id"],
        family=FAMILY,
        case=", ".join((row["setting"], row["method"], row["metric"], _link(row))),
        unit=row["unit"],
        published=float(row["value"]),
        predicted=predicted,
        reason="" if predicted is not None else "published_unmodelled",
    )


def _link(row: Mapping[str, str]) -> str:
    return f"{row['inter_zone_gbps'] or told()['nic_gbps']} Gbit/s, {row['rtt_ms'] or 0} ms"
