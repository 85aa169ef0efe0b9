"""The site: `make docs` builds it into site/, with warnings as errors."""

import re
import sys
from pathlib import Path

from docutils.utils.math.latex2mathml import tex2mathml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import gallery_words  # noqa: E402
import pages  # noqa: E402

from ytilde import __version__  # noqa: E402

project = "ytilde"
author = "the authors of ytilde"
copyright = "the authors of ytilde, Apache-2.0"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["gallery/*.py", "gallery/*.ipynb", "gallery/*.json", "pictures/*"]
default_role = "code"
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True  # attributes as one list, not a heading each
python_use_unqualified_type_names = True
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"ytilde {release}"
html_static_path = ["_static"]
html_css_files = ["ytilde.css"]
html_show_sphinx = False
html_math_renderer = "mathml"
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"

# What runs in seconds (RUN) is run; the others are shown. Each writes its picture where told.
sphinx_gallery_conf = {
    "examples_dirs": [str(pages.GALLERY)],
    "gallery_dirs": ["gallery"],
    "filename_pattern": rf"({'|'.join(gallery_words.RUN)})\.py$",
    "reset_argv": "gallery_words.words",
    "image_scrapers": ("gallery_words.saved",),
    "default_thumb_file": str(HERE / "pictures" / "not_run.svg"),
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "only_warn_on_example_error": False,
    "min_reported_time": 1,
    "write_computation_times": False,
    "within_subsection_order": "gallery_words.shown_first",
    "plot_gallery": True,
}


def setup(app):
    """Formulas as MathML, which browsers show without a script or a network."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.connect("config-inited", lambda app, config: pages.main(), priority=1)
    app.connect("source-read", _name_other_pages)
    app.connect("source-read", _give_findings_headings)
    app.connect("env-get-outdated", lambda *given: ["index"])  # it depends on what pages there are
    app.connect("autodoc-process-docstring", _escape, priority=1)
    app.connect("autodoc-process-signature", _readable)
    app.connect("build-finished", _mend)


def _mend(app, error):
    """What screen readers and keyboards need: levels of captions, what scrolls, links' names."""
    for path in Path(app.outdir).rglob("*.html") if app.builder.name == "html" else ():
        text = path.read_text(encoding="utf-8")
        better = text.replace('role="heading">', 'role="heading" aria-level="2">')
        for scrolls in ("<pre>", '<div class="table-wrapper', '<div class="math">'):
            better = better.replace(scrolls, f'{scrolls[:4]} tabindex="0"{scrolls[4:]}')
        if path.parent.name == "gallery":  # its style hides the titles inside of the links
            better = re.sub(r'(<a class="reference internal"[^>]*)(><span class="doc">)([^<"]+)',
                            r'\1 aria-label="\3"\2\3', better)  # fmt: skip
        if better != text:
            path.write_text(better, encoding="utf-8")


def _name_other_pages(app, docname, source):
    """A page beside index.md that no toctree names stands among the guides."""
    if docname == "index":
        names = {path.stem for path in HERE.glob("*.md")} - {"index", "methods"}
        rest = sorted(name for name in names if f"\n{name}\n" not in source[0])
        source[0] = source[0].replace("% the other pages of this folder", "\n".join(rest))


def _escape(app, what, name, obj, options, lines):
    """|x| and x* are mathematics in our docstrings, not markup."""
    for k, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "... ")):
            parts = line.split("`")
            parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
            lines[k] = "`".join(parts)


def _give_findings_headings(app, docname, source):
    """Each finding opens with a bold sentence: on the site a heading, so that it can be found."""
    if docname == "findings":
        source[0] = re.sub(r"(?m)^\*\*(.+?)\.?\*\*\s", r"## \1\n\n", source[0])


def _readable(app, what, name, obj, options, signature, returns):
    """A default that is no expression, <factory>, would make Sphinx show all types in full."""
    return signature and signature.replace("<factory>", "..."), returns


def _inline(writer, node):
    from docutils import nodes

    writer.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def _block(writer, node):
    from docutils import nodes

    writer.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def _mathml(node, as_block):
    """An accent over a letter is lost in an index, so the one letter that needs it is whole."""
    return tex2mathml(node.astext().replace(r"\tilde y", "ỹ"), as_block=as_block)
