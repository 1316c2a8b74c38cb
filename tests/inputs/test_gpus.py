"""The GPU table is pinned against datasheets; each figure has a source. [L1]"""

from __future__ import annotations

import re

import pytest

from conftest import ROOT
from crosszone import Gpu, catalogue
from crosszone.inputs.catalogue.own import add_entries, remove_entry
from crosszone.inputs.document import parse_document


def gpus() -> list[Gpu]:
    return [entry for entry in catalogue().entries("gpus") if isinstance(entry, Gpu)]


@pytest.mark.parametrize(
    ("name", "bf16", "fp16", "fp8", "memory_gib", "memory_gb_per_s", "link_both_ways", "tdp_w"),
    [
        # NVIDIA datasheets: V100 (2018), A100 (2021), H100, H200, HGX B200; halves of the sparse figures. L4 and L40S:
        # 24 and 48 GiB less the share ECC takes, as the driver reports
        ("v100-32gb-sxm", None, 125, None, 32, 900, 300, 300),
        ("a100-40gb-sxm", 312, 312, None, 40, 1555, 600, 400),
        ("a100-80gb-sxm", 312, 312, None, 80, 2039, 600, 400),
        ("a100-80gb-pcie", 312, 312, None, 80, 1935, None, 300),
        ("a800-80gb-sxm", 312, 312, None, 80, 2039, 400, 400),
        ("h100-80gb-sxm", 989.4, 989.4, 1978.9, 80, 3350, 900, 700),
        ("h800-80gb-sxm", 989.4, 989.4, 1978.9, 80, 3350, 400, 700),
        ("h20-96gb-sxm", 148, 148, 296, 96, 4000, 900, None),
        ("b200-sxm", 2250, 2250, 4500, None, 8000, 1800, 1000),
        ("l4", 121, 121, 242.5, 22.49, 300, None, 72),
        ("l40s", 362, 362, 733, 44.99, 864, None, 350),
        # AMD Instinct datasheets
        ("mi250x", 383, 383, None, 128, 3277, None, 560),
        ("mi300x", 1307.4, 1307.4, 2614.9, 192, 5300, 896, 750),
        # half of the 18.45 PFLOP/s fp16 and 36.9 fp8 that AMD prints for eight MI350X
        ("mi350x", 18453 / 8, 18453 / 8, 36905 / 8, 288, 8000, 7 * 153.6, 1000),
        # Google Cloud's pages of the TPUs, AWS Neuron's of Trainium2
        ("tpu-v5p", 459, None, None, 95, 2765, 1200, None),
        ("tpu-v6e", 918, None, None, 32, 1638, 800, None),
        ("trainium2", 667, 667, 1299, 96, 2900, 1024, None),
        # Intel Gaudi 2 and 3 white papers; Gaudi 3 at the clock it ships with (1.6 of the 1.75 GHz of the 1835 in the paper)
        ("gaudi-2", 432, None, 865, 96, 2460, None, 600),
        ("gaudi-3", 1835 * 1.6 / 1.75, None, 1835 * 1.6 / 1.75, 128, 3700, None, 900),
    ],
)
def test_the_table_agrees_with_the_datasheets(
    name, bf16, fp16, fp8, memory_gib, memory_gb_per_s, link_both_ways, tdp_w
):
    gpu = catalogue().gpu(name)
    peaks = {"bf16": bf16, "fp16": fp16, "fp8": fp8}
    for precision, peak in peaks.items():
        if peak is not None:
            assert gpu.peak(precision) == pytest.approx(peak, rel=0.005), precision
    assert gpu.memory_gb_per_s == pytest.approx(memory_gb_per_s, rel=0.01)
    if memory_gib is not None:
        assert gpu.memory_gib == pytest.approx(memory_gib, rel=0.005)
    if link_both_ways is not None:
        assert gpu.link is not None
        assert gpu.link.gb_per_s_both_ways == link_both_ways
        assert gpu.link.gb_per_s == link_both_ways / 2
    if tdp_w is not None:
        assert gpu.tdp_w == tdp_w


def test_v100_has_neither_bf16_nor_fp8():
    assert catalogue().gpu("v100").peak("bf16") is None
    assert catalogue().gpu("v100").peak("fp8") is None


def test_there_are_more_than_thirty_and_all_figures_have_a_source():
    assert len(gpus()) >= 30
    citations = catalogue().sources
    for gpu in gpus():
        figures = ["dense_tflops", "memory_gib", "memory_gb_per_s", "link", "pcie", "tdp_w", "usd_per_hour"]
        for figure in figures:
            if figure in gpu.model_fields_set:
                assert gpu.find_source(figure) in citations, (gpu.name, figure)


def test_every_architecture_is_a_documented_word():
    """A misspelt one would silently take the coefficients of the family nearest in year."""
    fields = (ROOT / "src/crosszone/inputs/catalogue/FIELDS.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| architecture \| +\| ([^|(]+)", fields, re.MULTILINE)
    assert {gpu.architecture for gpu in gpus()} == set(row.strip().split(", "))


def test_the_named_families_are_there():
    names = " ".join(catalogue().names("gpus"))
    for family in (
        "v100",
        "a100",
        "a800",
        "h100",
        "h800",
        "h20-",
        "h200",
        "b200",
        "gb200",
        "gb300",
        "l4",
        "l40s",
        "rtx-",
        "titan-rtx",
        "mi250x",
        "mi300x",
        "mi350x",
        "mi355x",
        "tpu-v5p",
        "tpu-v6e",
        "trainium2",
        "ascend-910b",
        "gaudi-2",
        "gaudi-3",
    ):
        assert family in names


