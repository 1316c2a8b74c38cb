"""`crosszone calibrate kernels`: time the kernels of training on a GPU, with whatever Python here has torch."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from crosszone.cli.output import console, print_json, said

SBATCH = """#!/bin/bash
# {title}
#SBATCH --job-name=crosszone-kernels
#SBATCH --array=1-{parts}
#SBATCH --ntasks=1
#SBATCH --gpus-per-task=1
#SBATCH --time={minutes}
set -eu
sampler=$(mktemp --suffix=.py)
trap 'rm -f "$sampler"' EXIT
cat > "$sampler" <<'END_OF_SAMPLER'
{sampler}END_OF_SAMPLER
{python} "$sampler" {options} --parts {parts} --part "$SLURM_ARRAY_TASK_ID" -o {stem}."$SLURM_ARRAY_TASK_ID".csv
"""
STDERR = 2
MARGIN_MIN = 10  # Minutes a job may start and end in, beside the budget


def kernels(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Samples (CSV) to write; one that has rows is continued.")
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="auto, the number of a GPU, or cpu (tiny shapes: only tries the code).")
    ] = "auto",
    budget: Annotated[
        str, typer.Option(help="Time to spend: 90s, 10m, 1h. Short ones still sample all operators.")
    ] = "10m",
    parts: Annotated[int, typer.Option(help="Shards the points are dealt into.", min=1, max=10_000)] = 1,
    part: Annotated[int, typer.Option(help="The shard to measure, from 1.", min=1, max=10_000)] = 1,
    dtypes: Annotated[str, typer.Option(help="Only these: bf16,fp16,fp8,fp32.")] = "",
    ops: Annotated[str, typer.Option(help="Only these operators: matmul,attention,rmsnorm,...")] = "",
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Python with torch; default: one found here.")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only write the sampler as one file, to copy to a GPU box.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file of --script.")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Only print a Slurm array job that runs all parts.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Time matmuls, attention, norms, optimizer, whole layers and whole steps on a GPU; one CSV row for each.

    The same command continues a file, and tries again what failed. Shards are concatenated by giving all files to
    `calibrate fit`.

    Example: crosszone calibrate kernels --budget 10m -o samples.csv
    """
    options = _options(gpu, budget, parts, part, dtypes, ops)
    if script is not None:
        _write(script, force, as_json)
    elif output is None:
        raise _refused("kernels_no_output", "--output", None)
    elif slurm:
        _print_slurm(output, options, parts, budget, python, as_json)
    else:
        _run(output, [*options, "--parts", str(parts), "--part", str(part)], python)
        _tell(output, as_json)


def _options(gpu: str, budget: str, parts: int, part: int, dtypes: str, ops: str) -> list[str]:
    """The sampler's own options; a wrong one is refused before anything starts."""
    from argparse import ArgumentTypeError

    from crosszone.calibrate.sampling.kernel_points import DTYPES, list_operators, parse_duration

    try:
        parse_duration(budget)
    except ArgumentTypeError:
        raise _refused("kernels_budget", "--budget", budget) from None
    if part > parts:
        raise _refused("kernels_part", "--part", part, parts=parts)
    for field, given, known in (("--dtypes", dtypes, DTYPES), ("--ops", ops, list_operators())):
        for one in given.split(",") if given else ():
            if one not in known:
                raise _refused("not_one_of", field, one, allowed=known, nearest=_nearest(one, known))
    if gpu not in ("auto", "cpu") and not gpu.isdecimal():
        raise _refused("kernels_gpu", "--gpu", gpu)
    device = f"cuda:{gpu}" if gpu.isdecimal() else gpu
    chosen = ["--device", device, "--budget", budget]
    return [*chosen, *(["--dtypes", dtypes] if dtypes else []), *(["--ops", ops] if ops else [])]


def _nearest(given: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    return (get_close_matches(given, known, 1, 0) or [known[0]])[0]


def _refused(code: str, field: str, value: Any, **params: Any) -> Exception:
    from crosszone.errors import InvalidError, Notice

    return InvalidError(Notice(code=code, field=field, value=value, params=params))


def _write(script: Path, force: bool, as_json: bool) -> None:
    from crosszone.calibrate.sampling.kernel_script import build_kernel_script
    from crosszone.cli.files import write_file

    write_file(script, build_kernel_script(), force)
    if as_json:
        print_json({"script": str(script)})
    else:
        console(stderr=True).print(said("kernels_copy", file=script), soft_wrap=True)


def _print_slurm(
    output: Path, options: Sequence[str], parts: int, budget: str, python: str | None, as_json: bool
) -> None:
    from crosszone.calibrate.sampling.kernel_points import parse_duration
    from crosszone.calibrate.sampling.kernel_script import build_kernel_script

    stem = output.with_suffix("")
    text = SBATCH.format(
        title=said("kernels_slurm", stem=shlex.quote(str(stem))),
        parts=parts,
        minutes=int(parse_duration(budget) / 60) + MARGIN_MIN,
        sampler=build_kernel_script(),
        python=shlex.quote(python or "python3"),
        options=shlex.join(options),
        stem=shlex.quote(str(stem)),
    )
    if as_json:
        print_json({"sbatch": text, "files": [f"{stem}.{part}.csv" for part in range(1, parts + 1)]})
    else:
        sys.stdout.write(text)


def _run(output: Path, options: Sequence[str], python: str | None) -> None:
    """Start the sampler; its progress goes to standard error as it is."""
    import subprocess
    import tempfile

    from crosszone.calibrate.sampling.kernel_script import build_kernel_script
    from crosszone.errors import MachineError, Notice

    chosen = _python(python)
    with tempfile.TemporaryDirectory(prefix="crosszone-") as folder:
        sampler = Path(folder) / "kernels.py"
        sampler.write_text(build_kernel_script(), encoding="utf-8")
        status = subprocess.run([chosen, sampler, *options, "-o", output], stdout=STDERR, check=False).returncode
    if status:
        raise MachineError(Notice(code="kernels_failed", value=status, params={"python": chosen}))


def _python(given: str | None) -> str:
    """A Python that has torch: the one given, else this one, else one found."""
    import os
    import shutil

    from crosszone.errors import MachineError, Notice

    if given is not None:
        if _has_torch(given):
            return given
        raise MachineError(Notice(code="kernels_no_torch", field="--python", value=given))
    homes = [os.environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    places = [
        sys.executable,
        *(f"{home}/bin/python" for home in homes),
        shutil.which("python3"),
        shutil.which("python"),
    ]
    for one in dict.fromkeys(place for place in places if place):
        if _has_torch(one):
            return one
    raise MachineError(Notice(code="kernels_no_torch_here", value=sys.executable))


def _has_torch(python: str) -> bool:
    import subprocess

    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
    try:
        return subprocess.run([python, "-c", ask], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _tell(output: Path, as_json: bool) -> None:
    """How many rows the file now has, and how many of them are flagged."""
    import csv
    from collections import Counter

    with output.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    flags = Counter(row["flag"] for row in rows if row["flag"])
    if as_json:
        ops = Counter(row["op"] for row in rows)
        print_json({"file": str(output), "rows": len(rows), "flags": dict(flags), "ops": dict(ops)})
    else:
        told = {"file": output, "rows": len(rows), "failed": flags["failed"], "noisy": flags["noisy"]}
        console().print(said("kernels_done", **told, above=flags["above_roof"]), soft_wrap=True)
