"""What the tests reach, and how many small mistakes they notice; run after the tests ran with coverage.

    python -m pytest -m "not long and not browser and not framework" --cov=src/crosszone --cov-branch --cov-context=test
    python benchmarks/mutants.py --count 60 --seed 7 --write

A mutant is one place of cost/, plan/, store/ or deploy/ where an operator, a comparison, a number or a condition is
exchanged. Places are drawn from the lines that a test runs; each mutant meets only the tests that run its line, for a
minute at most, in a copy of the tree. `--like FILE` takes the mutants of an earlier run, found again by their line;
`--write` puts coverage by package and the share of mutants noticed into RESULTS.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from coverage import Coverage, CoverageData

from results import write_section

TITLE = "What the tests reach"
ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("cost", "plan", "store", "deploy")
LIMIT_S = 60
EXCHANGED: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


class Mutant(NamedTuple):
    """A place in a file, the text there and what takes its place."""

    file: str
    line: int
    column: int
    was: str
    now: str
    source_line: str


def list_mutants(path: Path, name: str) -> Iterator[Mutant]:
    """Every mutant of a file that fits on one line."""
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        changed = _exchange_node(node)
        was = ast.get_source_segment(text, node) if changed is not None else None
        if changed is None or was is None or "\n" in was:
            continue
        assert isinstance(node, ast.expr)
        source = lines[node.lineno - 1]
        column = len(source.encode()[: node.col_offset].decode())
        yield Mutant(name, node.lineno, column, was, f"({ast.unparse(changed)})", source)


def _exchange_node(node: ast.AST) -> ast.AST | None:
    match node:
        case ast.BinOp(left, op, right) if type(op) in EXCHANGED:
            return ast.BinOp(left, EXCHANGED[type(op)](), right)
        case ast.BoolOp(op, values):
            return ast.BoolOp(EXCHANGED[type(op)](), values)
        case ast.Compare(left, [op], [right]):
            return ast.Compare(left, [EXCHANGED[type(op)]()], [right])
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(test, orelse, body)
        case ast.Constant(bool() as value):
            return ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            return ast.Constant(value + 1)
    return None


class CoveringTests:
    """Which tests run a line, by coverage.py's contexts."""

    def __init__(self, data: Path, tree: Path) -> None:
        self.data, self.tree = CoverageData(str(data)), tree
        self.data.read()

    def find_tests(self, file: str, line: int) -> list[str]:
        contexts = self.data.contexts_by_lineno(str(self.tree / "src/crosszone" / file)).get(line, [])
        return sorted({context.split("|")[0] for context in contexts if "::" in context})


def draw_mutants(tree: Path, covering: CoveringTests, count: int, seed: int) -> list[Mutant]:
    """Mutants of covered lines, the same for the same tree, coverage and seed."""
    source = tree / "src/crosszone"
    files = sorted(path for name in PACKAGES for path in (source / name).rglob("*.py") if "trainer" not in path.parts)
    candidates = [mutant for path in files for mutant in list_mutants(path, str(path.relative_to(source)))]
    random.Random(seed).shuffle(candidates)
    selected: list[Mutant] = []
    for mutant in candidates:
        if covering.find_tests(mutant.file, mutant.line):
            selected.append(mutant)
        if len(selected) == count:
            break
    return selected


def locate_mutant(mutant: Mutant, tree: Path) -> Mutant | None:
    """The mutant in another edition of the file: the equal line nearest to where it was."""
    path = tree / "src/crosszone" / mutant.file
    lines = path.read_text().splitlines() if path.exists() else []
    where = [at for at, line in enumerate(lines, 1) if line == mutant.source_line]
    return mutant._replace(line=min(where, key=lambda at: abs(at - mutant.line))) if where else None


