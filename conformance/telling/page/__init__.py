"""One self-contained HTML page over the reports of one or many runs."""

from conformance.telling.page.render import render

__all__ = ["render"]
