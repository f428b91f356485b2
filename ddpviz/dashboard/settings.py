"""What is kept between sessions: theme, speed, motion. One small file in the config dir; a broken one is ignored."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from platformdirs import user_config_path


@dataclass(slots=True)
class Settings:
    theme: str = ""  # name of a theme; empty: what suits the terminal
    speed: float = 0.0  # of playback; 0: one pass a second
    motion: bool = True  # whether Levels move

    @classmethod
    def load(cls, path: Path | None = None) -> Settings:
        try:
            kept = json.loads((path or place()).read_text("utf-8"))
            theme, speed, motion = kept.get("theme", ""), kept.get("speed", 0.0), kept.get("motion", True)
        except (OSError, ValueError, AttributeError):
            return cls()
        right = isinstance(theme, str) and isinstance(speed, int | float) and isinstance(motion, bool)
        return cls(theme, min(max(float(speed), 0.0), 100.0), motion) if right else cls()

    def save(self, path: Path | None = None) -> None:
        """Best effort: a read-only home is no reason to complain."""
        target = path or place()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fresh = target.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps(asdict(self), indent=1), "utf-8")
            fresh.replace(target)
        except OSError:
            pass


def place() -> Path:
    return user_config_path("ddpviz") / "dashboard.json"