def try_mutant(mutant: Mutant, tree: Path, tests: list[str], seed: int) -> str:
    """'killed', 'survived' or 'no tests'; a test that fails without the mutant too kills nobody."""
    order = list(tests)
    random.Random(seed).shuffle(order)
    package = mutant.file.split("/")[0]
    order.sort(key=lambda test: not test.startswith(f"tests/{package}/"))  # those of its package are likeliest
    path = tree / "src/crosszone" / mutant.file
    original = path.read_text()
    lines = original.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.column] + mutant.now + line[mutant.column + len(mutant.was) :]
    ends = time.monotonic() + LIMIT_S
    while order and time.monotonic() < ends:
        path.write_text("".join(lines))
        try:
            code, failed = _run(tree, order, ends - time.monotonic())
        except subprocess.TimeoutExpired:
            return "survived"
        finally:
            path.write_text(original)
        if code == 0:
            return "survived"
        if not failed or _run(tree, failed, LIMIT_S)[0] == 0:
            return "killed"
        order = [test for test in order if test not in failed]
    return "survived" if tests else "no tests"


def _run(tree: Path, tests: list[str], seconds: float) -> tuple[int, list[str]]:
    """Exit status of the tests up to the first that fails, and its name."""
    chosen = tree / "chosen-tests.txt"
    chosen.write_text("\n".join(tests) + "\n")
    words = ["-x", "-q", "-rfE", "-p", "no:randomly", "-p", "no:cacheprovider", "--timeout=0", "--tb=no"]
    command = [sys.executable, "-m", "pytest", *words, f"@{chosen}"]
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "COLUMNS": "1000"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile the whole program
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    failed = {line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))}
    return done.returncode, [test for test in tests if any(name.startswith(test) for name in failed)]


def format_coverage(data: Path) -> list[str]:
    """Rows of a table: lines and branches that the tests run, by package."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        coverage = Coverage(data_file=str(data), branch=True)
        coverage.load()
        coverage.json_report(outfile=report.name)
        files = json.loads(Path(report.name).read_text())["files"]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for name, file in files.items():
        inside = name.partition("src/crosszone/")[2].split("/")
        if inside[:2] == ["deploy", "trainer"]:
            continue  # runs on the machines that train, in an environment of its own
        for package in (inside[0] if len(inside) > 1 else "(top)", "all"):
            counts[package].update({key: value for key, value in file["summary"].items() if isinstance(value, int)})
    shares = (("covered_lines", "num_statements"), ("covered_branches", "num_branches"))
    return [
        " | ".join(
            [f"| {package}", *(f"{100 * of[got] / of[all_]:.1f} %" if of[all_] else "-" for got, all_ in shares)]
        )
        + " |"
        for package, of in sorted(counts.items())
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout whose tests are tried")
    parser.add_argument("--coverage", type=Path, default=ROOT / ".coverage", help="data with a context for each test")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--like", type=Path, help="results of an earlier run: take its mutants")
    parser.add_argument("--within", type=Path, help="a folder for the copy of the tree; a temporary one unless told")
    parser.add_argument("--write", action="store_true", help="write the section of RESULTS.md")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"))
    arguments = parser.parse_args()
    tree = arguments.tree.resolve()
    covering = CoveringTests(arguments.coverage, tree)
    if arguments.like:
        chosen = [Mutant(*row["mutant"]) for row in json.loads(arguments.like.read_text())]
    else:
        chosen = draw_mutants(tree, covering, arguments.count, arguments.seed)
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        copy = (arguments.within or Path(temporary)) / "tree"
        shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*cache"))
        for number, mutant in enumerate(chosen, 1):
            located = locate_mutant(mutant, tree)
            tests = covering.find_tests(located.file, located.line) if located else []
            result = try_mutant(located, copy, tests, arguments.seed) if located else "gone"
            rows.append({"mutant": list(mutant), "result": result, "tests": len(tests)})
            about = f"{mutant.file}:{mutant.line}  {mutant.was} -> {mutant.now}"
            print(f"{number:3} {result:9} {len(tests):5} tests  {about}", flush=True)
            arguments.out.write_text(json.dumps(rows, indent=1))
    tried = [row for row in rows if row["result"] != "gone"]
    number = sum(row["result"] == "killed" for row in tried)
    summary = f"{number} of {len(tried)} mutants killed ({100 * number / len(tried):.0f} %), seed {arguments.seed}"
    print(summary)
    if arguments.write:
        table = ["| package | lines | branches |", "|---|---|---|", *format_coverage(arguments.coverage)]
        head = "`python benchmarks/mutants.py --write`; tests of `./test` without browsers and frameworks."
        write_section(TITLE, "\n".join([head, "", f"{summary}; packages {', '.join(PACKAGES)}.", "", *table]))


if __name__ == "__main__":
    main()
