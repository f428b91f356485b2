"""What a rule says: the finding, as it stands in the report. Imports nothing but the standard library."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    INFO = 0
    WARNING = 1
    ERROR = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake, measured. The first place it happened stands for `count` places of the same kind."""

    rule: str  # stable id, such as "unsynced-step"
    severity: Severity
    message: str  # names rank, micro-step, layer and line
    advice: str  # one that can be followed
    module: int | None = None
    ranks: tuple[int, ...] = ()
    count: int = 1
    backward: int | None = None  # first micro-step concerned
    step: int | None = None  # first step concerned
    file: str = ""
    line: int = 0
    code: str = ""  # the source line, for viewers
    via: str = ""
    steps: tuple[int, ...] = ()  # all steps concerned, for marks on the timeline
    backwards: tuple[int, ...] = ()  # all micro-steps concerned, likewise
