"""How the code is laid out: files, names used twice, modules with a single importer, what a command passes through.

    python benchmarks/structure.py            # this tree
    python benchmarks/structure.py PATH ...   # beside other checkouts, such as that of the last release

Counts come from the syntax trees and from one traced call each of `predict` and `plan`; nothing is timed.
Writes the section "Structure" of RESULTS.md.
"""

from __future__ import annotations

import ast
import collections
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from results import write_section

ROOT = Path(__file__).resolve().parents[1]
TRACE = """
import sys
from pathlib import Path
from crosszone.inputs.scenario import load_scenario
{imports}
root = str(Path(sys.modules["crosszone"].__file__).parent)
modules, depth, deepest = set(), 0, 0
def trace(frame, event, _):
    global depth, deepest
    if not frame.f_code.co_filename.startswith(root):
        return
    if event == "call":
        depth += 1
        deepest = max(deepest, depth)
        modules.add(frame.f_code.co_filename)
    elif event == "return":
        depth -= 1
scenario = load_scenario({scenario!r})
sys.setprofile(trace)
{call}
sys.setprofile(None)
print(len(modules), deepest)
"""
"""Counts the modules of the project whose functions are called, and the deepest stack of its functions."""
CALLS = {
    "predict": ("from crosszone import predict", "predict(scenario)"),
    "plan": ("from crosszone import plan", "plan(scenario)"),
}


def read_modules(source: Path) -> dict[str, ast.Module]:
    """Syntax tree of every module of the package, by its dotted name."""
    trees = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        trees[".".join(parts).removesuffix(".__init__")] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def imported_modules(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a module imports anywhere: modules, and members that may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def count_single_importers(trees: dict[str, ast.Module]) -> int:
    """Modules that exactly one other module imports, and that lies in the same package."""
    importers: dict[str, set[str]] = collections.defaultdict(set)
    for name, tree in trees.items():
        for target in imported_modules(tree):
            if target in trees and target != name:
                importers[target].add(name)
    package_of = {name: ".".join(name.split(".")[:2]) for name in trees}
    return sum(
        len(users) == 1 and package_of[next(iter(users))] == package_of[name] for name, users in importers.items()
    )


def duplicated_classes(trees: dict[str, ast.Module]) -> dict[str, int]:
    """Class names that stand for several classes, with how many."""
    counts = collections.Counter(
        node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    )
    return {name: count for name, count in sorted(counts.items()) if count > 1}


def trace_call(checkout: Path, verb: str) -> tuple[int, int]:
    """Modules entered and deepest stack of one call on the three-cities example, in a new process."""
    imports, call = CALLS[verb]
    script = TRACE.format(imports=imports, call=call, scenario=str(checkout / "examples" / "three-cities.yaml"))
    environment = {"PYTHONPATH": str(checkout / "src"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=300
    )
    modules, depth = done.stdout.split()
    return int(modules), int(depth)


def count_structure(checkout: Path) -> dict[str, int]:
    """The counts of one checkout, by what they count."""
    source = checkout / "src" / "crosszone"
    trees = read_modules(source)
    counts = {
        "Python files": len(trees),
        "lines": sum(path.read_text(encoding="utf-8").count("\n") for path in source.rglob("*.py")),
        "modules that one other of their package imports, and no one else": count_single_importers(trees),
        "class names used more than once": len(duplicated_classes(trees)),
    }
    for verb in CALLS:
        modules, depth = trace_call(checkout, verb)
        counts[f"modules that `{verb}` enters"] = modules
        counts[f"deepest call of `{verb}`"] = depth
    return counts


def read_version(checkout: Path) -> str:
    """The version that a checkout states of itself."""
    text = (checkout / "src" / "crosszone" / "__init__.py").read_text(encoding="utf-8")
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("__version__"))


def main() -> None:
    """Count this tree and those named, and write the table."""
    checkouts = [*(Path(path).resolve() for path in sys.argv[1:]), ROOT]
    columns = [count_structure(checkout) for checkout in checkouts]
    lines = ["`python benchmarks/structure.py`; three-cities example.", ""]
    lines += [f"| count | {' | '.join(map(read_version, checkouts))} |", "|---|" + "---|" * len(columns)]
    lines += [f"| {name} | {' | '.join(f'{column[name]:,}' for column in columns)} |" for name in columns[-1]]
    write_section("Structure", "\n".join(lines))


if __name__ == "__main__":
    main()
