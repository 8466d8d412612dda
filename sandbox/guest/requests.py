"""What was asked for under which id, and how it ended: each is done at most once, and told until acknowledged."""

import json
from typing import Any, Callable, Dict, List, Optional, Tuple

from sandbox.guest.refusal import Refusal

MAX_KEPT = 4096
_PASSING = frozenset(("ack", "credit", "detached", "head", "tail", "offset", "stderr_offset", "large"))
"""Fields that say how to answer, not what to do: the same request may be repeated with others."""


class UnderWay(Refusal):
    def __init__(self, request_id: str) -> None:
        super().__init__("request_conflict", f"the request {request_id!r} is under way; wait for it")


class _Request:
    __slots__ = ("fingerprint", "outcome", "waiting")

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self.outcome: Optional[Dict[str, Any]] = None
        """None while it is under way; a command's is with the command."""
        self.waiting: Tuple[Callable[[], None], ...] = ()

    def over(self) -> None:
        waiting, self.waiting = self.waiting, ()
        for callback in waiting:
            callback()


class Requests:
    def __init__(self) -> None:
        self._kept: Dict[str, _Request] = {}

    def begin(self, request: Dict[str, Any]) -> Optional[Dict[str, Any]]:
        """Takes a request up under its id; returns the outcome if it was done before.

        Raises: UnderWay, Refusal (request_conflict: the id means something else; too_many_unacknowledged).
        """
        request_id = request["id"]
        fingerprint = _fingerprint(request)
        known = self._kept.get(request_id)
        if known is None:
            if len(self._kept) >= MAX_KEPT:
                raise Refusal("too_many_unacknowledged", "acknowledge the results of earlier requests first")
            self._kept[request_id] = _Request(fingerprint)
            return None
        if known.fingerprint != fingerprint:
            raise Refusal("request_conflict", f"the id {request_id!r} was used for another request; choose a new one")
        if known.outcome is None and request["op"] != "start":
            raise UnderWay(request_id)
        return known.outcome

    def when_over(self, request_id: str, callback: Callable[[], None]) -> None:
        """Calls back once a request that is under way is not any more."""
        self._kept[request_id].waiting += (callback,)

    def keep(self, request_id: Optional[str], outcome: Dict[str, Any]) -> None:
        known = self._kept.get(request_id) if request_id is not None else None
        if known is not None:
            known.outcome = outcome
            known.over()

    def drop(self, request_id: Optional[str]) -> None:
        """It did not happen: the next one under this id is the first."""
        if request_id is not None and request_id in self._kept and self._kept[request_id].outcome is None:
            self._kept.pop(request_id).over()

    def acknowledge(self, request_id: str) -> None:
        known = self._kept.pop(request_id, None)
        if known is not None:
            known.over()

    def beginning_with(self, prefix: str) -> List[str]:
        return [request_id for request_id in self._kept if request_id.startswith(prefix)]


def _fingerprint(request: Dict[str, Any]) -> str:
    """What was asked for. An option that is off is the same as none: `start` may be repeated as `execute`."""
    meant = {k: v for k, v in request.items() if k not in _PASSING and v is not None and v is not False}
    return json.dumps(meant, sort_keys=True)
