"""Which names a glob matches and which lines a pattern matches. Pure, Python 3.8, standard library only: the guest
runs it, and so does every backend without a search of its own.

Globs are matched piece by piece without backtracking, so no pattern can be made slow. Regular expressions are
Python's, and one can: run them where they can be killed.
"""

import re
import warnings
from collections import deque
from typing import Callable, Deque, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

MAX_LINE_CHARS = 2000
CUT_MARK = " [line cut at %d characters]" % MAX_LINE_CHARS
BINARY_PROBE_BYTES = 8192
MAX_ALTERNATIVES = 256


class BadPattern(ValueError):
    """The pattern means nothing; the message says why."""


LineTest = Callable[[str], bool]


class Hit(NamedTuple):
    number: int
    text: str
    is_match: bool


class _Name:
    """One component of a glob: fixed pieces with stars between them."""

    def __init__(self, text: str) -> None:
        pieces, lengths = _fixed_pieces(text)
        self._pieces = [re.compile(piece, re.DOTALL) for piece in pieces]
        self._last_length = lengths[-1]
        self._literal = text if not re.search(r"[*?\[\\]", text) else None

    def matches(self, name: str) -> bool:
        if self._literal is not None:
            return name == self._literal
        first, last = self._pieces[0], self._pieces[-1]
        if len(self._pieces) == 1:
            return first.fullmatch(name) is not None
        found = first.match(name)
        for piece in self._pieces[1:-1]:
            found = found and piece.search(name, found.end())
        begin = len(name) - self._last_length
        return found is not None and begin >= found.end() and last.fullmatch(name, begin) is not None


def _fixed_pieces(text: str) -> Tuple[List[str], List[int]]:
    """The regular expressions between the stars of a component, each of one fixed length, and the lengths."""
    pieces, lengths = [""], [0]
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "*":
            if pieces[-1] or len(pieces) == 1:
                pieces.append("")
                lengths.append(0)
            continue
        if char == "?":
            regex = "."
        elif char == "[":
            regex, at = _character_class(text, at)
        elif char == "\\" and at < len(text):
            regex, at = re.escape(text[at]), at + 1
        else:
            regex = re.escape(char)
        pieces[-1] += regex
        lengths[-1] += 1
    return pieces, lengths


def _character_class(text: str, at: int) -> Tuple[str, int]:
    """The class that begins at `at`, after its bracket; without a closing one it is a literal `[`."""
    negated = text[at : at + 1] in ("!", "^")
    begin = at + 1 if negated else at
    end = text.find("]", begin + 1)
    if end < 0:
        return r"\[", at
    members, inside = "", text[begin:end]
    while inside:
        low, dash, high = inside[:1], inside[1:2], inside[2:3]
        if dash == "-" and high:
            if low > high:
                raise BadPattern("the range %r runs backwards" % inside[:3])
            members += "%s-%s" % (re.escape(low), re.escape(high))
            inside = inside[3:]
        else:
            members += re.escape(low)
            inside = inside[1:]
    return "[%s%s]" % ("^" if negated else "", members), end + 1


class _Alternative:
    """A glob without braces: names, and None for `**`."""

    def __init__(self, text: str) -> None:
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if text.startswith("/") or ".." in parts:
            raise BadPattern("the pattern %r is relative to the path: leave out the leading `/` and `..`" % text)
        if not parts:
            raise BadPattern("the pattern is empty: use `*` or `**`")
        if parts[-1] == "**":
            parts.append("*")
        self._parts = [None if part == "**" else _Name(part) for part in parts]
        self._only_directories = text.endswith("/")

    def matches(self, names: Sequence[str], is_directory: bool) -> bool:
        if self._only_directories and not is_directory:
            return False
        parts = self._parts
        at = n_matched = 0
        retry: Optional[Tuple[int, int]] = None
        while n_matched < len(names):
            part = parts[at] if at < len(parts) else None
            if at < len(parts) and part is None:
                retry = (at + 1, n_matched)
                at += 1
            elif part is not None and part.matches(names[n_matched]):
                at += 1
                n_matched += 1
            elif retry is not None:
                at, n_matched = retry[0], retry[1] + 1
                retry = (at, n_matched)
            else:
                return False
        return at == len(parts)

    def may_match_below(self, names: Sequence[str]) -> bool:
        for part, name in zip(self._parts, names):
            if part is None:
                return True
            if not part.matches(name):
                return False
        return len(self._parts) > len(names)


