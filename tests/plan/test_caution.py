"""[Q14] Plans with options that no measured run has must win by a share of what their range is wider."""

from __future__ import annotations

import math

import pytest

from crosszone.cost.coefficients import Knowledge, compute_caution, read_band_parts


def test_an_option_without_runs_counts_as_slower():
    """[Q14] base 0.0638, option 0.16: (e^0.1723 / e^0.0638)^0.5; computed from bands.yaml as it is."""
    base, option = (float(read_band_parts()["step"][name]["high"]) for name in ("base", "option"))
    expected = math.exp(0.5 * (math.hypot(base, option) - base))
    assert compute_caution(Knowledge(option_measured=False)) == pytest.approx(expected)
    assert expected > 1.02


@pytest.mark.parametrize("moe", [False, True])
@pytest.mark.parametrize("software", [False, True])
def test_what_all_plans_lack_cancels_out(moe, software):
    """[Q14] Without such an option there is no caution, whatever else is not known."""
    assert compute_caution(Knowledge(moe=moe, software_stated=software, gpu_measured=False)) == 1.0


def test_caution_is_smaller_where_all_is_uncertain():
    """[Q14] Widths add in squares, so that one more unknown widens a wide range less."""
    wide = compute_caution(Knowledge(option_measured=False, gpu_measured=False, software_stated=False))
    assert 1.0 < wide < compute_caution(Knowledge(option_measured=False))
