"""Profiles: every coefficient has a home, an origin and an error, and each GPU and stack finds its own."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib.resources import files

import numpy as np
import pytest

from crosszone.cost.coefficients import FIELDS, Coefficients, parse_profile_file
from crosszone.cost.profile import GENERIC, Profiles
from crosszone.errors import InvalidError
from crosszone.inputs.catalogue import catalogue
from crosszone.inputs.document import parse_document
from crosszone.inputs.frameworks import load_frameworks

MOST_COEFFICIENTS = 120
SHARES = ("matmul", "matmul_fp8", "flash", "batched", "link", "nic", "a2a_exposed", "tp_exposed", "dp_contention")


@pytest.fixture
def profiles() -> Profiles:
    return Profiles.load()


def text(name: str) -> str:
    return files("crosszone.cost").joinpath("profiles", f"{name}.yaml").read_text("utf-8")


def gpu(name: str, /, **changes):
    found = catalogue().entry("gpus", name)
    return found.replace(**changes) if changes else found


def family(architecture: str, vendor: str = "nvidia", year: int | None = 2020):
    return gpu("a100-80gb-sxm", name="mine", architecture=architecture, vendor=vendor, year=year)


def test_every_coefficient_has_a_common_value_and_there_are_few(profiles):
    assert {field for home, field in profiles.names if home == "common"} == {f.name for f in fields(Coefficients)}
    assert sum(~profiles.fixed) <= MOST_COEFFICIENTS


def test_values_are_what_their_meaning_allows(profiles):
    assert np.all(np.isfinite(profiles.values)) and np.all(profiles.values >= 0)
    assert np.all(np.isfinite(profiles.errors)) and np.all(profiles.errors >= 0)
    for (home, field), value in zip(profiles.names, profiles.values, strict=True):
        assert field not in SHARES or 0 < value <= 1, (home, field)


def test_values_have_at_most_four_digits(profiles):
    assert [v for v in profiles.values if float(f"{v:.4g}") != v] == []


def test_profiles_are_read_once():
    assert Profiles.load() is Profiles.load()


def test_the_stack_comes_before_the_gpu_and_the_gpu_before_the_common_value(profiles):
    at = profiles.place
    found = profiles.index(["a100"], ["megatron-core"])
    assert found["elementwise"] == [[at["stack megatron-core", "elementwise"]]]
    assert found["matmul"] == [[at["gpu a100", "matmul"]]]
    assert found["tile"] == [[at["common", "tile"]]]


def test_a_home_takes_from_the_one_it_is_like(profiles):
    found = profiles.index(["gb200"], ["torchtitan-eager"])
    assert found["flash"] == [[profiles.place["gpu b200", "flash"]]]
    assert found["selective_share"] == [[profiles.place["stack torchtitan-compile", "selective_share"]]]


def test_one_selection_gives_the_same_numbers_as_the_columns_of_many(profiles):
    one = profiles.select(gpu("h100-80gb-sxm"), "composer-fsdp")
    many = profiles.coefficients(["a100", "h100"], ["megatron-core", "composer-fsdp"])
    assert [getattr(one.coefficients, name) for name in FIELDS] == [getattr(many, name)[1, 0] for name in FIELDS]
    assert all(type(getattr(one.coefficients, name)) is float for name in FIELDS)


def test_a_selection_is_made_once(profiles):
    first = profiles.select(gpu("a100-80gb-sxm"), "megatron-core")
    for _ in range(100):
        assert profiles.select(gpu("a100-80gb-sxm"), "megatron-core") is first


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a100-80gb-sxm", ("a100", True)),
        ("a800-80gb-sxm", ("a100", True)),
        ("a100-80gb-pcie", ("a100", False)),
        ("rtx-3090", ("a100", False)),
        ("h20-96gb-sxm", ("h100", False)),
        ("h100-96gb-sxm", ("h100-500w", True)),
        ("t4", ("volta", False)),
        ("rtx-5090", ("b200", False)),
        ("mi300x", (GENERIC, False)),
    ],
)
def test_a_gpu_takes_its_family_its_architecture_or_its_vendors_nearest_generation(profiles, name, expected):
    assert profiles.find_family(gpu(name)) == expected


def test_a_gpu_like_no_other_takes_the_common_values(profiles):
    unknown = family("custom", vendor="custom")
    assert profiles.find_family(unknown) == (GENERIC, False)
    assert profiles.find_family(family("custom", year=None)) == (GENERIC, False)
    taken = profiles.select(unknown, "generic")
    assert taken.coefficients.matmul == profiles.values[profiles.place["common", "matmul"]]
    assert not taken.gpu_measured and not taken.stack_measured


def test_every_gpu_of_the_catalogue_has_a_profile(profiles):
    for one in catalogue().entries("gpus"):
        assert profiles.select(one, "generic").coefficients.matmul > 0


def test_every_framework_has_a_default_stack_of_every_release(profiles):
    """Megatron-LM's first releases are another stack than those of Megatron-Core, and likewise DeepSpeed's."""
    for name in load_frameworks():
        owners = [entry for entry in profiles.stacks.values() if name in entry.get("default_of", ())]
        since = sorted(entry.get("default_from", 0.0) for entry in owners)
        assert since[0] == 0.0 and len(set(since)) == len(since), name
    assert profiles.select_stack("megatron", None, 23.4) == "megatron-lm-2021"
    assert profiles.select_stack("megatron", None, 23.5) == "megatron-core"
    assert profiles.select_stack("deepspeed", None, 22.0) == "megatron-deepspeed"
    assert profiles.select_stack("deepspeed", None) == "deepspeed"
    assert profiles.select_stack("any", None) == GENERIC
    assert profiles.select_stack("megatron", "nanotron", 20.0) == "nanotron"


def test_an_unknown_stack_is_refused_with_the_nearest_name(profiles):
    with pytest.raises(InvalidError) as error:
        profiles.select_stack("megatron", "megatron-cor")
    assert error.value.notices[0].params["nearest"] == ["megatron-core"]


def test_values_of_a_stack_lie_about_those_of_the_stacks_that_it_is_like(profiles):
    """[Q4] A fit shrinks them towards the nearest of these that has a value."""
    assert profiles.list_ancestors("stack megatron-core") == ["stack megatron", "common"]
    assert profiles.list_ancestors("gpu gb200") == ["gpu b200", "common"]
    assert profiles.list_ancestors("common") == ["common"]


def test_other_values_leave_the_shipped_ones_alone(profiles):
    other = profiles.with_values(profiles.values * 2)
    one = gpu("a100-80gb-sxm")
    assert other.select(one, "fsdp").coefficients.tile == 2 * profiles.select(one, "fsdp").coefficients.tile


@pytest.mark.parametrize(
    ("name", "old", "new", "code"),
    [
        ("common", "  tile:", "  tiles:", "unknown_key"),
        ("common", "  tile: {value: ", "  # tile: {value: ", "missing_key"),
        ("common", "origin: fitted", "origin: guessed", "not_one_of"),
        ("gpus", "  vendor: nvidia\n", "", "missing_key"),
        ("gpus", "    flash:", "    flesh:", "unknown_key"),
        ("stacks", "p2p_mask", "p2p_maks", "unknown_key"),
        ("stacks", "attention: flash", "attention: fast", "not_one_of"),
        ("stacks", "    host_s: {value: ", "    host_s: {value: -", "must_be_at_least"),
    ],
)
def test_a_mistake_in_a_profile_file_is_found_when_it_is_read(name, old, new, code):
    whole = text(name)
    assert parse_profile_file(name, parse_document(whole, name))
    at = re.search(rf"{re.escape(old)}", "\n".join(line.partition("  #")[0] for line in whole.split("\n")))
    assert at
    lines = [line if line.startswith("#") else line.replace(old, new) for line in whole.split("\n")]
    if "\n" in old:
        lines = whole.replace(old, new, 1).split("\n")
    with pytest.raises(InvalidError) as error:
        parse_profile_file(name, parse_document("\n".join(lines), name))
    assert code in {notice.code for notice in error.value.notices}
