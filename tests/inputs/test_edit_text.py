"""Texts changed in place: what is wanted is said, and what did not change stays as it was written."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT
from crosszone.inputs.document import dump_yaml, parse_document
from crosszone.inputs.edit_text import edit_yaml

TEXT = """\
# about
job:
  seq_len: 4096   # tokens
  tokens: 1.0e+12
zones:
  - name: here    # the first
    nodes: [{count: 8, gpu: a100}]
  - {name: there, nodes: [{count: 4, gpu: a100}]}   # the second
strategy: {tp: 8, pp: 4}  # pinned
"""


def changed(change, text=TEXT):
    value = parse_document(text).value
    change(value)
    after = edit_yaml(text, value)
    assert parse_document(after).value == value
    return after


def differing(after, text=TEXT):
    return [line for line in after.splitlines() if line not in text.splitlines()]


def test_a_changed_number_changes_its_line_alone():
    after = changed(lambda value: value["job"].update(seq_len=8192))
    assert differing(after) == ["  seq_len: 8192   # tokens"]
    assert len(after.splitlines()) == len(TEXT.splitlines())


def test_an_equal_value_leaves_the_text_as_it_is():
    value = parse_document(TEXT).value
    value["job"]["tokens"] = 1_000_000_000_000  # the same number, as JSON writes it
    assert edit_yaml(TEXT, value) == TEXT


def test_a_new_key_follows_the_last_one_of_its_mapping():
    after = changed(lambda value: value["job"].update(precision="bf16"))
    assert differing(after) == ["  precision: bf16"]
    assert after.splitlines()[4] == "  precision: bf16"


def test_a_key_of_a_flow_mapping_comes_and_goes():
    assert differing(changed(lambda value: value["strategy"].update(dp=2))) == [
        "strategy: {tp: 8, pp: 4, dp: 2}  # pinned"
    ]
    assert differing(changed(lambda value: value["strategy"].pop("tp"))) == ["strategy: {pp: 4}  # pinned"]
    assert differing(changed(lambda value: value["strategy"].pop("pp"))) == ["strategy: {tp: 8}  # pinned"]


def test_an_item_of_a_list_comes_and_goes():
    added = changed(lambda value: value["zones"].append({"name": "new", "nodes": [{"count": 1, "gpu": "h100"}]}))
    assert all(line in added.splitlines() for line in TEXT.splitlines())
    gone = changed(lambda value: value["zones"].pop(1))
    assert gone == TEXT.replace("  - {name: there, nodes: [{count: 4, gpu: a100}]}   # the second\n", "")


def test_a_list_in_one_line_grows_there():
    after = changed(lambda value: value["zones"][0]["nodes"].append({"count": 2, "gpu": "h100"}))
    assert differing(after) == ["    nodes: [{count: 8, gpu: a100}, {count: 2, gpu: h100}]"]


def test_a_list_of_which_nothing_is_left_as_it_was_is_written_anew():
    after = changed(lambda value: value.update(zones=[{"name": "elsewhere"}]))
    assert "there" not in after.replace("elsewhere", "")
    assert after.startswith("# about") and "# pinned" in after


def test_the_first_key_of_an_item_goes_although_the_dash_stands_there():
    assert "name: here" not in changed(lambda value: value["zones"][0].pop("name"))


def test_an_alias_is_written_out_so_that_one_place_changes_alone():
    text = "a: &x {n: 1}\nb: *x\n"
    assert parse_document(changed(lambda value: value.update(a={"n": 2}), text)).value == {"a": {"n": 2}, "b": {"n": 1}}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_form_edit_of_an_example_keeps_every_comment(path):
    text = path.read_text("utf-8")
    after = changed(lambda value: value["job"].update(global_batch=777), text)
    assert len(differing(after, text)) == 1
    assert after.count("#") == text.count("#")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1000, 1000)
    | st.sampled_from(["a", "b: c", "# d", "", "no", "1e3", "中 文"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from("abc"), values), st.dictionaries(st.sampled_from("abc"), values))
def test_whatever_is_wanted_is_what_the_text_says_afterwards(before, wanted):
    assert parse_document(edit_yaml(dump_yaml(before), copy.deepcopy(wanted))).value == wanted
