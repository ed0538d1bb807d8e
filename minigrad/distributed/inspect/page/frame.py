"""What every page has around what it shows: its head, its style, and nothing from outside."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'unsafe-inline'">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<svg class="defs" aria-hidden="true"><defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" \
markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker></defs></svg>
<header><h1>{title}</h1></header>
<main>
"""


def framed(title: str, sections: Iterable[str], script: str = "") -> str:
    """A page.

    Args:
        title: Plain text.
        sections: HTML.
        script: A file of this package; none by default.
    """
    parts = [_HEAD.format(title=escape(title), style=_beside("page.css")), *sections, "</main>"]
    if script:
        parts.append(f"<script>\n{_beside(script)}</script>")
    return "\n".join([*parts, "</body>\n</html>\n"])


def _beside(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