class Glob:
    """`*` and `?` within a name, `[…]`, `{a,b}`, `**` for any number of directories; dotfiles are like others.

    A pattern without a slash matches in the directory itself; `**/x` matches x at any depth; a slash at the end asks
    for a directory. Raises: BadPattern.
    """

    def __init__(self, pattern: str) -> None:
        self._alternatives = [_Alternative(text) for text in _expand(pattern)]

    def matches(self, names: Sequence[str], is_directory: bool = False) -> bool:
        """Whether the path with these components, relative to the directory searched, matches."""
        return any(one.matches(names, is_directory) for one in self._alternatives)

    def may_match_below(self, names: Sequence[str]) -> bool:
        """False where nothing below this directory can match, so that it need not be read."""
        return any(one.may_match_below(names) for one in self._alternatives)


def file_filter(pattern: Optional[str]) -> Callable[[Sequence[str]], bool]:
    """The test of a grep's `glob`: a pattern without a slash is about the name alone, at any depth."""
    if pattern is None:
        return lambda names: True
    glob = Glob(pattern)
    if "/" in pattern:
        return glob.matches
    return lambda names: glob.matches(names[-1:])


def _expand(pattern: str) -> List[str]:
    """The patterns that the braces stand for. A brace without its partner is a literal."""
    done: List[str] = []
    todo = [pattern]
    while todo:
        text = todo.pop()
        brace = _first_brace(text)
        if brace is None:
            done.append(text)
        else:
            begin, commas, end = brace
            edges = [begin, *commas, end]
            choices = [text[left + 1 : right] for left, right in zip(edges, edges[1:])]
            todo += [text[:begin] + choice + text[end + 1 :] for choice in choices]
        if len(done) + len(todo) > MAX_ALTERNATIVES:
            raise BadPattern("the braces stand for more than %d patterns" % MAX_ALTERNATIVES)
    return done


def _first_brace(text: str) -> Optional[Tuple[int, List[int], int]]:
    """Begin, commas and end of the first brace pair that has a comma."""
    stack: List[Tuple[int, List[int]]] = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "{":
            stack.append((at, []))
        elif char == "," and stack:
            stack[-1][1].append(at)
        elif char == "}" and stack:
            begin, commas = stack.pop()
            if commas:
                return begin, commas, at
        at += 1
    return None


def is_binary(head: bytes) -> bool:
    """Whether a file that begins like this is left out of text searches."""
    return b"\0" in head[:BINARY_PROBE_BYTES]


def line_test(pattern: str, literal: bool = False, ignore_case: bool = False) -> LineTest:
    """The test of one line, without its line end. Raises: BadPattern."""
    if not pattern:
        raise BadPattern("the pattern is empty")
    if "\n" in pattern:
        raise BadPattern("the pattern holds a line break, and lines are matched one by one: search for one line of it")
    if literal and not ignore_case:
        return lambda line: pattern in line
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = re.compile(re.escape(pattern) if literal else pattern, re.IGNORECASE if ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadPattern("%r is not a regular expression: %s" % (pattern, error)) from None
    return lambda line: compiled.search(line) is not None


def scan(lines: Iterable[bytes], test: LineTest, context: int = 0) -> Iterator[Hit]:
    """The matching lines and those around them, each once and in order. Holds `context` lines in memory."""
    before: Deque[Tuple[int, str]] = deque(maxlen=context)
    n_after = 0
    for number, raw in enumerate(lines, 1):
        text = decode_line(raw)
        if test(text):
            for earlier, earlier_text in before:
                yield Hit(earlier, cut_line(earlier_text), False)
            before.clear()
            yield Hit(number, cut_line(text), True)
            n_after = context
        elif n_after:
            yield Hit(number, cut_line(text), False)
            n_after -= 1
        else:
            before.append((number, text))


class Quota:
    """Lets `limit` matches through, with all the context that is theirs, and knows whether there were more."""

    def __init__(self, limit: int, context: int = 0) -> None:
        self._left = limit
        self._context = context
        self._last: Optional[Tuple[object, int]] = None
        self.exceeded = False

    def admits(self, path: object, hit: Hit) -> bool:
        """Whether to keep this line of this file; once `exceeded`, nothing further needs to be asked."""
        if hit.is_match:
            self.exceeded = self.exceeded or not self._left
            if not self.exceeded:
                self._left -= 1
                self._last = (path, hit.number)
            return not self.exceeded
        if self._left:
            return True
        return self._last is not None and self._last[0] == path and hit.number <= self._last[1] + self._context


def decode_line(raw: bytes) -> str:
    if raw.endswith(b"\n"):
        raw = raw[:-2] if raw.endswith(b"\r\n") else raw[:-1]
    return raw.decode("utf-8", "replace")


def cut_line(text: str) -> str:
    return text if len(text) <= MAX_LINE_CHARS else text[:MAX_LINE_CHARS] + CUT_MARK
