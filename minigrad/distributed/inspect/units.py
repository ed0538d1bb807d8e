"""Numbers as people read them: three digits and a unit. Pure."""

from __future__ import annotations


def time_text(seconds: float) -> str:
    """Seconds, with the unit that suits them.

    Example:
        >>> time_text(0.0123456), time_text(2.5e-6), time_text(-90.0), time_text(0.0)
        ('12.3 ms', '2.50 µs', '-90.0 s', '0 s')
    """
    return _text(seconds, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)), "s")


def bytes_text(count: float) -> str:
    """Bytes, with the unit that suits them.

    Example:
        >>> bytes_text(1024), bytes_text(12), bytes_text(26214400)
        ('1.00 KiB', '12 B', '25.0 MiB')
    """
    units = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10))
    return _text(count, units, "B") if abs(count) >= 1024 else f"{count:g} B"


def _text(value: float, units: tuple[tuple[str, float], ...], otherwise: str) -> str:
    if abs(value) < 0.005 * units[-1][1]:
        return f"0 {otherwise}"
    unit, size = next((each for each in units if abs(value) >= each[1] * 0.9995), units[-1])
    shown = value / size
    digits = 2 if abs(shown) < 9.995 else 1 if abs(shown) < 99.95 else 0
    return f"{shown:.{digits}f} {unit}"
