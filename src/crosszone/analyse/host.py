"""Host tuning: settings of Linux hosts that links between zones need, with the figures of this scenario."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from crosszone.analyse.communication import list_crossing_groups
from crosszone.cost.wan import slow_start_s
from crosszone.inputs.links import ZoneLink
from crosszone.inputs.value import Value
from crosszone.predict.predict import build_prediction
from crosszone.predict.prediction import Prediction, Traffic
from crosszone.predict.predictor import Predictor
from crosszone.text import render_sentence

STEP_BYTES = 2**20  # Buffers are rounded up to whole MiB
MOST_BYTES = 2047 * STEP_BYTES  # Linux takes no more: the setting is a signed number of 32 bits
USUAL_TIMEOUT_MINUTES = 10  # After which PyTorch and Megatron give a collective up
PATIENCE = 3  # Timeout over the longest exchange


class HostSetting(Value):
    """One setting of the hosts."""

    name: str
    """Key of its sentence."""
    setting: str
    """As it is typed."""
    why: str
    """What it is for, with the figures of this scenario."""
    saves_s: float | None
    """Seconds of a step it saves at most; null: not computed."""


def list_host_settings(p: Predictor, language: str = "en") -> tuple[HostSetting, ...]:
    """What hosts should be set to for the links in use; nothing where no link leaves a zone. [A7]

    Buffers: twice the bandwidth-delay product of the link that needs most. Restart after idleness: what the first burst
    of a step loses on each of its connections [T6].
    """
    prediction = build_prediction(p)
    rows = _list_zone_rows(prediction)
    pairs = {frozenset(row.link.split(" > ")) for row in rows}
    used = {frozenset(link.between): link for link in p.placed.links.values() if frozenset(link.between) in pairs}
    if not used:
        return ()
    link = max(used.values(), key=_compute_bdp_bytes)
    size = _compute_bdp_bytes(link)
    buffer = min(MOST_BYTES, max(STEP_BYTES, math.ceil(2 * size / STEP_BYTES) * STEP_BYTES))
    facts = {"link": " - ".join(link.between), "gbps": link.gbps, "rtt": link.rtt_ms.expected, "mb": size / 1e6}
    lossy = max(used.values(), key=lambda use: use.loss_pct)
    longest = _find_longest_s(p, rows)
    ceilings = f"net.core.rmem_max={buffer} net.core.wmem_max={buffer}"
    autos = f'net.ipv4.tcp_rmem="4096 131072 {buffer}" net.ipv4.tcp_wmem="4096 65536 {buffer}"'

    restart = _estimate_restart_s(p, rows, used, prediction.step_time_s.expected)
    settings: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("buffers", f"sysctl -w {ceilings} {autos}", facts),
        ("idle", "sysctl -w net.ipv4.tcp_slow_start_after_idle=0", {"saved": restart}),
        ("congestion", "sysctl -w net.ipv4.tcp_congestion_control=bbr", {"loss": lossy.loss_pct}),
        ("mtu", "sysctl -w net.ipv4.tcp_mtu_probing=1", {}),
        ("timeout", _format_timeout(p, _round_timeout_minutes(longest)), {"longest": longest}),
    )
    return tuple(
        HostSetting(
            name=name,
            setting=setting,
            why=render_sentence("host", name, "why", language, params),
            saves_s=restart if name == "idle" else None,
        )
        for name, setting, params in settings
    )


def compute_timeout_minutes(p: Predictor) -> int:
    """Minutes after which a collective should be given up: three times the longest exchange, at least ten. [A7]"""
    return _round_timeout_minutes(_find_longest_s(p, _list_zone_rows(build_prediction(p))))


def _round_timeout_minutes(longest_s: float) -> int:
    return max(USUAL_TIMEOUT_MINUTES, math.ceil(PATIENCE * longest_s / 60))


def _list_zone_rows(prediction: Prediction) -> list[Traffic]:
    """Rows of the traffic between zones."""
    return [row for row in prediction.communication if " > " in row.link]


def _compute_bdp_bytes(link: ZoneLink) -> float:
    """Bandwidth-delay product, bytes."""
    return max(link.gbps, link.gbps_back) * 1e9 / 8 * link.rtt_ms.expected * 1e-3


def _estimate_restart_s(
    p: Predictor, rows: Sequence[Traffic], used: Mapping[frozenset[str], ZoneLink], step_s: float
) -> float:
    """Seconds that a step loses to TCP slow start after idle time, on the link where that is most."""
    senders: dict[str, int] = defaultdict(int)
    for group in list_crossing_groups(p.placed):
        senders[group.link] += group.groups
    worst = 0.0
    for row in rows:
        if not senders[row.link]:
            continue
        link = used[frozenset(row.link.split(" > "))]
        rate = float(p.placed.transport.group_bytes_per_s(link.rtt_ms.expected * 1e-3, link.loss_pct / 100))
        idle = max(0.0, step_s - row.busy_s)
        size = row.bytes_per_step / (senders[row.link] * max(1.0, row.messages))
        worst = max(worst, float(slow_start_s(size, link.rtt_ms.expected * 1e-3, rate, idle)))
    return worst


def _find_longest_s(p: Predictor, rows: Sequence[Traffic]) -> float:
    """Seconds of the longest single exchange between zones."""
    local = p.strategy.local_update
    # such rows are means over all steps: one averaging lasts as long as theirs up to the next
    period = local.steps / local.fragments if local is not None else 1.0
    return max((row.busy_s * (period if row.kind == "local update" else 1.0) for row in rows), default=0.0)


def _format_timeout(p: Predictor, minutes: int) -> str:
    if p.framework.name == "megatron":
        return f"--distributed-timeout-minutes {minutes}"
    return f"init_process_group(timeout=timedelta(minutes={minutes}))"
