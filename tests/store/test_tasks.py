"""Tasks move only along their states, one step at a time, with one driver, and everything that happened is kept."""

from __future__ import annotations

import threading
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.errors import InvalidError, UnknownNameError
from crosszone.store.tasks import LIVE, MOVES, RESUMABLE, STATES
from effort import examples
from waiting import wait_until

REQUEST = {"taskName": "gpt3-pretraining"}


def made(store, **more):
    return store.tasks.add(name="gpt", request=REQUEST, **more)[0]


def test_a_task_begins_and_ends(store):
    task = made(store)
    assert (task.state, task.attempt, task.progress, task.token) == ("initializing", 1, {}, None)
    assert store.tasks.move(task.id, "initializing", "preflight", plan={"nodes": [1]}).plan == {"nodes": [1]}
    assert store.tasks.move(task.id, "preflight", "queued", token="t.1") is not None
    assert store.tasks.move(task.id, "queued", "running").token == "t.1"
    store.tasks.update_fields(task.id, progress={"step": 3})
    assert store.tasks.move(task.id, "running", "failed", notice={"code": "x"}).notice == {"code": "x"}
    assert store.tasks.get(task.id).progress == {"step": 3}
    events = store.tasks.list_events(task.id)
    assert [event.number for event in events] == [1, 2, 3, 4, 5]
    assert [event.kind for event in events] == ["created", *["state"] * 4]
    assert events[-1].about == {"from": "running", "to": "failed", "notice": {"code": "x"}}
    assert [event.number for event in store.tasks.list_events(task.id, after=3)] == [4, 5]


def test_a_move_from_where_a_task_is_not_does_nothing(store):
    task = made(store)
    assert store.tasks.move(task.id, "queued", "running", token="stolen") is None
    assert store.tasks.get(task.id).token is None
    assert len(store.tasks.list_events(task.id)) == 1


def test_every_state_can_be_left_or_is_an_end():
    assert set(MOVES) == set(STATES)
    assert {state for state in STATES if not MOVES[state]} == {"succeeded"}
    for state in LIVE[:-1]:
        assert {"stopping", "interrupted"} <= set(MOVES[state])
    assert {state for state in STATES if "initializing" in MOVES[state]} == set(RESUMABLE)


def test_an_impossible_move_is_a_mistake_of_ours(store):
    with pytest.raises(ValueError, match="cannot go"):
        store.tasks.move(made(store).id, "initializing", "succeeded")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    from crosszone.store import open_store

    with open_store(f"sqlite:///{tmp_path_factory.mktemp('tasks')}/saved.db") as opened:
        yield opened


@examples(30)
@given(walk=st.lists(st.sampled_from(STATES), max_size=12))
def test_any_walk_leaves_a_history_that_holds_together(kept, walk):
    task = made(kept)
    state = "initializing"
    for after in walk:
        if after in MOVES[state]:
            assert kept.tasks.move(task.id, state, after).state == after
            state = after
    events = [event.about for event in kept.tasks.list_events(task.id) if event.kind == "state"]
    assert all(first["to"] == second["from"] for first, second in pairwise(events))
    assert kept.tasks.get(task.id).state == state
    assert (task.id in {live.id for live in kept.tasks.list_live()}) == (state in LIVE)


def test_the_same_key_makes_one_task(store):
    first, fresh = store.tasks.add(name="gpt", request=REQUEST, key="k")
    again, twice = store.tasks.add(name="gpt", request=REQUEST, key="k")
    assert (fresh, twice, again.id) == (True, False, first.id)
    with pytest.raises(InvalidError) as refused:
        store.tasks.add(name="gpt", request={"taskName": "other"}, key="k")
    assert refused.value.notices[0].code == "idempotency_other"
    with pytest.raises(InvalidError):
        store.tasks.add(name="gpt", request=REQUEST, key="k" * 500)
    assert store.tasks.page().total == 1


def test_the_same_key_at_once_makes_one_task(store):
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.append(store.tasks.add(name="gpt", request=REQUEST, key="k")[0].id))
        for _ in range(6)
    ]
    for event in threads:
        event.start()
    for event in threads:
        event.join()
    assert len(ids) == 6
    assert len(set(ids)) == 1


def test_one_drives_at_a_time_until_its_time_is_over(store):
    task = made(store)
    assert store.tasks.claim(task.id, "one", 60)
    assert not store.tasks.claim(task.id, "two", 60)
    assert store.tasks.claim(task.id, "one", 0.1)
    wait_until(lambda: store.tasks.claim(task.id, "two", 60))
    assert not store.tasks.claim(task.id, "one", 60)
    store.tasks.release(task.id, "one")  # not its own any more
    assert not store.tasks.claim(task.id, "one", 60)
    store.tasks.release(task.id, "two")
    assert store.tasks.claim(task.id, "one", 60)


def test_a_live_task_is_not_forgotten(store):
    task = made(store)
    with pytest.raises(InvalidError) as refused:
        store.tasks.remove(task.id)
    assert refused.value.notices[0].code == "task_live"
    store.tasks.move(task.id, "initializing", "failed")
    store.tasks.remove(task.id)
    for ask in (store.tasks.get, store.tasks.list_events):
        with pytest.raises(UnknownNameError):
            ask(task.id)


def test_events_are_bounded(store, monkeypatch):
    monkeypatch.setattr("crosszone.store.tasks.MAX_EVENTS", 10)
    task = made(store)
    for number in range(30):
        store.tasks.add_event(task.id, "note", number=number)
    numbers = [event.number for event in store.tasks.list_events(task.id)]
    assert len(numbers) == 10
    assert (numbers[0], numbers[-1]) == (1, 31)
