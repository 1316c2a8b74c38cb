"""What a workbook says, whatever was done to it; what is wrong is told by sheet and cell."""

from __future__ import annotations

import io
import random
import zipfile

import pytest
from openpyxl import load_workbook
from openpyxl.workbook.defined_name import DefinedName

from calibrate.sheets import small
from crosszone.calibrate.sheet import read_workbook, reading
from crosszone.errors import FileError, InvalidError
from crosszone.schedule.trace import Trace

pytestmark = pytest.mark.slow


def refused(data, kind=InvalidError):
    with pytest.raises(kind) as error:
        read_workbook(data, "book.xlsx")
    for language in ("en", "zh"):
        assert error.value.notices[0].message(language)
        assert error.value.notices[0].hint(language)
    return error.value.notices[0]


def test_phases_become_a_step_with_a_timeline():
    found = read_workbook(small(), "book.xlsx")
    assert found.kind == "sheet"
    assert found.figures["step_time_s"] == 16.0
    told = {"warm_up": 1.0, "forward": 4.0, "backward": 8.0, "waiting": 0.0, "cool_down": 2.0}
    told |= {"all_reduce": 0.5, "optimizer": 0.25, "weights": 0.0, "other": 0.25}
    assert found.steps[0].phases_s == told
    trace = Trace.model_validate(found.timeline, strict=False)
    passes = [(s.kind, s.start_s, s.end_s) for s in trace.spans if s.lane == "stage-last" and s.micro_batch is not None]
    assert passes[:3] == [("forward", 1.0, 2.0), ("backward", 2.0, 4.0), ("forward", 4.0, 5.0)]
    assert len(passes) == 8
    assert max(span.end_s for span in trace.spans) == 16.0
    assert found.notices == ()


def test_phases_of_the_timeline_are_those_of_any_step():
    found = read_workbook(small(), "book.xlsx")
    # first backward pass begins at 2; last forward pass ends at 1 + 3 x 3 + 1 = 11; last pass ends at 15
    assert found.phases_s == pytest.approx({"warm_up": 2.0, "steady": 9.0, "cool_down": 4.0, "tail": 1.0})


def test_the_result_can_be_kept():
    kept = read_workbook(small(out_gpus=8, out_mfu=0.4, part_matmul=10.0), "book.xlsx").to_result(name="mine")
    assert kept["kind"] == "sheet"
    assert kept["document"]["breakdown_s"] == {"matmul": 10.0}
    assert kept["headline"]["step_time_s"]["value"] == 16.0
    assert "trace" in kept["timeline"]


def test_custom_formulas_of_many_functions_are_evaluated():
    formula = "=SUMPRODUCT(out_forward_s,out_micro_batches)+IFERROR(1/0,MEDIAN(1,2,3))+VLOOKUP(2,B20:C21,2,FALSE)"
    book = load_workbook(io.BytesIO(small(out_all_reduce_s=formula)))
    for row, (key, value) in enumerate(((1, 7.0), (2, 0.5)), 20):
        book["Output"].cell(row, 2, key)
        book["Output"].cell(row, 3, value)
    data = io.BytesIO()
    book.save(data)
    found = read_workbook(data.getvalue(), "book.xlsx")
    assert found.figures["step_time_s"] == 16.0 - 0.5 + 4.0 + 2.0 + 0.5


def test_a_file_that_no_program_has_computed_is_evaluated_all_the_same():
    values = load_workbook(io.BytesIO(small()), data_only=True)
    assert values["Output"]["B10"].value is None
    assert read_workbook(small(), "book.xlsx").figures["step_time_s"] == 16.0


def test_values_left_by_a_program_give_way_to_the_formulas():
    data = _with_cached(small(), "B10", "99")
    assert load_workbook(io.BytesIO(data), data_only=True)["Output"]["B10"].value == 99
    found = read_workbook(data, "book.xlsx")
    assert found.figures["step_time_s"] == 16.0
    assert [(n.code, n.params["cell"]) for n in found.notices] == [("sheet_stale", "Output!B10")]


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"out_forward_s": "=1/0"}, "sheet_cell_error", "Output!B2 is #DIV/0!"),
        ({"out_forward_s": '="one"*2'}, "sheet_cell_error", "Output!B2 is #VALUE!"),
        ({"out_forward_s": "=no_such_name*2"}, "sheet_reference_odd", "no_such_name"),
        ({"out_forward_s": "=NoSheet!A1"}, "sheet_reference_odd", "NoSheet!A1"),
        ({"out_forward_s": "=MAGIC(3)"}, "sheet_function_unknown", "MAGIC"),
        ({"out_forward_s": "=RAND()"}, "sheet_function_unknown", "RAND"),
        ({"out_forward_s": "=out_steady_s/8"}, "sheet_circular", "Output!B"),
        ({"out_forward_s": "=out_forward_s+1"}, "sheet_self", "Output!B2 refers to itself: =out_forward_s+1"),
        ({"out_forward_s": "=(1+2"}, "sheet_formula_odd", "Output!B2"),
        ({"out_forward_s": "quick"}, "sheet_no_number", "Output!B2 (out_forward_s) is 'quick'"),
        ({"out_forward_s": "=SUM(A1:XFD1048576)"}, "sheet_too_many_formulas", "Output!B2"),
        ({"out_weights_s": "none"}, "sheet_no_number", "Output!B8 (out_weights_s) is 'none'"),
        ({"out_weights_s": "=IF(1=1,TRUE,0)"}, "sheet_no_number", "Output!B8"),
        ({"out_cool_down_s": -2.0}, "sheet_negative", "Output!B5 (out_cool_down_s) is -2"),
        ({"out_iteration_s": 0}, "sheet_not_positive", "Output!B10"),
        ({"out_iteration_s": None}, "sheet_name_missing", "out_iteration_s"),
        ({"out_micro_batches": 2.5}, "sheet_no_count", "Output!B11 (out_micro_batches) is 2.5"),
        ({"out_micro_batches": 1e9}, "sheet_no_count", "Output!B11"),
    ],
)
def test_what_is_wrong_is_told_by_its_cell(changes, code, said):
    notice = refused(small(**changes))
    assert notice.code == code
    assert said in notice.message()


