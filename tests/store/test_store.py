"""What is saved is there again, bounded, in order, and the same on SQLite and PostgreSQL."""

import pytest

from crosszone.errors import InvalidError, UnknownNameError
from crosszone.store import MAX_PAGE, open_store
from crosszone.store.table import MAX_DOCUMENT, MAX_NAME

TEXT = "name: 三城\nmodel: llama-2-7b\n"
HEADLINE = {"step_time_s": {"low": 1.0, "expected": 2.0, "high": 3.0}, "usd": None}


def add_result(store, name="first", **more):
    return store.results.add(kind="predicted", name=name, document={"a": 1.5}, headline=HEADLINE, **more)


def test_a_scenario_is_saved_read_renamed_changed_and_removed(store):
    saved = store.scenarios.add(name="  three cities ", text=TEXT)
    assert (saved.name, saved.text, saved.created[:2], saved.created[-6:]) == ("three cities", TEXT, "20", "+00:00")
    assert store.scenarios.get(saved.id) == saved
    renamed = store.scenarios.change(saved.id, name="两地")
    assert (renamed.name, renamed.text, renamed.created) == ("两地", TEXT, saved.created)
    assert renamed.changed > saved.changed
    assert store.scenarios.change(saved.id, text="model: x").text == "model: x"
    store.scenarios.remove(saved.id)
    with pytest.raises(UnknownNameError):
        store.scenarios.get(saved.id)


def test_a_result_keeps_everything_it_was_given(store):
    override = {"framework": "megatron", "strategy": {"tp": 8}, "placement": None}
    timeline = {"version": 1, "spans": [{"lane": "stage-0", "start_s": 0.0}]}
    saved = add_result(store, scenario=TEXT, way=override, timeline=timeline, note="as of June\nwith lambdas λ")
    read = store.results.get(saved.id)
    assert (read.kind, read.document, read.headline) == ("predicted", {"a": 1.5}, HEADLINE)
    assert (read.scenario, read.way, read.timeline) == (TEXT, override, timeline)
    assert read.note == "as of June\nwith lambdas λ"
    row = store.results.page().rows[0]
    assert row.headline == HEADLINE
    assert not hasattr(row, "document")


def test_what_was_not_given_stays_not_given(store):
    saved = store.results.get(add_result(store).id)
    assert (saved.scenario, saved.way, saved.timeline, saved.note) == (None, None, None, "")


def test_a_note_and_a_name_of_a_result_change_apart(store):
    saved = add_result(store)
    assert store.results.change(saved.id, note="slow link").name == "first"
    changed = store.results.change(saved.id, name="second")
    assert (changed.name, changed.note) == ("second", "slow link")
    assert store.results.change(saved.id) == changed


def test_a_list_goes_newest_first_page_by_page_without_gap_or_repetition(store):
    names = [store.scenarios.add(name=f"n{i}", text="x").name for i in range(7)]
    listed, before = [], None
    while True:
        page = store.scenarios.page(limit=3, before=before)
        assert page.total == 7
        listed += [row.name for row in page.rows]
        before = page.before
        if before is None:
            break
    assert listed == names[::-1]


def test_paging_goes_on_when_the_row_it_stopped_at_is_removed(store):
    saved = [store.scenarios.add(name=f"n{i}", text="x") for i in range(5)]
    page = store.scenarios.page(limit=2)
    store.scenarios.remove(saved[3].id)
    assert [row.name for row in store.scenarios.page(limit=2, before=page.before).rows] == ["n2", "n1"]


def test_a_full_last_page_says_that_it_is_the_last(store):
    for i in range(4):
        store.scenarios.add(name=f"n{i}", text="x")
    second = store.scenarios.page(limit=2, before=store.scenarios.page(limit=2).before)
    assert len(second.rows) == 2
    assert second.before is None


def test_a_page_is_bounded_and_a_wrong_place_is_refused(store):
    store.scenarios.add(name="one", text="x")
    assert len(store.scenarios.page(limit=10**9).rows) == 1
    assert MAX_PAGE == 500
    for place in ("", "x", "2026~", "9" * 1000, "2026-01-01T00:00:00\0~abc", "'; drop table scenarios; --"):
        with pytest.raises(InvalidError) as caught:
            store.scenarios.page(before=place)
        assert caught.value.notices[0].field == "before"


