"""Python source that several threads read at once."""

from concurrent.futures import ThreadPoolExecutor

from crosszone.inputs.python_source import parse_literal, parse_source

SOURCE = "\n".join(
    f"def f{at}(x):\n    return [x + {at} * (1 + 2 * (3 + x)) for x in range({at})]" for at in range(200)
)


def test_threads_may_parse_at_the_same_time():
    with ThreadPoolExecutor(8) as threads:
        trees = list(threads.map(lambda _: parse_source(SOURCE), range(24)))
        values = list(threads.map(lambda at: parse_literal(f"{{'a': [{at}]}}"), range(100)))
    assert [len(tree.body) for tree in trees] == [200] * 24
    assert values == [{"a": [at]} for at in range(100)]
