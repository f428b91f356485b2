"""What a view asks of the app: to look at something else. Views post these; the app alone moves the cursor."""

from __future__ import annotations

from textual.message import Message


class GoTo(Message):
    """Put the cursor on a pass: of the module looked at if `module` is None. `view` is opened if named."""

    def __init__(
        self, index: int, *, module: int | None = None, rank: int | None = None, view: str | None = None
    ) -> None:
        super().__init__()
        self.index, self.module, self.rank, self.view = index, module, rank, view


class Open(Message):
    """Open a view by its name: "overview", "norms", "backward", "layers", "findings", "output", "job", "source"."""

    def __init__(self, view: str) -> None:
        super().__init__()
        self.view = view


class Chosen(Message):
    """The demo picker's answer: the name of the demo to start; with `beside` its variant too, one above the other."""

    def __init__(self, name: str, beside: bool = False) -> None:
        super().__init__()
        self.name, self.beside = name, beside
