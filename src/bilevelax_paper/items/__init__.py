"""One module for each table or figure of the paper, found by its name.

Each has ``CONFIG``, ``run(settings, seeds)`` that yields `Cell` values (columns that begin with ``seconds`` are times,
all others depend on the seed only), ``render(records)`` for figure and tables, and ``CLAIMS``. Its words and numbers,
settings, captions, claims and what is read from them, are in the file of the same name that ends in .toml.
"""

from bilevelax.discovery import Catalogue

catalogue = Catalogue(__name__, "item of the paper", factory="CONFIG")