@pytest.mark.parametrize("id", ["", "no", "9223372036854775808", "../x", "a\0b", "\ud800", "é", "x" * 65, "' or 1=1"])
def test_an_id_that_is_not_there_is_named_whatever_it_looks_like(store, id):
    for act in (store.results.get, store.results.remove, lambda unknown: store.results.change(unknown, name="x")):
        with pytest.raises(UnknownNameError) as caught:
            act(id)
        assert caught.value.notices[0].code == "saved_missing"


@pytest.mark.parametrize("name", ["", "   ", "x" * (MAX_NAME + 1), "a\0b", "a\nb", "\ud800", "a\u2028b", "\x1b[31m"])
def test_a_name_that_cannot_be_shown_is_refused_and_nothing_is_saved(store, name):
    with pytest.raises(InvalidError) as caught:
        store.scenarios.add(name=name, text="x")
    assert caught.value.notices[0].code == "saved_name"
    assert store.scenarios.page().total == 0


@pytest.mark.parametrize(
    "name", ["x" * MAX_NAME, "三" * MAX_NAME, "👨‍👩‍👧 family", "O'Brien; drop table results", "%s %(a)s :b"]
)
def test_names_of_all_scripts_come_back_as_they_went(store, name):
    assert store.scenarios.get(store.scenarios.add(name=name, text="x").id).name == name


@pytest.mark.parametrize(("text", "character"), [("a\0b", "U+0000"), ("a\ud800b", "U+D800"), ("a\udfffb", "U+DFFF")])
def test_text_no_database_takes_is_refused_with_its_place(store, text, character):
    with pytest.raises(InvalidError) as caught:
        store.scenarios.add(name="x", text=text)
    notice = caught.value.notices[0]
    assert (notice.code, notice.params["character"], notice.params["place"]) == ("text_unstorable", character, 2)
    assert character in notice.message("zh")


def test_documents_may_hold_any_character(store):
    document = {"a": "nul \0, half \ud800, 三, \u2028"}
    saved = store.results.add(kind="measured", name="x", document=document, headline={})
    assert store.results.get(saved.id).document == document


@pytest.mark.slow
def test_what_is_too_large_is_refused_with_both_sizes(store):
    for field, fields in (("document", {"document": {"a": "x" * MAX_DOCUMENT}}), ("timeline", {"timeline": {"a": "x" * MAX_DOCUMENT}}),
                          ("scenario", {"scenario": "三" * (MAX_DOCUMENT // 3 + 1)}), ("note", {"note": "x" * 10_001})):  # fmt: skip
        with pytest.raises(InvalidError) as caught:
            store.results.add(**{"kind": "sheet", "name": "x", "document": {}, "headline": {}, **fields})
        notice = caught.value.notices[0]
        assert (notice.code, notice.field) == ("saved_too_large", field)
        assert notice.value > notice.params["limit"]
    assert store.results.page().total == 0
    largest = store.scenarios.add(name="x", text="x" * MAX_DOCUMENT)
    assert len(store.scenarios.get(largest.id).text) == MAX_DOCUMENT


def test_a_full_table_is_refused_until_something_is_deleted(store):
    store.scenarios.max_rows = 3
    saved = [store.scenarios.add(name=f"n{i}", text="x") for i in range(3)]
    with pytest.raises(InvalidError) as caught:
        store.scenarios.add(name="one more", text="x")
    assert (caught.value.notices[0].code, caught.value.notices[0].params["limit"]) == ("store_full", 3)
    store.scenarios.remove(saved[0].id)
    assert store.scenarios.add(name="one more", text="x").name == "one more"


def test_ids_cannot_be_guessed_from_one_another(store):
    ids = {store.scenarios.add(name="x", text="x").id for _ in range(50)}
    assert len(ids) == 50
    assert min(map(len, ids)) >= 16


def test_everything_is_there_after_a_restart(url):
    with open_store(url) as first:
        scenario = first.scenarios.add(name="kept", text=TEXT)
        result = add_result(first, scenario=TEXT)
    with open_store(url) as second:
        assert second.scenarios.get(scenario.id) == scenario
        assert second.results.get(result.id) == result
        assert second.results.page().total == 1
