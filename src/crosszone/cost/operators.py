"""What one operator costs on one GPU, in seconds.

Every function takes numbers or arrays that broadcast. Peaks and memory rates come from the datasheet, the shares of
them that are reached from the profile.
"""

from __future__ import annotations

import numpy as np

from crosszone.cost.columns import Numbers
from crosszone.cost.record import as_array


def matmul_s(
    rows: Numbers, inner: Numbers, columns: Numbers, flop_per_s: Numbers, byte_s: Numbers, copies: Numbers = 1.0
) -> Numbers:
    """Seconds of `rows x inner` times `inner x columns`: arithmetic plus a share of its traffic. [O1]

    2 M K N / (efficiency x peak) + tile x (M K + copies K N + M N) x 2 bytes / memory rate; `byte_s` is tile / rate.
    The second term makes small M, K or N costly; `copies` weight matrices of a grouped product share the rows.
    """
    some = (as_array(inner) > 0) & (as_array(columns) > 0)
    traffic = rows * inner + copies * inner * columns + rows * columns
    return np.where(some, 2.0 * rows * inner * columns / flop_per_s + 2.0 * traffic * byte_s, 0.0)


def flash_attention_s(tokens: Numbers, seen: Numbers, width: Numbers, flop_per_s: Numbers) -> Numbers:
    """Seconds of the fused attention core: 2 T n (e_qk + e_v) a / rate. [O2]

    `seen` counts only the tokens that are not masked; `width` is heads x (query width + value width) on this GPU.
    """
    return 2.0 * tokens * seen * width / flop_per_s


def flash_share(head: Numbers, seq: Numbers, width: Numbers, ramp: Numbers) -> Numbers:
    """Rate of the fused attention over that of heads 128 wide and long sequences. [O11]

    Heads are padded to a multiple of 32, and wide ones feed tensor cores better: d (1 + width / 128) / (pad + width);
    short sequences leave part of the GPU idle: s / (s + ramp).
    """
    padded = np.ceil(as_array(head) / HEAD_BLOCK) * HEAD_BLOCK
    return head * (1.0 + width / USUAL_HEAD) / (padded + width) * seq / (seq + ramp)


HEAD_BLOCK, USUAL_HEAD = 32.0, 128.0
"""Heads are computed in blocks of this width; *flash* is the share reached with heads of that one."""


def unfused_attention_s(
    tokens: Numbers,
    seq: Numbers,
    width: Numbers,
    heads: Numbers,
    flop_per_s: Numbers,
    score_byte_s: Numbers,
    score_bytes: Numbers,
) -> Numbers:
    """Seconds of attention as two batched products and a softmax: masked scores are computed too. [O3]

    2 T s (e_qk + e_v) a / rate, plus `score_bytes` of traffic for each of the T s a scores.
    """
    return 2.0 * tokens * seq * width / flop_per_s + tokens * seq * heads * score_bytes * score_byte_s


def traffic_s(size_bytes: Numbers, bytes_per_s: Numbers) -> Numbers:
    """Seconds of an operator that is bound by memory: bytes read and written over the rate reached. [O4]"""
    return size_bytes / bytes_per_s


def longer_s(one: Numbers, other: Numbers, sharpness: float = 6.0) -> Numbers:
    """The longer of two that run side by side, rounded where they are about equal. [O5]

    (x^n + y^n)^(1/n): never below the longer one; 12 % above it where both are equal and n = 6.
    """
    top = np.maximum(one, other)
    low = np.minimum(one, other)
    ratio = low / np.maximum(top, 1e-30)
    return top * (1.0 + ratio**sharpness) ** (1.0 / sharpness)
