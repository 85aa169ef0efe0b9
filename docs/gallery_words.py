"""What the examples are called with while the site is built, and the pictures that they leave."""

import shutil
import tempfile
from pathlib import Path

from sphinx_gallery.scrapers import figure_rst

RUN = ("own_loop", "moons_ln", "transition", "attenuation")  # in seconds, while the site is built
FOLDER = Path(tempfile.mkdtemp(prefix="ytilde-gallery-"))


def shown_first(name):
    """The key by which the examples are sorted: those that were run, then the others."""
    stem = Path(name).stem
    return (RUN.index(stem) if stem in RUN else len(RUN), stem)


def words(gallery_conf, script_vars):
    """`--out FILE`, outside of the repository."""
    return ["--out", str(FOLDER / f"{Path(script_vars['src_file']).stem}.png")]


def saved(block, block_vars, gallery_conf):
    """The picture that the script has written, as sphinx-gallery wants it."""
    path = FOLDER / f"{Path(block_vars['src_file']).stem}.png"
    if not path.exists():
        return ""
    place = next(block_vars["image_path_iterator"])
    shutil.move(path, place)
    return figure_rst([place], gallery_conf["src_dir"])
