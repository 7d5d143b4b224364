"""Generated cases must not fail because the machine is busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")
