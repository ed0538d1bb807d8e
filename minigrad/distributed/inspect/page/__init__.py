"""A page to look at: ranks as rows, spans as bars, buckets as cells, late ranks as arrows, decisions as notes."""

from minigrad.distributed.inspect.page.document import page_of, save_page

__all__ = ["page_of", "save_page"]
