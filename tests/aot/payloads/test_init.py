"""Payload kinds by name."""

import pytest

from precast.aot.payloads import payload_kind
from precast.aot.payloads.base import untimed_options
from precast.aot.settings import resolve_settings
from precast.aot.target import Target
from precast.errors import FormatError


@pytest.mark.parametrize("name", ["aoti", "inductor"])
def test_a_kind_is_found_by_name(name: str) -> None:
    assert payload_kind(name).name == name


@pytest.mark.parametrize("name", ["auto", "", "AOTI"])
def test_an_unknown_kind_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(FormatError, match="aoti, inductor"):
        payload_kind(name)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_whatever_the_settings_resolve_to_is_a_kind(device: str) -> None:
    name = resolve_settings({"target": device}).payload
    assert payload_kind(name).name == name


@pytest.mark.parametrize("name", ["aoti", "inductor"])
def test_no_kind_times_anything_while_building(name: str) -> None:
    assert untimed_options().items() <= payload_kind(name).options(Target("cuda", "sm_90")).items()
