"""Sphinx's settings. `python -m course_site` copies this file beside the pages."""

from __future__ import annotations

project = "Memory and performance optimisation on IPUs"
author = "the IPU course authors"
copyright = author
html_title = "IPU course"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_static", "_templates"]
default_role = "code"  # a name between single backticks in a docstring is code

nb_execution_mode = "off"  # the notebooks keep their outputs, and the tests compare them
nb_render_markdown_format = "myst"
myst_heading_anchors = 4  # as on a code-hosting page
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header"]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"

html_theme = "furo"  # no script, style or font from elsewhere; dark mode; readable at any width
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["course.css"]
html_js_files = ["explorer.js", "scrolling.js"]
html_show_sphinx = False
html_copy_source = False
