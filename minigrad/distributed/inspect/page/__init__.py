"""A page to look at: ranks as rows, spans as bars, buckets as cells, late ranks as arrows, decisions as notes."""

from minigrad.distributed.inspect.page.document import page_of, save_page
from minigrad.distributed.inspect.page.schedules import page_of_schedule, save_page_of_schedule

__all__ = ["page_of", "page_of_schedule", "save_page", "save_page_of_schedule"]
