"""The tree in the docstring is the tree in the code, and a guest can only say what is its to say."""

import re

import pytest

from sandbox import errors


def test_the_docstring_draws_every_class_with_its_code() -> None:
    drawn = dict(re.findall(r"── (\w+) +([a-z_]+)(?:  |\n)", (errors.__doc__ or "") + "\n"))
    leaves = {cls.__name__: code for code, cls in errors.BY_CODE.items() if not cls.__subclasses__()}
    assert {name: drawn.get(name) for name in leaves} == leaves


def test_codes_are_unique() -> None:
    assert all(cls.code == code for code, cls in errors.BY_CODE.items())


@pytest.mark.parametrize("code", ["lost", "broken", "engine_error", "no_such_code", "__class__", ""])
def test_a_guest_cannot_choose_an_error_that_is_not_its_own(code: str) -> None:
    assert type(errors.from_guest(code, "x")) is errors.IoFailed


def test_a_guest_chooses_among_file_and_process_errors() -> None:
    assert type(errors.from_guest("no_space", "full")) is errors.NoSpace
    assert errors.from_guest("no_space", "full").message == "full"
