"""What `ytilde audit` of pixel labels writes and says."""

from __future__ import annotations

from pathlib import Path

from ..auditing.pixels import PixelAudit
from ..runfolder import AUDIT, ISSUES, REGIONS, REPORT
from .summary import say_audit


def write_pixels(result: PixelAudit, run: Path) -> None:
    """Write all files of an audit of pixel labels, and print its summary."""
    result.to_csv(run / ISSUES, force=True)
    result.regions_to_csv(run / REGIONS, force=True)
    result.to_json(run / AUDIT, force=True)
    result.to_html(run / REPORT, force=True, title=str(run))
    say_audit(result, [run / name for name in (ISSUES, REGIONS, REPORT)])
