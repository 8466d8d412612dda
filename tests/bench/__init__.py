"""`make bench`: what Boatyard costs, beside what else one would use, measured side by side in one run.

A row is one function in an area file (`exec.py`, `files.py`, …), registered by `@row`; `peers/` holds what we compare
with. Timing is reported and never asserted: a slow machine is no failure.
"""

__all__: list[str] = []
