"""One file a method; the registry finds every file in this folder and in $YTILDE_METHODS."""

import os

__path__ += [folder for folder in os.environ.get("YTILDE_METHODS", "").split(os.pathsep) if folder]