@pytest.mark.parametrize("chain", [("loop",), ("loop", "noose"), ("loop", "LOOP"), ("loop", "noose", "ring")])
def test_a_name_that_leads_to_itself_is_told(chain):
    names = dict(zip(chain, (*chain[1:], chain[0]), strict=True))
    notice = refused(with_names(small(out_forward_s="=loop*2"), **names))
    assert notice.code == "sheet_name_circular"
    assert "'loop'" in notice.message()
    assert refused(with_names(small(), out_forward_s="out_forward_s")).value == "out_forward_s"


def test_a_long_chain_of_names_is_followed():
    names = {f"link_{n}": f"link_{n + 1}" for n in range(3000)}
    data = with_names(small(out_forward_s="=link_0"), **names, link_3000="Output!$B$11")
    assert read_workbook(data, "book.xlsx").figures["step_time_s"] == 1 + 4 * (4 + 2) + 2 + 1


def test_texts_that_double_from_cell_to_cell_are_refused_where_they_grow_long():
    book = load_workbook(io.BytesIO(small(out_forward_s="=LEN(C60)")))
    book["Output"]["C1"] = "x"
    for row in range(2, 61):
        book["Output"][f"C{row}"] = f"=C{row - 1}&C{row - 1}"
    notice = refused(saved(book))
    assert notice.code == "sheet_text_long"
    assert notice.value == "Output!C16"  # 2**15 = 32,768 characters
    assert notice.params["limit"] == 32_767


@pytest.mark.parametrize(
    ("formula", "told"),
    [
        ("=LEN(C1)", None),
        ("=LEN(C1&C1)", None),
        ("=LEN(C2)", "Output!C2"),
        ("=SUMPRODUCT(LEN(D1:D1000&C1))", "Output!B2"),
        ("=LEN(CONCAT(C1,D1:D1000))", "Output!B2"),
        ("=SUMPRODUCT(LEN(D1:D1000))", None),
    ],
)
def test_texts_have_a_limit_inside_formulas_too(formula, told):
    book = load_workbook(io.BytesIO(small(out_forward_s=formula)))
    book["Output"]["C1"] = "x" * 32_767
    book["Output"]["C2"] = '=C1&"x"'
    if told is None:
        assert read_workbook(saved(book), "book.xlsx").figures["step_time_s"] > 0
    else:
        notice = refused(saved(book))
        assert (notice.code, notice.value) == ("sheet_text_long", told)


def test_all_computed_texts_together_have_a_limit(monkeypatch):
    monkeypatch.setattr(reading, "MOST_TEXTS", 50_000)
    book = load_workbook(io.BytesIO(small(out_forward_s="=LEN(C2)+LEN(C3)+LEN(C4)")))
    book["Output"]["C1"] = "x" * 20_000
    for row in (2, 3, 4):
        book["Output"][f"C{row}"] = '=C1&""'
    notice = refused(saved(book))
    assert (notice.code, notice.params["limit"]) == ("sheet_text_long", 50_000)


def test_an_error_is_told_where_it_began():
    notice = refused(small(out_forward_s="=out_other_s+0", out_other_s="=LOG(0-1,2)"))
    assert notice.value == "Output!B9"
    assert notice.params["asked"].startswith("Output!B")


def test_an_empty_cell_is_never_taken_for_nothing():
    data = small()
    book = load_workbook(io.BytesIO(data))
    book["Output"]["B1"] = None
    out = io.BytesIO()
    book.save(out)
    assert refused(out.getvalue()).code == "sheet_no_number"


def test_phases_that_do_not_add_up_are_told():
    found = read_workbook(small(out_iteration_s=20.0), "book.xlsx")
    assert found.figures["step_time_s"] == 20.0
    assert [notice.code for notice in found.notices] == ["sheet_parts_differ"]
    assert found.steps[0].phases_s == {}


