"""Own profiles lie over the shipped values, and nothing else changes."""

from __future__ import annotations

import os

import pytest

from crosszone.cost import own_profiles
from crosszone.cost.operator_profile import load_operator_profile
from crosszone.cost.own_profiles import OwnProfile, get_default, list_saved, load, remove, save, use
from crosszone.cost.profile import Profiles
from crosszone.errors import InputError, InvalidError, UnknownNameError
from crosszone.inputs.catalogue import catalogue


def own(name="mine", **changes):
    faster = {"value": 0.9, "error": 0.01, "origin": "measured"}
    given = {"name": name, "source": "kernels of one GPU", "created": "2026-11-16"}
    return OwnProfile(**given, **({"gpus": {"a100-80gb-sxm": {"matmul": faster}}} | changes))


@pytest.fixture
def a100():
    return catalogue().entry("gpus", "a100-80gb-sxm")


@pytest.fixture(autouse=True)
def nothing_given():
    yield
    own_profiles.override_default(None)


def test_the_values_it_names_take_the_place_of_the_shipped_ones_and_the_rest_stays(a100):
    shipped = Profiles.load_shipped()
    over = shipped.with_own(own())
    before, after = (one.select(a100, "megatron-core") for one in (shipped, over))
    assert after.coefficients.matmul == 0.9
    assert after.gpu_measured
    changed = {name for name, value in vars(after.coefficients).items() if value != getattr(before.coefficients, name)}
    assert changed == {"matmul"}


def test_other_gpus_of_the_family_keep_their_values():
    over, shipped = Profiles.load_shipped().with_own(own()), Profiles.load_shipped()
    for name in ("a100-40gb-sxm", "h100-80gb-sxm", "rtx-4090"):
        gpu = catalogue().entry("gpus", name)
        assert over.select(gpu, "megatron-core") == shipped.select(gpu, "megatron-core")


def test_a_gpu_that_was_like_another_counts_as_measured_once_it_was():
    gpu = catalogue().entry("gpus", "rtx-4090")
    assert not Profiles.load_shipped().select(gpu, "generic").gpu_measured
    named = {"rtx-4090": {"matmul": {"value": 0.5, "error": 0.1, "origin": "measured"}}}
    over = Profiles.load_shipped().with_own(own(gpus=named))
    assert over.select(gpu, "generic").gpu_measured
    assert over.select(gpu, "generic").coefficients.matmul == 0.5


def test_a_stack_of_which_one_log_was_seen_counts_as_measured(a100):
    named = {"generic": {"host_s": {"value": 0.002, "error": 0.1, "origin": "fitted"}}}
    over = Profiles.load_shipped().with_own(own(gpus={}, stacks=named))
    assert over.select(a100, "generic").coefficients.host_s == 0.002
    assert over.select(a100, "generic").stack_measured
    assert not Profiles.load_shipped().select(a100, "generic").stack_measured


def test_values_for_some_stacks_leave_the_others_alone(a100):
    over = Profiles.load_shipped().with_own(own(for_stacks=("hf-eager",)))
    assert over.select(a100, "hf-eager").coefficients.matmul == 0.9
    before = Profiles.load_shipped().select(a100, "megatron-core").coefficients
    assert over.select(a100, "megatron-core").coefficients == before


def test_kernels_of_an_h200_timed_alone_are_for_stacks_fitted_beside_them():
    """Megatron-Core's coefficients were fitted to whole runs on H100: it keeps the values of that family."""
    h200, h100 = (catalogue().gpu(name) for name in ("h200-141gb-sxm", "h100-80gb-sxm"))
    shipped = Profiles.load_shipped()
    assert shipped.select(h200, "megatron-core").coefficients == shipped.select(h100, "megatron-core").coefficients
    eager = [shipped.select(gpu, "hf-eager").coefficients.flash for gpu in (h200, h100)]
    assert eager[0] == shipped.gpus["h200"]["coefficients"]["flash"]["value"] != eager[1]


def test_the_h200_family_holds_what_its_samples_tell():
    told = load_operator_profile("h200-141gb-sxm").coefficients
    family = Profiles.load_shipped().gpus["h200"]["coefficients"]
    assert {name: entry["value"] for name, entry in family.items()} == {name: told[name].value for name in family}


def test_the_default_is_laid_over_every_prediction_until_it_is_taken_away(a100):
    assert Profiles.load() is Profiles.load_shipped()
    save(own())
    assert Profiles.load() is Profiles.load_shipped()
    use("mine")
    assert Profiles.load().own == "mine"
    assert Profiles.load() is Profiles.load()
    assert Profiles.load().select(a100, "megatron-core").coefficients.matmul == 0.9
    use(None)
    assert Profiles.load() is Profiles.load_shipped()