def test_rates_are_dense_not_sparse():
    for gpu in gpus():
        peaks = gpu.dense_tflops
        if peaks.bf16 and peaks.fp8:
            assert peaks.fp8 <= 2.05 * peaks.bf16, gpu.name
        if peaks.tf32 and peaks.bf16 and gpu.vendor == "nvidia":
            assert peaks.bf16 <= 2.05 * peaks.tf32, gpu.name


def test_pcie_rates_follow_from_lane_rate_and_line_code():
    """PCIe 3.0: 8 GT/s x 128/130 / 8 = 0.985 GB/s a lane, 15.75 GB/s for 16; each generation doubles."""
    assert catalogue().gpu("v100-16gb-pcie").pcie.gb_per_s == pytest.approx(15.754, abs=0.001)
    assert catalogue().gpu("a100-80gb-pcie").pcie.gb_per_s == pytest.approx(31.508, abs=0.001)
    assert catalogue().gpu("h100-80gb-pcie").pcie.gb_per_s == pytest.approx(63.015, abs=0.001)


def test_a_rack_is_one_domain_only_for_rack_scale_gpus_and_pods():
    assert [gpu.name for gpu in gpus() if gpu.link and gpu.link.spans_nodes] == ["gb200", "gb300", "tpu-v5p", "tpu-v6e"]


@pytest.mark.parametrize(
    ("name", "machine_gpus", "nic_gbps_per_gpu"),
    [
        ("v100-32gb-sxm", 8, 4 * 100 / 8),  # DGX-1: four EDR ports
        ("a100-80gb-sxm", 8, 200),  # DGX A100: eight HDR ports
        ("h100-80gb-sxm", 8, 400),  # DGX H100: eight NDR ports
        ("b200-sxm", 8, 400),
        ("b300-sxm", 8, 800),
        ("gb200", 4, 400),
        ("gb300", 4, 800),
        ("mi300x", 8, 400),  # Azure ND MI300X v5: 8 x 400 Gigabit
        ("trainium2", 16, 3200 / 16),  # trn2.48xlarge: EFA 3,200 Gbit/s
    ],
)
def test_the_usual_machine_of_a_gpu_is_that_of_its_datasheet(name, machine_gpus, nic_gbps_per_gpu):
    usual = catalogue().gpu(name).usual_machine
    assert (usual.gpus, usual.nic_gbps_per_gpu) == (machine_gpus, nic_gbps_per_gpu)


def test_every_usual_machine_has_a_source_and_cards_for_any_server_have_none():
    with_machine = {gpu.name: gpu.find_source("usual_machine") for gpu in gpus() if gpu.usual_machine}
    assert set(with_machine.values()) <= catalogue().sources.keys()
    assert not {"l40s", "rtx-4090", "a100-80gb-pcie", "t4"} & with_machine.keys()


def test_gpus_without_a_measured_run_borrow_and_say_so():
    from crosszone.cost.profile import Profiles

    for name in ("mi350x", "tpu-v5p", "tpu-v6e", "trainium2"):
        assert not Profiles.load_shipped().select(catalogue().gpu(name), "megatron-core").gpu_measured, name


def test_the_gpu_of_every_measured_row_is_known():
    """Rows of several kinds (16xRTX-2080+8xRTX-3090) name no single GPU; rows of the cross-zone file may name none."""
    import csv
    from importlib.resources import files

    folder = files("crosszone.measured")
    for path in sorted(p for p in folder.iterdir() if p.name.endswith(".csv")):
        rows = list(csv.DictReader(path.read_text("utf-8").splitlines()))
        kinds = {row["gpu"] for row in rows if row.get("gpu") and "+" not in row["gpu"]}
        assert not [kind for kind in kinds if catalogue().find("gpus", kind) is None], path.name


def test_failure_rates_follow_from_published_counts():
    """Llama 3 paper: 419 unexpected interruptions in 54 days on 16,384 H100."""
    rates = catalogue().failures
    assert rates["h100-80gb-sxm"].failures_per_1000_gpu_days == pytest.approx(419 / (16.384 * 54), abs=0.005)
    assert rates["h100-80gb-sxm"].origin in ("measured", "derived")
    assert rates["default"].origin == "assumed"
    assert all(rate.source in catalogue().sources for rate in rates.values())
    assert catalogue().find_failure_rate(catalogue().gpu("t4")) == rates["default"]


MY_GPU = """
my-gpu:
  dense_tflops: {fp16: 100, bf16: 100}
  memory_gib: 48
  memory_gb_per_s: 1000
  usd_per_hour: 0
"""


def test_a_gpu_of_ones_own_survives_and_may_be_free(home):
    add_entries("gpus", parse_document(MY_GPU))
    assert (home / "catalogue" / "gpus" / "my-gpu.yaml").exists()
    gpu = catalogue().gpu("My_GPU")
    assert (gpu.usd_per_hour, gpu.memory_gib, gpu.peak("bf16")) == (0, 48, 100)
    assert catalogue().is_own("gpus", "my-gpu")
    remove_entry("gpus", "my-gpu")
    assert catalogue().find("gpus", "my-gpu") is None


def test_a_gpu_may_be_like_another():
    add_entries("gpus", parse_document("big-a100: {like: a100-80gb-sxm, memory_gib: 160}"))
    gpu = catalogue().gpu("big-a100")
    assert (gpu.memory_gib, gpu.peak("bf16"), gpu.link.gb_per_s_both_ways) == (160, 312, 600)
