"""One id, one request, one outcome."""

from typing import Any

import pytest

from sandbox.guest.refusal import Refusal
from sandbox.guest.requests import MAX_KEPT, Requests

DONE: dict[str, Any] = {"ok": {}}


def write(request_id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"op": "write", "id": request_id, "path": "/f", **fields}


def refused(requests: Requests, request: dict[str, Any]) -> str:
    with pytest.raises(Refusal) as caught:
        requests.begin(request)
    return caught.value.code


def test_the_first_is_new_and_the_second_gets_its_outcome() -> None:
    requests = Requests()
    assert requests.begin(write()) is None
    requests.keep("a", DONE)
    assert requests.begin(write()) == DONE


def test_another_request_or_other_content_under_the_same_id_is_a_conflict() -> None:
    requests = Requests()
    requests.begin(write(digest="1"))
    requests.keep("a", DONE)
    assert refused(requests, write(digest="2")) == "request_conflict"
    assert refused(requests, {**write(digest="1"), "op": "edit"}) == "request_conflict"


def test_how_it_is_to_be_answered_does_not_matter_nor_does_order_nor_what_is_off() -> None:
    requests = Requests()
    requests.begin({"op": "start", "id": "a", "shell": "x", "env": {"A": "1", "B": "2"}, "detached": True, "tty": None})
    again = {"op": "start", "id": "a", "env": {"B": "2", "A": "1"}, "shell": "x", "head": 5, "tail": 5, "stdin": False}
    assert requests.begin(again) is None


def test_what_is_under_way_is_not_begun_again_unless_it_is_a_command() -> None:
    requests = Requests()
    requests.begin(write())
    assert refused(requests, write()) == "request_conflict"
    requests.begin({"op": "start", "id": "b", "shell": "x"})
    assert requests.begin({"op": "start", "id": "b", "shell": "x"}) is None


def test_who_waits_for_one_under_way_is_told_when_it_is_not_any_more() -> None:
    requests = Requests()
    told: list[str] = []
    for end in (lambda: requests.keep("a", DONE), lambda: requests.drop("a"), lambda: requests.acknowledge("a")):
        requests.begin(write())
        requests.when_over("a", lambda: told.append("one"))
        requests.when_over("a", lambda: told.append("other"))
        assert told == []
        end()
        assert told == ["one", "other"]
        requests.acknowledge("a")
        assert told == ["one", "other"]
        told.clear()


def test_what_did_not_happen_may_be_asked_for_again_and_what_did_may_not() -> None:
    requests = Requests()
    requests.begin(write())
    requests.drop("a")
    assert requests.begin(write()) is None
    requests.keep("a", DONE)
    requests.drop("a")
    assert requests.begin(write()) == DONE


def test_an_acknowledged_one_is_forgotten() -> None:
    requests = Requests()
    requests.begin(write())
    requests.keep("a", DONE)
    requests.acknowledge("a")
    assert requests.begin(write()) is None


def test_there_is_an_end_to_what_is_kept() -> None:
    requests = Requests()
    for n in range(MAX_KEPT):
        requests.begin(write(f"{n}-x"))
    assert refused(requests, write("one more")) == "too_many_unacknowledged"
    assert len(requests.beginning_with("12")) == 111
