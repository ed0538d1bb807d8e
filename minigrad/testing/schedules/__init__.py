"""Searches the orders in which thread ranks can run for one in which something fails."""

from minigrad.testing.schedules.search import Failing, schedules

__all__ = ["Failing", "schedules"]
