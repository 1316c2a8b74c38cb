from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crosszone.errors import FileError
from crosszone.inputs.document import MAX_BYTES, dump_yaml, parse_document, parse_scalar, read_document

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\u2028\u2029\ufeff")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc-0123", min_size=1, max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(plain)
def test_what_is_written_reads_back_equal(value):
    assert parse_document(dump_yaml(value)).value == value


@given(
    st.sampled_from(
        [
            "yes",
            "no",
            "on",
            "1e12",
            "1_000",
            ".5",
            "0x10",
            "null",
            "~",
            "",
            "true",
            "1.",
            "-",
            "12:30",
            "#",
            "a: b",
            "1e",
            "=",
            "<<",
        ]
    )
)
def test_words_that_look_like_something_else_stay_words_when_written(word):
    assert parse_document(dump_yaml({"name": word})).value == {"name": word}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e12", 1e12),
        ("1.0e+12", 1e12),
        ("-3", -3),
        ("1_000_000", 1_000_000),
        ("no", "no"),
        ("0.5", 0.5),
        (".5", 0.5),
        ("12:30", "12:30"),
        ("0x10", "0x10"),
        ("~", None),
        ("9" * 41, "9" * 41),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    assert parse_scalar(text) == value


def test_infinity_and_nan_are_numbers_that_the_border_can_refuse():
    assert parse_scalar(".inf") == math.inf
    assert math.isnan(parse_scalar(".nan"))


def test_every_field_knows_its_line():
    document = parse_document("a:\n  - b: 1\n    c: 2\n  - d\n")
    assert document.find_line(("a", 0, "c")) == 3
    assert document.find_line(("a", 1)) == 4
    assert document.find_line(("a", 1, "unheard", "of")) == 4


def test_json_is_read_too():
    assert parse_document('{\n\t"a": [1, 2.5, "x", null, true]}').value == {"a": [1, 2.5, "x", None, True]}


def test_json_with_characters_beyond_the_first_plane_is_read_with_lines_and_limits():
    document = parse_document('{"a": "\\ud83d\\ude00",\n "b": 2}')
    assert document.value == {"a": "😀", "b": 2}
    assert document.find_line(("b",)) == 2
    with pytest.raises(FileError) as caught:
        parse_document('{"a": "\\ud83d\\ude00",\n "a": 2}')
    assert caught.value.notices[0].code == "duplicate_key"


def test_an_alias_repeats_its_anchor():
    assert parse_document("a: &x {n: 1}\nb: *x").value == {"a": {"n": 1}, "b": {"n": 1}}


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (bomb(12), "yaml_too_many", 6),
        ("a: &x [*x]", "yaml_alias", 1),
        ("a: *nothing", "yaml_alias", 1),
        ("[" * 100_000, "yaml_too_deep", 1),
        ("a: !!python/object/apply:os.system ['true']", "yaml_tag", 1),
        ("a: !custom 1", "yaml_tag", 1),
        ("a: 1\nb: 2\na: 3", "duplicate_key", 3),
        ("a: 1\n---\nb: 2", "yaml_two_documents", 2),
        ("? [a, b]\n: 1", "yaml_key", 1),
        ("a: [1, 2", "file_not_yaml", 1),
        ("a: b: c", "file_not_yaml", 1),
        ("a:\n\t- 1", "yaml_tab", 2),
        ("a: \x07", "file_not_yaml", None),
    ],
)
def test_documents_that_cannot_be_taken_are_refused_with_their_line(text, code, line):
    with pytest.raises(FileError) as caught:
        parse_document(text, "f.yaml")
    notice = caught.value.notices[0]
    assert (notice.code, notice.file, notice.line) == (code, "f.yaml", line)
    assert notice.message("en") != notice.message("zh")


def test_files_that_cannot_be_read_are_refused(tmp_path):
    cases = {"missing.yaml": None, "binary.yaml": b"a: \xff\xfe\n", "large.yaml": b"a" * (MAX_BYTES + 1)}
    codes = {"missing.yaml": "file_missing", "binary.yaml": "file_not_utf8", "large.yaml": "file_too_large"}
    for name, content in cases.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(FileError) as caught:
            read_document(tmp_path / name)
        assert caught.value.notices[0].code == codes[name]
    with pytest.raises(FileError) as caught:
        read_document(tmp_path)
    assert caught.value.notices[0].code == "file_unreadable"


def test_a_hundred_megabytes_are_not_read(tmp_path):
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(100_000_000)
    with pytest.raises(FileError) as caught:
        read_document(path)
    assert caught.value.notices[0].code == "file_too_large"


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused_never_worse(text):
    try:
        parse_document(text)
    except FileError as error:
        assert str(error)
