"""Explanations: every shown number with its formula, its inputs and the numbers put in.

explain(p, build_prediction(p), "mfu").worked  # "model FLOPs / (peak x step)" as numbers that give the MFU
"""

from crosszone.analyse.explain.description import Explanation, Input, SummandLine
from crosszone.analyse.explain.figures import explain, figures, value_of
from crosszone.analyse.explain.formulas import Formula, formula, formulas

__all__ = ["Explanation", "Formula", "Input", "SummandLine", "explain", "figures", "formula", "formulas", "value_of"]
