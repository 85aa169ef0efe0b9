"""`ytilde review`: a local page to go through the suspicious labels of a run with the keyboard."""

from .log import LOG, Conflict, Decision, Log
from .server import application, serve
from .session import Review, export

__all__ = ["LOG", "Conflict", "Decision", "Log", "Review", "application", "export", "serve"]
