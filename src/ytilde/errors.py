"""BadInput, the error that a user can mend. Needs nothing but Python."""

from __future__ import annotations


class BadInput(ValueError):
    """What the user gave is wrong. The message is one sentence: what is wrong and what to do.

    The command line prints it and exits with code 2; nothing is written. What the user gave may
    stand in it: line ends and characters that steer a terminal are left out, long texts cut.
    """

    def __init__(self, message: object) -> None:
        text = " ".join("".join(c if c.isprintable() else " " for c in str(message)).split())
        super().__init__(text if len(text) <= 1000 else f"{text[:700]} ... {text[-280:]}")
