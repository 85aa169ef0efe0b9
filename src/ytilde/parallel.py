"""The old place of `ytilde.engine.parallel`."""

from .engine.parallel import Team, check_devices, heavy_modules, join, leave, spawn_workers, team

__all__ = ["Team", "check_devices", "heavy_modules", "join", "leave", "spawn_workers", "team"]