def test_passes_longer_than_their_phase_are_told():
    found = read_workbook(small(out_steady_s=6.0), "book.xlsx")
    assert [notice.code for notice in found.notices] == ["sheet_passes_longer"]


def test_parts_longer_than_the_step_are_left_out():
    found = read_workbook(small(part_matmul=30.0), "book.xlsx")
    assert [notice.code for notice in found.notices] == ["sheet_breakdown_left_out"]
    assert "matmul" not in found.figures["breakdown_s"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "file_empty"),
        (b"label,seconds\n", "sheet_not_xlsx"),
        (b"PK\x03\x04 broken", "sheet_not_xlsx"),
        (b"\xd0\xcf\x11\xe0" + b"\0" * 600, "sheet_old"),
        (b"\xd0\xcf\x11\xe0" + b"\0" * 600 + reading.PASSWORD, "sheet_password"),
        (b"\0" * (reading.MOST_BYTES + 1), "sheet_too_large"),
    ],
)
def test_what_is_no_workbook_is_refused(data, code):
    assert refused(data, FileError).code == code


ENTITIES = b'<!DOCTYPE x [<!ENTITY a "a">]><x/>'
NOISE = random.Random(1).randbytes(300_000).hex().encode()


@pytest.mark.parametrize(
    ("part", "content"),
    [
        ("xl/workbook.xml", ENTITIES),
        ("xl/workbook.xml", b"<!--" + NOISE + b"-->" + ENTITIES),
        ("xl/workbook.xml", (" " * 40_000 + ENTITIES.decode()).encode("utf-16")),
        ("xl/sheet.dat", ENTITIES),
    ],
)
def test_entities_are_refused_wherever_they_stand(part, content):
    notice = refused(archive(**{"xl/workbook.xml": b"<x/>"} | {part: content}), FileError)
    assert (notice.code, notice.params["reason"]) == ("sheet_broken", f"DOCTYPE, {part}")


@pytest.mark.parametrize("mark", reading.ENTITY_MARKS)
def test_entities_are_found_where_two_chunks_meet(mark):
    for before in range(reading.CHUNK - len(mark) - 1, reading.CHUNK + 2):
        part = b" " * before + mark
        notice = refused(archive(**{"xl/workbook.xml": part}), FileError)
        assert notice.params["reason"] == "DOCTYPE, xl/workbook.xml", before
    assert "DOCTYPE" not in refused(archive(**{"xl/workbook.xml": mark[1:]}), FileError).params["reason"]


def test_a_part_that_does_not_unpack_is_refused():
    data = bytearray(archive(**{"xl/workbook.xml": NOISE}))
    data[1000:1100] = b"\xff" * 100
    assert refused(bytes(data), FileError).code == "sheet_not_xlsx"


def archive(**parts):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return data.getvalue()


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"readme.txt": b"hello"}, "sheet_not_xlsx"),
        ({"xl/workbook.xml": b"<x/>", "xl/bomb.xml": b"0" * (reading.MOST_UNPACKED + 1)}, "sheet_bomb"),
        ({"xl/workbook.xml": b"<x/>", "xl/bomb.xml": b"0" * (8 * 2**20)}, "sheet_bomb"),
        ({"xl/workbook.xml": b"<x/>", **{f"xl/{n}.xml": b"" for n in range(reading.MOST_PARTS)}}, "sheet_bomb"),
        ({"xl/workbook.xml": b"<x/>", "xl/vbaProject.bin": b"x"}, "sheet_macros"),
        ({"xl/workbook.xml": b"<x/>", "xl/externalLinks/externalLink1.xml": b"<x/>"}, "sheet_links"),
        ({"xl/workbook.xml": b'<!DOCTYPE x [<!ENTITY a "a">]><x/>'}, "sheet_broken"),
        ({"xl/workbook.xml": b"<x"}, "sheet_broken"),
    ],
)
def test_archives_that_hold_something_else_are_refused(parts, code):
    assert refused(archive(**parts), FileError).code == code


def test_a_workbook_cut_short_is_refused():
    data = small()
    assert refused(data[: len(data) // 2], FileError).code == "sheet_not_xlsx"


def with_names(data, **names):
    """The workbook with more names, or other meanings of those it has."""
    book = load_workbook(io.BytesIO(data))
    for name, text in names.items():
        book.defined_names[name] = DefinedName(name, attr_text=text)
    return saved(book)


def saved(book):
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


def _with_cached(data, cell, value):
    """The file as a spreadsheet program would save it: a value beside the formula."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for part in old.infolist():
            content = old.read(part)
            if part.filename == "xl/worksheets/sheet1.xml":
                start = content.index(f'r="{cell}"'.encode())
                end = content.index(b"</c>", start)
                inner = content[start:end].replace(b"<v></v>", b"").replace(b"<v />", b"").replace(b"<v/>", b"")
                content = content[:start] + inner + f"<v>{value}</v>".encode() + content[end:]
            new.writestr(part, content)
    return out.getvalue()
