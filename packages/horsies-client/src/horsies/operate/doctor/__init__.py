"""Finds problems of a database and its workers, and says why each matters and how to fix it.

`examine` reads the facts, the checks are plain functions over them, and the command line and the dashboard show the
findings. It writes no row.
"""

from horsies.operate.doctor.examination import examine
from horsies.operate.doctor.finding import Finding, Limits, Severity

__all__ = ["Finding", "Limits", "Severity", "examine"]
