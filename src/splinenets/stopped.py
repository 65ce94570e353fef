"""Why a command ended early, without anything being wrong."""


class Stopped(Exception):
    """A signal stopped a command, and its work is saved; ``exit_code`` is 128 + the signal's number."""

    exit_code: int

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number
