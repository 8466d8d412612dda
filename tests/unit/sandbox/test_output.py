from pathlib import PurePosixPath

from hypothesis import given
from hypothesis import strategies as st

from sandbox.output import LiveText, decode_head, decode_tail, render
from sandbox.types import Captured

FILE = PurePosixPath("/run/boatyard/output/x")


def test_whole_output_is_shown_as_it_is() -> None:
    assert render(Captured(head="grüße\n".encode(), total_bytes=8)) == "grüße\n"


def test_head_and_tail_that_touch_are_joined_before_decoding() -> None:
    data = "ä€😀".encode()
    for cut in range(len(data) + 1):
        captured = Captured(head=data[:cut], tail=data[cut:], total_bytes=len(data))
        assert render(captured) == "ä€😀"


def test_the_notice_says_how_much_is_missing_and_where_it_is() -> None:
    captured = Captured(head=b"begin\n", tail=b"end\n", total_bytes=1010, file=FILE)
    assert render(captured) == f"begin\n[1000 bytes of 1010 omitted; the whole output is in {FILE}]\nend\n"


def test_the_notice_is_a_line_of_its_own_and_knows_a_capped_or_missing_file() -> None:
    part = Captured(head=b"be", tail=b"nd", total_bytes=1004, file=FILE, file_truncated=True)
    assert render(part) == f"be\n[1000 bytes of 1004 omitted; {FILE} holds a part of the output]\nnd"
    none = Captured(head=b"be", tail=b"nd", total_bytes=5)
    assert render(none) == "be\n[1 byte of 5 omitted; they were not recorded]\nnd"


def test_a_character_at_the_cut_counts_as_omitted() -> None:
    euro = "€".encode()
    captured = Captured(head=b"a" + euro[:2], tail=euro[1:] + b"b", total_bytes=100, file=FILE)
    assert "�" not in render(captured)
    assert "[98 bytes of 100 omitted" in render(captured)


def test_bytes_that_are_no_text_are_replaced_not_lost() -> None:
    assert decode_head(b"\xff\xfeA") == ("��A", 0)
    assert decode_tail(b"A\xff") == ("A�", 0)


@given(st.text(), st.data())
def test_live_text_survives_any_split(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8", "replace")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)))))
    live = LiveText()
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert "".join(live.feed(piece) for piece in pieces) + live.finish() == raw.decode()


def test_live_text_ends_an_unfinished_character() -> None:
    live = LiveText()
    assert live.feed("€".encode()[:2]) == ""
    assert live.finish() == "�"


def test_live_text_names_a_gap_on_a_line_of_its_own() -> None:
    live = LiveText()
    assert live.feed(b"half") == "half"
    assert live.feed("€".encode()[1:] + b"rest", skipped_bytes=10) == "\n[12 bytes omitted]\nrest"
    assert live.feed(b"\n") == "\n"
    assert live.feed(b"x", skipped_bytes=1) == "[1 byte omitted]\nx"