def test_a_change_of_its_file_is_seen(a100):
    save(own())
    use("mine")
    Profiles.load()
    slower = {"a100-80gb-sxm": {"matmul": {"value": 0.4, "error": 0.01, "origin": "measured"}}}
    path = save(own(gpus=slower), replace=True)
    os.utime(path, ns=(1, 1))
    assert Profiles.load().select(a100, "megatron-core").coefficients.matmul == 0.4


def test_a_given_one_goes_before_the_default_and_so_do_the_shipped_values():
    save(own())
    use("mine")
    own_profiles.override_default(own("other"))
    assert Profiles.load().own == "other"
    own_profiles.use_shipped()
    assert Profiles.load().own is None
    own_profiles.override_default(None)
    assert Profiles.load().own == "mine"


def test_one_that_was_the_default_leaves_the_shipped_values_when_it_goes():
    save(own())
    use("mine")
    remove("mine")
    assert get_default() is None
    assert list_saved() == []


@pytest.mark.parametrize("text", ["a: [1", "name: broken\n", "\0"])
def test_one_that_cannot_be_read_can_be_deleted_and_predictions_go_on(text):
    path = save(own("broken"))
    use("broken")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        Profiles.load()
    remove("broken")
    assert not path.exists()
    assert Profiles.load() is Profiles.load_shipped()
    with pytest.raises(UnknownNameError):
        remove("broken")


def test_nothing_outside_the_folder_is_deleted(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(own_profiles.format_text(own()), encoding="utf-8")
    for name in (str(path), str(path.with_suffix("")), "../../mine"):
        with pytest.raises(UnknownNameError):
            remove(name)
    assert path.exists()


def test_a_file_that_is_not_kept_is_no_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(own("other"))
    use("other")
    for name in ("x.yaml", "plain"):
        (tmp_path / name).write_text(own_profiles.format_text(own("x")), encoding="utf-8")
        with pytest.raises(InvalidError) as error:
            use(name if name == "plain" else f"./{name}")
        notice = error.value.notices[0]
        assert notice.code == "own_profile_unsaved"
        assert "--profile" in notice.hint("en")
        assert "--profile" in notice.hint("zh")
        assert load(name).name == "x"
    assert get_default() == "other"
    with pytest.raises(UnknownNameError):
        use("./not-there.yaml")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("Train run_7",), "train-run-7"),
        (("h200", "samples"), "h200-samples"),
        (("default",), "default-measured"),
        (("None",), "none-measured"),
        (("训练",), "measured"),
        (("-" + "a" * 59 + "-b",), "a" * 59),
    ],
)
def test_a_name_from_words_is_one_that_a_profile_may_have(words, name):
    assert own_profiles.name_from(*words) == name
    assert own(name).name == name


def test_a_default_that_has_vanished_is_told_not_passed_over():
    path = save(own())
    use("mine")
    path.unlink()
    with pytest.raises(InputError) as error:
        Profiles.load()
    assert error.value.notices[0].code == "own_profile_default"


def test_what_is_kept_is_read_again():
    kept = own(notes=("host time stays unknown",), scores={"error_before_pct": 12.0})
    save(kept)
    assert load("mine") == kept
    with pytest.raises(InvalidError) as error:
        save(kept)
    assert error.value.notices[0].code == "own_profile_exists"


@pytest.mark.parametrize(
    ("text", "code", "field"),
    [
        ("name: ../x\nsource: s\ncreated: d", "own_profile_name", "name"),
        ("name: default\nsource: s\ncreated: d", "own_profile_name", "name"),
        ("name: a\nsource: s\ncreated: d\nstacks: {generic: {hots_s: {value: 1, error: 0, origin: fitted}}}", "unknown_key", "stacks.hots_s"),
        ("name: a\nsource: s\ncreated: d\nstacks: {generic: {host_s: {value: -1, error: 0, origin: fitted}}}", None, "stacks.generic.host_s.value"),
        ("name: a\nsource: s\ncreated: d\nwhat: 1", "unknown_key", "what"),
        ("- 1", "must_be_mapping", "profile"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named(text, code, field):
    with pytest.raises(InputError) as error:
        own_profiles.parse_text(text)
    notice = error.value.notices[0]
    assert notice.field == field
    assert code is None or notice.code == code


def test_an_unknown_name_is_told_with_the_nearest():
    save(own("my-cluster"))
    with pytest.raises(UnknownNameError) as error:
        load("my-clusters")
    assert error.value.notices[0].params["nearest"] == ["my-cluster"]


def test_a_stack_that_is_not_there_is_refused():
    named = {"megatron-cor": {"host_s": {"value": 0.002, "error": 0.1, "origin": "fitted"}}}
    with pytest.raises(InvalidError) as error:
        Profiles.load_shipped().with_own(own(gpus={}, stacks=named))
    assert error.value.notices[0].params["nearest"] == ["megatron-core"]
