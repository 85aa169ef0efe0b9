"""One file a method; the registry finds every file in this folder."""
