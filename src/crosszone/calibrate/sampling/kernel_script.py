"""The kernel sampler as one file that needs only torch, to copy to any GPU box.

python kernel_script.py > kernels.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# The first gives its docstring and, at the end, its code.
SOURCES = ("kernels.py", "kernel_points.py", "kernel_cases.py")
OWN = re.compile(r"^from crosszone\.\S+ import (?:\([^)]*\)|[^\n(]*)\n", re.MULTILINE)
FUTURE = "from __future__ import annotations\n"


def build_kernel_script() -> str:
    """The text of the one-file sampler."""
    texts = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in SOURCES]
    parts = [OWN.sub("", text).partition(FUTURE) for text in texts]
    (doc, _, last), *modules = parts
    return "".join([doc, FUTURE, *(code for _, _, code in modules), last])


if __name__ == "__main__":
    sys.stdout.write(build_kernel_script())
