"""One file a method; the registry finds every file in this folder and in $YTILDE_METHODS.

Files whose names begin with an underscore are no methods: what several of them share.
"""

import os

folders = os.environ.get("YTILDE_METHODS", "").split(os.pathsep)
__path__ += [os.path.abspath(folder) for folder in folders if folder]
