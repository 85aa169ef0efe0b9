"""What the examples are called with while the site is built."""

import tempfile
from pathlib import Path

FOLDER = tempfile.mkdtemp(prefix="ytilde-gallery-")


def words(gallery_conf, script_vars):
    """`--out FILE`, outside of the repository."""
    return ["--out", str(Path(FOLDER) / f"{Path(script_vars['src_file']).stem}.png")]
