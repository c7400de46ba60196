"""The errors a user can meet; each message says what was found, what was expected and the remedy."""


class InputError(ValueError):
    """Bad arguments, a bad graph or a bad artifact. Commands exit with status 2 and write nothing."""


class BudgetError(InputError):
    """The device budget is too small for any plan; the message names the smallest one that works.

    Attributes:
        smallest: that budget in bytes, or 0 where it is not known.
    """

    def __init__(self, message: str, smallest: int = 0) -> None:
        super().__init__(message)
        self.smallest = smallest


class DeviceOutOfMemory(RuntimeError):
    """A device allocation went over the device budget while running."""
