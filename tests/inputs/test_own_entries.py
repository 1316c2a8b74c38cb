"""The user's own entries: kept, listed, replaced and refused without losing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import fields, zone
from crosszone import InputError, catalogue, load_scenario
from crosszone.errors import InvalidError
from crosszone.inputs.catalogue.own import add_entries, build_entry_fields, remove_entry
from crosszone.inputs.document import dump_yaml, parse_document
from crosszone.inputs.scenario import list_scenario_notices

GOOD = "mine: {dense_tflops: {bf16: 10}, memory_gib: 8, memory_gb_per_s: 100}"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a100-80gb-sxm: {dense_tflops: {bf16: 10}, memory_gib: 8, memory_gb_per_s: 100}", "name_taken"),
        ("mine: {aliases: [H100], dense_tflops: {bf16: 10}, memory_gib: 8, memory_gb_per_s: 100}", "name_taken"),
        ("mine: {dense_tflops: {bf16: 10}, memory_gib: 0, memory_gb_per_s: 100}", "must_be_more_than"),
        ("mine: {dense_tflops: {bf16: 10}, memory_gib: -1, memory_gb_per_s: 100}", "must_be_more_than"),
        ("mine: {dense_tflops: {bf16: .nan}, memory_gib: 8, memory_gb_per_s: 100}", "not_finite"),
        ("mine: {dense_tflops: {bf16: 10}, memory_gib: .inf, memory_gb_per_s: 100}", "not_finite"),
        ("mine: {dense_tflops: {int8: 10}, memory_gib: 8, memory_gb_per_s: 100}", "unknown_key"),
        ("../../evil: {dense_tflops: {bf16: 10}, memory_gib: 8, memory_gb_per_s: 100}", "own_name"),
        ("Mine GPU: {dense_tflops: {bf16: 10}, memory_gib: 8, memory_gb_per_s: 100}", "own_name"),
        ("mine: {like: no-such-gpu}", "unknown_name"),
        ("mine: 3", "catalogue_not_mapping"),
        ("{name: mine, like: a100}", "catalogue_not_mapping"),
        ("- mine", "catalogue_not_mapping"),
        ("{}", "nothing_to_add"),
    ],
)
def test_bad_entries_are_refused_and_nothing_is_written(home, text, code):
    with pytest.raises(InputError) as caught:
        add_entries("gpus", parse_document(text, "mine.yaml"))
    assert caught.value.notices[0].code == code
    assert caught.value.notices[0].file == "mine.yaml"
    assert not home.exists()


def test_one_bad_entry_keeps_the_good_ones_out_too(home):
    with pytest.raises(InvalidError):
        add_entries("gpus", parse_document(GOOD + "\nother: {memory_gib: 8}"))
    assert not home.exists()


def test_replacing_needs_to_be_asked_for():
    add_entries("gpus", parse_document(GOOD))
    changed = parse_document(GOOD.replace("memory_gib: 8", "memory_gib: 16"))
    with pytest.raises(InvalidError) as caught:
        add_entries("gpus", changed)
    assert caught.value.notices[0].code == "own_exists"
    add_entries("gpus", changed, replace=True)
    assert catalogue().gpu("mine").memory_gib == 16


def test_built_in_entries_cannot_be_removed():
    with pytest.raises(InvalidError) as caught:
        remove_entry("gpus", "a100")
    assert caught.value.notices[0].code == "not_own"


def test_a_model_of_ones_own_can_be_used_in_a_scenario_and_is_written_in_full():
    add_entries("models", parse_document("my-7b: {like: llama-2-7b, layers: 16}"))
    scenario = load_scenario(fields(model="my-7b"))
    assert scenario.model.layers == 16
    written = scenario.to_fields()["model"]
    assert written["layers"] == 16
    assert written["name"] == "my-7b"
    remove_entry("models", "my-7b")
    assert load_scenario(scenario.to_fields()) == scenario


def test_a_region_of_ones_own_places_a_zone():
    add_entries("regions", parse_document("my-site: {lat: 30.0, lon: 120.0, place: Our hall}"))
    scenario = load_scenario(fields(cluster={"zones": [zone("a", region="my-site"), zone("b", region="beijing")]}))
    assert scenario.links[0, 1].km == pytest.approx(1145, abs=10)


def test_files_edited_by_hand_are_read_and_mistakes_name_the_line(home):
    folder = home / "catalogue" / "gpus"
    folder.mkdir(parents=True)
    (folder / "ours.yaml").write_text(
        GOOD + "\nsecond: {dense_tflops: {bf16: 10}, memory_gib: 8, memory_gb_per_s: 1}\n"
    )
    assert catalogue().gpu("second").memory_gb_per_s == 1
    remove_entry("gpus", "second")
    assert catalogue().find("gpus", "second") is None
    assert catalogue().gpu("mine").memory_gib == 8
    (folder / "ours.yaml").write_text(GOOD + "\nbroken: {memory: 8}\n")
    with pytest.raises(InputError) as caught:
        catalogue().gpu("mine")
    assert caught.value.notices[0].line == 2


@pytest.mark.parametrize("kind", ["gpus", "models", "regions"])
def test_every_built_in_entry_reads_back_from_its_yaml(kind):
    for entry in catalogue().entries(kind)[::5]:
        renamed = {"copy-of-it": {key: value for key, value in build_entry_fields(entry).items() if key != "aliases"}}
        copy = add_entries(kind, parse_document(dump_yaml(renamed)), replace=True)[0]
        assert {**build_entry_fields(copy), "aliases": None} == {**build_entry_fields(entry), "aliases": None}


def test_a_file_edited_by_hand_may_build_on_other_entries(home):
    folder = home / "catalogue" / "gpus"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text("ours: {like: a100-80gb-sxm, memory_gib: 160}\n")
    (folder / "b.yaml").write_text("ours-too: {like: ours, tdp_w: 250}\n")
    assert (catalogue().gpu("ours-too").memory_gib, catalogue().gpu("ours-too").tdp_w) == (160, 250)
    (folder / "c.yaml").write_text("lost: {like: nothing-there}\n")
    with pytest.raises(InputError) as caught:
        catalogue().gpu("lost")
    assert (caught.value.notices[0].code, caught.value.notices[0].field, caught.value.notices[0].line) == (
        "unknown_name",
        "lost.like",
        1,
    )


def test_one_bad_file_does_not_stop_what_does_not_need_it(home):
    folder = home / "catalogue" / "gpus"
    folder.mkdir(parents=True)
    (folder / "gone.yaml").symlink_to(folder / "missing")
    (folder / "broken.yaml").write_text("broken: {memory_gib: x}\n")
    assert catalogue().gpu("a100").memory_gib == 80
    warned = [n for n in list_scenario_notices(load_scenario(fields())) if n.file]
    assert {n.level for n in warned} == {"warning"}
    assert {Path(n.file).name for n in warned} == {"gone.yaml", "broken.yaml"}
    with pytest.raises(InputError) as caught:
        catalogue().gpu("broken")
    assert "broken.yaml" in str(caught.value)
    remove_entry("gpus", "broken")
    assert not (folder / "broken.yaml").exists()


def test_figures_that_were_changed_lose_their_source():
    add_entries("gpus", parse_document("mine: {like: h100-80gb-sxm, memory_gib: 160, dense_tflops: {fp8: 1}}"))
    own = catalogue().gpu("mine")
    assert own.find_source("memory_gib") == own.find_source("dense_tflops") == "own"
    assert own.find_source("tdp_w") == catalogue().gpu("h100").find_source("tdp_w")
    assert own.notes == ""
    assert (own.peak("fp8"), own.peak("bf16")) == (1, catalogue().gpu("h100").peak("bf16"))


def test_nested_fields_of_a_like_model_are_merged():
    model = load_scenario(fields(model={"like": "mixtral-8x7b", "moe": {"experts": 16}})).model
    assert (model.moe.experts, model.moe.top_k) == (16, 2)
    assert model.name == "mixtral-8x7b with moe experts 16"


def test_two_entries_of_one_file_may_not_share_a_name(home):
    folder = home / "catalogue" / "gpus"
    folder.mkdir(parents=True)
    (folder / "two.yaml").write_text("one: {like: a100, aliases: [same]}\ntwo: {like: a100, aliases: [same]}\n")
    with pytest.raises(InputError) as caught:
        catalogue().gpu("two")
    assert caught.value.notices[0].code == "name_taken"


def test_a_misspelt_name_is_told_as_such_whatever_else_is_wrong(home):
    folder = home / "catalogue" / "gpus"
    folder.mkdir(parents=True)
    (folder / "broken.yaml").write_text("broken: {memory_gib: x}\n")
    with pytest.raises(InputError) as caught:
        catalogue().gpu("a101")
    assert caught.value.notices[0].code == "unknown_name"


def test_a_source_given_beside_a_figure_is_kept():
    add_entries(
        "gpus", parse_document("sourced: {like: a100, memory_gib: 96, tdp_w: 300, sources: {memory_gib: vendor-mail}}")
    )
    own = catalogue().gpu("sourced")
    assert (own.find_source("memory_gib"), own.find_source("tdp_w")) == ("vendor-mail", "own")
