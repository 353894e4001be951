"""Sphinx: ``make docs``; warnings are errors, dead links are warnings."""

import sys
from pathlib import Path

from bilevelax import __version__

sys.path.insert(0, str(Path(__file__).parent))

project = "bilevelax"
author = "the bilevelax engineers"
release = __version__
extensions = [
    "mathml",
    "myst_parser",
    "parts",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "bilevelax"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"
exclude_patterns = ["_build"]
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "write_computation_times": False,
    "remove_config_comments": True,
}
suppress_warnings = ["config.cache"]  # the gallery's settings hold what cannot be pickled
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "code"
nitpicky = True
