"""Threads, processes and servers use one store at the same time."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from crosszone.store import open_store

WRITER = """
import sys
from crosszone.store import open_store
with open_store(sys.argv[1]) as store:
    for i in range(50):
        store.scenarios.add(name=f"{sys.argv[2]}-{i}", text="x")
"""

pytestmark = pytest.mark.slow  # starts processes


def names(store):
    names, before = [], None
    while True:
        page = store.scenarios.page(limit=100, before=before)
        names += [row.name for row in page.rows]
        before = page.before
        if before is None:
            return names


def test_eight_threads_write_fifty_each_while_others_read(store):
    def write(thread):
        for i in range(50):
            saved = store.scenarios.add(name=f"{thread}-{i}", text="x" * 100)
            if i % 10 == 0:
                store.scenarios.change(saved.id, text="y")
                assert store.scenarios.get(saved.id).text == "y"
        return len(store.scenarios.page(limit=500).rows)

    with ThreadPoolExecutor(8) as pool:
        assert min(pool.map(write, range(8))) >= 50
    assert sorted(names(store)) == sorted(f"{thread}-{i}" for thread in range(8) for i in range(50))


def test_two_processes_open_a_new_store_and_write_at_once(url):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, url, name], stderr=subprocess.PIPE) for name in "ab"]
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors.decode()
    with open_store(url) as store:
        assert sorted(names(store)) == sorted(f"{name}-{i}" for name in "ab" for i in range(50))


def test_many_servers_open_a_new_database_at_the_same_time(url):
    ready = threading.Barrier(8)

    def open_and_add(number):
        ready.wait()
        with open_store(url) as store:
            return store.scenarios.add(name=str(number), text="x").name

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(open_and_add, range(8))) == [str(number) for number in range(8)]
    with open_store(url) as store:
        assert store.scenarios.page().total == 8


def test_what_one_removes_while_another_renames_is_either_gone_or_renamed_never_both(store):
    for _ in range(20):
        saved = store.scenarios.add(name="x", text="x")
        with ThreadPoolExecutor(2) as pool:
            renaming = pool.submit(store.scenarios.change, saved.id, name="y")
            pool.submit(store.scenarios.remove, saved.id).result()
            assert renaming.exception() is None or renaming.exception().notices[0].code == "saved_missing"
    assert store.scenarios.page().total == 0


def test_connections_that_the_server_closed_are_made_anew(postgres_url):
    import psycopg

    with open_store(postgres_url) as store:
        saved = store.scenarios.add(name="x", text="x")
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert store.scenarios.get(saved.id) == saved
