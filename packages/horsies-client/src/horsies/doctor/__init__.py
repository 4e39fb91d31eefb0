"""What is wrong with a database and its workers, why it matters, and how to fix it.

`examine` does the asking, the checks are plain functions over what it found, and a `Finding` is what the command line
and the dashboard show.
"""

from horsies.doctor.asking import examine
from horsies.doctor.finding import Finding, Limits, Severity

__all__ = ["Finding", "Limits", "Severity", "examine"]
