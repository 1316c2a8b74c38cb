"""Sheets: a prediction as a workbook with live formulas, and what a workbook says brought back.

build_workbook(loaded)                 bytes of a workbook that computes what `predict` does
read_workbook(data, "book.xlsx")    what a workbook says, its formulas evaluated
export_result(result)               a saved result as a workbook, and whether it keeps formulas
"""

from __future__ import annotations

from crosszone.calibrate.sheet.export import export_result
from crosszone.calibrate.sheet.reading import read_workbook
from crosszone.calibrate.sheet.workbook import build_workbook

__all__ = ["build_workbook", "export_result", "read_workbook"]
