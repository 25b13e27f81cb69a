"""The site: `make docs`."""

import sys
from pathlib import Path

import samebits

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project, author, copyright = "samebits", "the authors of samebits", "the authors of samebits"  # noqa: A001
release = samebits.__version__
extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode",
    "sphinx_copybutton", "sphinx_design", "op_table", "pictures", "reference_pages", "for_agents",
]  # fmt: skip
nitpicky = True
nitpick_ignore_regex = [  # other projects' pages are on no machine without a network; private types have none
    ("py:.*", r"(torch|numpy|collections|os|pathlib|types|typing|typer|rich|keras)\..*"),
    ("py:class", r"samebits\.(.*\.)?_.*"),
]
exclude_patterns = ["_ext", "_pictures"]

html_theme = "furo"
html_title = "samebits"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "groupwise"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
