"""The suite reads English, whatever the machine's locale and the user's settings say."""

from __future__ import annotations

import os

os.environ["LC_ALL"] = "C.UTF-8"
