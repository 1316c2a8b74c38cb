"""How long the tests take; `python benchmarks/suite.py [--fast] [--long]` runs ./test that way and updates RESULTS.md.

Each run replaces the row of its mode. CPU time is that of ./test and of all processes it waited for: browsers and
frameworks are among them, daemons that left their parent are not.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import time
from pathlib import Path

from results import RESULTS, write_section

ROOT = Path(__file__).resolve().parents[1]
TITLE = "Tests"
SHOWN = 8000
"""Characters of the output that are shown where tests fail."""
HEAD = "| mode | tests | wall s | CPU s | outcome |"


def measure(mode: str) -> str:
    """Run ./test in a mode; the row of the table."""
    begin = time.monotonic()
    command = [str(ROOT / "test"), *([mode] if mode else [])]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    wall_s = time.monotonic() - begin
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    if done.returncode:
        print(done.stdout[-SHOWN:])
    counts = re.findall(r"(\d+) passed", done.stdout)
    outcome = "passed" if done.returncode == 0 else "failed"
    tests = counts[-1] if counts else "-"
    return f"| `{' '.join(['./test', mode]).strip()}` | {tests} | {wall_s:.0f} | {cpu_s:.0f} | {outcome} |"


def main() -> None:
    """Measure one mode and write its row beside the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--fast", dest="mode", action="store_const", const="--fast", default="")
    modes.add_argument("--long", dest="mode", action="store_const", const="--long")
    row = measure(parser.parse_args().mode)
    name = row.split(" | ")[0]
    text = RESULTS.read_text(encoding="utf-8").partition(f"\n## {TITLE}\n")[2].partition("\n## ")[0]
    rows = {line.split(" | ")[0]: line for line in text.splitlines() if line.startswith("| `./test")}
    rows[name] = row
    lines = [
        f"`python benchmarks/suite.py`, {os.cpu_count()} cores, environments installed.",
        "",
        HEAD,
        "|---|---|---|---|---|",
    ]
    write_section(TITLE, "\n".join([*lines, *(rows[key] for key in sorted(rows))]))


if __name__ == "__main__":
    main()
