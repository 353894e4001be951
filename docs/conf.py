"""Sphinx: ``make docs``; warnings are errors."""

from bilevelax import __version__

project = "bilevelax"
author = "the bilevelax engineers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "bilevelax"
html_static_path = ["_static"]
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "code"
