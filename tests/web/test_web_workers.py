"""Work of which nothing is heard is ended, and said to be."""

from multiprocessing import Pipe

import pytest

from crosszone.errors import InputError
from crosszone.web import workers


def test_work_of_which_nothing_is_heard_is_ended(monkeypatch):
    monkeypatch.setattr(workers, "SILENCE_S", 0.2)
    ended = []

    def end(self):
        ended.append(self)

    worker = object.__new__(workers.WorkerProcess)
    worker._pipe, theirs = Pipe()
    monkeypatch.setattr(workers.WorkerProcess, "end", end)
    try:
        with pytest.raises(InputError) as refusal:
            worker._answer(workers.WorkItem(print, ()))
    finally:
        theirs.close()
        worker._pipe.close()
    assert refusal.value.notices[0].code == "work_silent"
    assert ended == [worker]
