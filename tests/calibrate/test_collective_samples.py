"""Files of timed collectives: each wrong row is named, and then nothing is used."""

from __future__ import annotations

import pytest

from crosszone.calibrate.collective_fit import parse_samples, read_collectives
from crosszone.errors import FileError, InputError, InvalidError
from crosszone.text import LANGUAGES

HEAD = "op,scope,zone,nodes,gpus_per_node,ranks,groups,bytes,time_us,spread_pct,bus_gb_per_s,flag"
GOOD = "all_reduce,node,a,1,4,4,1,1000000,100,2.0,15,"


def text(*rows: str, head: str = HEAD) -> str:
    return "\n".join((head, *rows)) + "\n"


def refused(*rows: str, head: str = HEAD):
    with pytest.raises(InputError) as caught:
        parse_samples(text(*rows, head=head), "samples.csv")
    return caught.value.notices


def test_rows_are_read_with_their_place_and_seconds():
    (row,) = parse_samples(text(GOOD)).rows
    assert (row.where.op, row.where.scope, row.where.zone, row.where.ranks) == ("all_reduce", "node", "a", 4)
    assert (row.size_bytes, row.time_s) == (1e6, pytest.approx(1e-4))


def test_a_table_without_scope_and_groups_is_read():
    head = "cluster,op,size_class,nodes,gpus_per_node,ranks,bytes,time_us,bus_gb_per_s,flag"
    read = parse_samples(
        text("here,all_gather,large,2,1,2,1000000,1000,1,", "there,send_recv,small,1,2,2,1000000,1000,1,odd", head=head)
    )
    (row,) = read.rows
    assert (row.where.scope, row.where.groups, row.where.size_class) == ("network", 1, "large")
    assert read.flagged == {"odd": 1} and read.clusters == ("here", "there")


def test_flagged_rows_are_left_out_and_counted():
    noisy, failed = GOOD + "noisy", "all_to_all,node,a,1,4,4,1,1000000,,,,failed"
    read = parse_samples(text(GOOD, noisy, failed))
    assert len(read.rows) == 1 and read.flagged == {"noisy": 1, "failed": 1}
    assert len(parse_samples(text(GOOD, noisy, failed), keep_noisy=True).rows) == 2
    assert refused(noisy, failed)[0].code == "collective_none"


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("broadcast,node,a,1,4,4,1,1000000,100,2.0,15,", "collective_choice"),
        ("all_reduce,zone,a,1,4,4,1,1000000,100,2.0,15,", "collective_choice"),
        ("all_reduce,a>a,,2,1,2,1,1000000,100,2.0,10,", "collective_choice"),
        ("all_reduce,node,a,1,4,8,1,1000000,100,2.0,15,", "collective_ranks"),
        ("all_reduce,node,a,1,1,1,1,1000000,100,2.0,,", "collective_ranks"),
        ("all_reduce,node,a,1,4,4,1,1000000,-100,2.0,15,", "collective_number"),
        ("all_reduce,node,a,1,4,4,1,1000000,-100,2.0,15,noisy", "collective_number"),
        ("all_reduce,node,a,1,4,4,1,0,100,2.0,15,", "collective_number"),
        ("all_reduce,node,a,1,4,4,1,1000000,,2.0,,", "collective_number"),
        ("all_reduce,node,a,1,4,4,1,1000000,nan,2.0,,", "collective_number"),
        ("all_reduce,node,a,1,4,4,1,1000000,soon,2.0,,", "collective_number"),
        ("all_reduce,node,a,1.5,4,4,1,1000000,100,2.0,15,", "collective_number"),
        ("all_reduce,node,a,1,4,4,1,1000000,0.1,2.0,15,", "collective_impossible"),  # milliseconds, seconds
        ("all_reduce,node,a,1,4,4,1,1000,100,2.0,15,", "collective_units"),  # kB
        ("all_reduce,node,a,1,4,4,1,1000000,100000,2.0,15,", "collective_units"),  # ns
    ],
)
def test_a_wrong_row_is_named(row, code):
    (notice,) = refused(GOOD, row)
    assert (notice.code, notice.params["row"], notice.line) == (code, 3, 3)
    for language in LANGUAGES:
        assert "3" in notice.message(language) and notice.hint(language)


def test_every_wrong_row_is_told_at_once():
    rows = [GOOD.replace(",100,", f",-{number},") for number in range(1, 4)]
    assert [notice.line for notice in refused(rows[0], GOOD, *rows[1:])] == [2, 4, 5]


def test_a_row_with_too_few_cells_or_without_the_columns_is_refused():
    assert refused("all_reduce,node,a,1")[0].code == "collective_cells"
    (notice,) = refused(head="op,nodes,gpus_per_node,ranks,bytes,time_ms")
    assert notice.code == "runs_columns" and notice.params["missing"] == ["time_us"]
    assert refused(head="")[0].code == "runs_columns"


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(FileError):
        read_collectives(tmp_path / "none.csv")


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "samples.csv"
    path.write_bytes(bytes(range(256)) * 40)
    with pytest.raises(InputError):
        read_collectives(path)


def test_only_one_cluster_is_read_on_request():
    head = "cluster," + HEAD
    rows = ("x," + GOOD, "y," + GOOD, "y," + GOOD + "noisy")
    assert len(parse_samples(text(*rows, head=head), cluster="y").rows) == 1
    with pytest.raises(InvalidError):
        parse_samples(text(*rows, head=head), cluster="z")
