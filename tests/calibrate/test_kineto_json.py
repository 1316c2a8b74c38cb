"""A trace read in pieces is the trace read whole."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from crosszone.calibrate import kineto_json, user_files
from crosszone.calibrate.kineto_json import EVENTS, CutOffError, iterate_members
from crosszone.calibrate.user_files import iterate_chunks
from crosszone.errors import FileError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
DOCUMENTS = st.builds(
    lambda before, events, after: {**before, EVENTS: events, **after},
    st.dictionaries(st.text().filter(lambda key: key != EVENTS), PLAIN, max_size=3),
    st.lists(PLAIN, max_size=8),
    st.dictionaries(st.text().filter(lambda key: key != EVENTS), PLAIN, max_size=3),
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(at)]


def whole(chunks) -> dict:
    """What the members are together."""
    found: dict = {}
    for name, value in iterate_members(chunks):
        if name == EVENTS and isinstance(value, list):
            found.setdefault(EVENTS, []).extend(value)
        else:
            found[name] = value
    return found


@given(DOCUMENTS, st.lists(st.integers(0, 10_000), max_size=12), st.sampled_from([None, 1, "\t"]))
@example({EVENTS: [1, 12345, -1.5e300, 1e-5, True, None, "}],{", {"a": [1]}]}, list(range(80)), None)
def test_any_document_cut_anywhere_is_what_json_makes_of_it(document, cuts, indent):
    for ascii_only in (True, False):
        data = json.dumps(document, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        if b"\xed" in data:  # half a pair of surrogates is no UTF-8
            continue
        expected = json.loads(data)
        if not expected[EVENTS]:
            expected.pop(EVENTS)
        assert whole(pieces(data, cuts)) == expected


@given(st.lists(PLAIN, min_size=1, max_size=8), st.lists(st.integers(0, 10_000), max_size=12))
def test_an_array_alone_is_read_as_events(events, cuts):
    data = json.dumps(events).encode()
    assert whole(pieces(data, cuts)) == {EVENTS: json.loads(data)}


@example({EVENTS: []}, 1, 1)
@example({EVENTS: [10.5]}, 18, 1)
@example({EVENTS: [10.5]}, 20, 7)
@example({EVENTS: [1e300]}, 19, 2)
@given(DOCUMENTS, st.integers(0, 10_000), st.integers(1, 7))
def test_what_is_cut_off_gives_what_came_before_and_says_so(document, end, step):
    data = json.dumps(document).encode()
    cut = data[: end % len(data)]
    given_events: list = []

    def take():
        for name, value in iterate_members([cut[at : at + step] for at in range(0, len(cut), step)]):
            if name == EVENTS:
                given_events.extend(value)

    with pytest.raises(FileError):
        take()
    assert given_events == json.loads(data)[EVENTS][: len(given_events)]


@given(st.binary(max_size=200), st.integers(1, 9))
def test_no_bytes_raise_anything_but_a_refusal(data, step):
    with contextlib.suppress(FileError):
        whole([data[at : at + step] for at in range(0, len(data), step)])


def test_a_wrong_event_is_named_by_its_number():
    text = '{"traceEvents": [{"a": 1}, {"a": 2}, {"a": nope, "padding": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"}]}'
    with pytest.raises(FileError) as error:
        whole([text.encode()])
    assert error.value.notices[0].code == "kineto_event_bad"
    assert error.value.notices[0].params["event"] == 3
    assert not isinstance(error.value, CutOffError)


def test_what_is_nested_without_end_is_refused():
    with pytest.raises(FileError):
        whole([b'{"traceEvents": [' + b"[" * 200_000])


def test_one_endless_event_is_refused_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(kineto_json, "MAX_VALUE_CHARS", 10_000)

    def endless():
        yield b'{"traceEvents": [{"name": "'
        while True:
            yield b"x" * 1000

    with pytest.raises(FileError) as error:
        whole(endless())
    assert error.value.notices[0].code == "kineto_event_long"


def test_a_compressed_trace_reads_as_the_plain_one_also_in_several_members():
    text = json.dumps({EVENTS: [{"n": n} for n in range(1000)]}).encode()
    for packed in (gzip.compress(text), gzip.compress(text[:500]) + gzip.compress(text[500:])):
        assert b"".join(iterate_chunks(io.BytesIO(packed))) == text


def test_a_file_that_expands_without_end_is_refused_after_little_of_it(monkeypatch):
    monkeypatch.setattr(user_files, "FREE_BYTES", 2**20)
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join([packer.compress(b"[" + b" " * 2**20) for _ in range(64)]) + packer.flush()
    seen: list[int] = []
    with pytest.raises(FileError) as error:
        seen.extend(len(part) for part in iterate_chunks(io.BytesIO(bomb)))
    assert error.value.notices[0].code == "kineto_bomb"
    assert sum(seen) <= 4 * 2**20


def test_more_than_the_limit_is_refused_compressed_or_not():
    for data in (b"x" * 5000, gzip.compress(b"x" * 5000)):
        with pytest.raises(FileError) as error:
            list(iterate_chunks(io.BytesIO(data), limit_bytes=4000))
        assert error.value.notices[0].code == "trace_too_large"


def test_damaged_compression_is_refused():
    packed = bytearray(gzip.compress(bytes(range(256)) * 100))
    packed[40:60] = b"\xff" * 20
    with pytest.raises(FileError) as error:
        list(iterate_chunks(io.BytesIO(bytes(packed))))
    assert error.value.notices[0].code == "kineto_not_gzip"
