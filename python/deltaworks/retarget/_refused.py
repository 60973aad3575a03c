class Refused(Exception):
    """What cannot be made to run on the CPU: one reason for each node or part of the package."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("\n".join(reasons))
        self.reasons = reasons
