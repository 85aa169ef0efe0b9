"""`ytilde review`: a local page to go through the suspicious labels of a run with the keyboard."""

from .log import LOG, Choice, Conflict, Decision, Log, NotSaved
from .server import application, serve
from .session import Review, export
from .votes import given_votes, review_votes

__all__ = [
    "LOG",
    "Choice",
    "Conflict",
    "Decision",
    "Log",
    "NotSaved",
    "Review",
    "application",
    "export",
    "given_votes",
    "review_votes",
    "serve",
]
