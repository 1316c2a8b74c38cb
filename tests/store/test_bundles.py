"""Saved bundles come back as they were, however many nodes they have, and no larger than they may be."""

import re

import pytest

from crosszone.deploy.bundle import Bundle, BundleFile, NodeCommand, Option
from crosszone.errors import InvalidError, UnknownNameError
from crosszone.store import open_store
from crosszone.store import saved as module


def bundle(nodes=2, **changes):
    """A bundle whose files are 8 and 6 bytes (三城 has six in UTF-8), and a script of equal length for each node."""
    script = "#!/bin/sh\nexec torchrun --node-rank {:04d}\n"
    fields = {
        "name": "三城",
        "framework": "fsdp",
        "launcher": "ssh",
        "template": False,
        "world_size": 8 * nodes,
        "port": 29500,
        "nodes": tuple(
            NodeCommand(
                number=number,
                name=f"bj-{number}",
                zone="beijing",
                address=f"10.0.{number // 256}.{number % 256}",
                interface=None,
                ranks=(f"{8 * number}-{8 * number + 7}",),
                script=f"nodes/{number:03d}.sh",
                commands=(f"torchrun --node-rank {number}",),
            )
            for number in range(nodes)
        ),
        "how": ("bash start-ssh.sh",),
        "options": (Option(where="key", name="zero", value={"stage": 3}, why="Sharded."),),
        "files": (
            BundleFile(path="README.md", text="# Bundle"),
            BundleFile(path="plan.yaml", text="三城"),
            *(BundleFile(path=f"nodes/{number:03d}.sh", text=script.format(number)) for number in range(nodes)),
        ),
        "warnings": ({"code": "gbps_example", "level": "warning"},),
    }
    return Bundle(**fields | changes)


def test_a_bundle_comes_back_as_it_was(store):
    source = bundle()
    saved = store.bundles.add(name=" mine ", bundle=source)
    assert (saved.name, saved.framework, saved.launcher, saved.template) == ("mine", "fsdp", "ssh", False)
    assert (saved.world_size, saved.nodes) == (16, 2)
    assert store.bundles.get(saved.id) == saved
    assert store.bundles.get(saved.id).bundle == source
    store.bundles.remove(saved.id)
    with pytest.raises(UnknownNameError):
        store.bundles.get(saved.id)


def test_the_list_tells_the_size_of_the_files_and_not_the_files(store):
    store.bundles.add(name="first", bundle=bundle())
    store.bundles.add(name="second", bundle=bundle(template=True, framework="ddp"))
    rows = store.bundles.page().rows
    assert [row.name for row in rows] == ["second", "first"]
    assert [(row.template, row.framework) for row in rows] == [(True, "ddp"), (False, "fsdp")]
    assert rows[0].bytes == 8 + 6 + 2 * len("#!/bin/sh\nexec torchrun --node-rank 0000\n")
    assert not hasattr(rows[0], "bundle")


def test_ids_cannot_be_guessed_from_one_another(store):
    ids = [store.bundles.add(name="x", bundle=bundle()).id for _ in range(3)]
    assert len(set(ids)) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{16}", id) for id in ids)
    assert len({id[:4] for id in ids}) == 3  # nothing counts up


@pytest.mark.slow
def test_two_thousand_nodes_take_little_room(store, url):
    source = bundle(2048)
    saved = store.bundles.add(name="large", bundle=source)
    assert store.bundles.get(saved.id).bundle == source
    column = store.bundles.table.c.bundle
    with store.bundles._access.begin_read() as connection:
        packed = connection.execute(column.table.select()).mappings().one()["bundle"]
    assert len(packed) < saved.bytes < module.MAX_BUNDLE_BYTES


def test_more_than_may_be_kept_is_refused(store, monkeypatch):
    source = bundle()
    size = sum(len(log.text.encode()) for log in source.files)
    monkeypatch.setattr(module, "MAX_BUNDLE_BYTES", size)
    store.bundles.add(name="as large as may be", bundle=source)
    monkeypatch.setattr(module, "MAX_BUNDLE_BYTES", size - 1)
    with pytest.raises(InvalidError) as caught:
        store.bundles.add(name="x", bundle=source)
    assert (caught.value.notices[0].code, caught.value.notices[0].value) == ("saved_too_large", size)
    monkeypatch.setattr(module, "MAX_BUNDLE_BYTES", size)
    monkeypatch.setattr(module, "MAX_PACKED_BYTES", 10)
    with pytest.raises(InvalidError):
        store.bundles.add(name="x", bundle=source)
    monkeypatch.setattr(module, "MAX_PACKED_BYTES", 10**9)
    store.bundles.max_rows = 1
    with pytest.raises(InvalidError) as full:
        store.bundles.add(name="x", bundle=source)
    assert full.value.notices[0].code == "store_full"
    assert store.bundles.page().total == 1


def test_a_database_that_has_no_bundles_yet_is_brought_up_to_date(url):
    with open_store(url) as store:
        saved = store.scenarios.add(name="old", text="x")
        with store.bundles._access.begin_write() as connection:
            later = ("bundles", "task_events", "tasks", "environments", "datasets", "training_models", "measured_links")
            for table in later:
                connection.exec_driver_sql(f"DROP TABLE {table}")
            connection.exec_driver_sql("UPDATE crosszone_version SET version_num = '0002'")
    with open_store(url) as again:
        assert again.scenarios.get(saved.id) == saved
        assert again.bundles.page().total == 0
        assert again.tasks.page().total == 0
        again.bundles.add(name="new", bundle=bundle())
    with open_store(url) as reopened:
        assert [row.name for row in reopened.bundles.page().rows] == ["new"]
