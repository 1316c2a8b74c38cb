"""Numbers as people read them: few digits, commas, no exponent where it can be helped; the same in each language."""

from __future__ import annotations


def format_digits(value: float, digits: int = 4) -> str:
    """A number to so many significant digits, with commas and no exponent where it is large."""
    if abs(value) >= 10 ** (digits - 1):
        return f"{float(f'{value:.{digits}g}'):,.0f}"
    return f"{value:.{digits}g}" if abs(value) >= 1e-4 or value == 0 else f"{value:.2g}"


def format_signed(value: float, digits: int = 4) -> str:
    """A difference, with its sign."""
    return ("+" if value > 0 else "") + format_digits(value, digits)


def format_percent(share: float) -> str:
    """A share in percent, without the sign."""
    return f"{100 * share:.1f}"


def format_amount(value: float | None, digits: int = 4) -> str:
    """A number for a table cell; a dash when it is not known."""
    if value is None:
        return "-"
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.{digits}g}" if abs(value) < 1e6 else f"{value:.{digits}g}"


def format_billions(count: float) -> str:
    """A parameter count in 1e9 with three decimals, small ones in 1e6."""
    return f"{count / 1e9:,.3f} B" if count >= 1e8 else f"{count / 1e6:,.3f} M"
