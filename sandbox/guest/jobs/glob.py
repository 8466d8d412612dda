"""The paths below a directory that match a glob: `{path, pattern, limit}` -> lines `{"path"}`."""

from typing import Any, Dict

from sandbox import search
from sandbox.guest.jobs.stream import Lines
from sandbox.guest.jobs.tree import walk
from sandbox.guest.refusal import Refusal


def run(request: Dict[str, Any]) -> Dict[str, Any]:
    try:
        glob = search.Glob(request["pattern"])
    except search.BadPattern as error:
        raise Refusal("invalid_argument", str(error)) from None
    n_left: int = request["limit"]
    with Lines() as lines:
        for names, entry in walk(request["path"], glob.may_match_below):
            if not glob.matches(names, entry.is_dir(follow_symlinks=False)):
                continue
            if not n_left:
                return {"truncated": True}
            lines.put({"path": "/".join(names)})
            n_left -= 1
    return {"truncated": False}
