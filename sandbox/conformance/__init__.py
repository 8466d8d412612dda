"""What every backend must pass. Ships with the product: a test suite runs it, and so does whoever writes a backend.

`run_all` gives one outcome for each check: it holds, it cannot be had here (for a reason that is listed in the
backend's table in `expectations.py`), or it fails. A "cannot" that is not listed fails, and so does one that is listed
and holds: nobody reads a table that is out of date.
"""

from sandbox.conformance.check import Ability, Check, Outcome, Place, Verdict
from sandbox.conformance.runner import CHECKS, run_all, run_one

__all__ = ["CHECKS", "Ability", "Check", "Outcome", "Place", "Verdict", "run_all", "run_one"]
