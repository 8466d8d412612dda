import pytest

from sandbox.backends import registry
from sandbox.errors import InvalidArgument


def test_an_unknown_backend_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InvalidArgument, match="docker"):
        registry.opener("dokcer")


def test_every_name_leads_somewhere() -> None:
    for name in registry.names():
        assert callable(registry.opener(name))
