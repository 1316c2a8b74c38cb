"""Explanations: every shown number with its formula, its inputs and the numbers put in.

explain(p, build_prediction(p), "mfu").worked  # "model FLOPs / (peak x step)" as numbers that give the MFU
"""

from crosszone.analyse.explain.description import Explanation, Input, SummandLine
from crosszone.analyse.explain.figures import explain, list_figures, read_value
from crosszone.analyse.explain.formulas import Formula, find_formula, load_formulas

__all__ = [
    "Explanation",
    "Formula",
    "Input",
    "SummandLine",
    "explain",
    "find_formula",
    "list_figures",
    "load_formulas",
    "read_value",
]
