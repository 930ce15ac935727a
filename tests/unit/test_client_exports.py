"""The public surface is exactly the declared list, and every error class says who has to act."""

from __future__ import annotations

import subprocess
import sys

import pytest

import kvcm.client
from kvcm.client import errors
from kvcm.client.errors import ClientError, ClientErrorCode, service_error

pytestmark = pytest.mark.unit


def test_exported_names() -> None:
    assert kvcm.client.__all__ == sorted(kvcm.client.__all__, key=lambda name: (name[0].islower(), name))
    assert set(kvcm.client._HOMES) == set(kvcm.client.__all__)
    for name in kvcm.client.__all__:
        assert getattr(kvcm.client, name).__name__ == name
        assert name in dir(kvcm.client)
    with pytest.raises(AttributeError):
        kvcm.client.Missing  # noqa: B018


def test_a_worker_never_loads_grpc() -> None:
    script = "import sys; from kvcm.client import TransferClient, ClientConfig; print('grpc' in sys.modules, 'google.protobuf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


def test_service_codes_map_to_client_codes() -> None:
    expected = {0: 50, 2: 52, 3: 51, 4: 51, 5: 53, 6: 54, 7: 51, 8: 55, 9: 56, 20: 51, 100: 51, 77: 51}
    for wire, client in expected.items():
        error = service_error("StartWriteCache", wire, "because", "r1")
        assert (error.client_code, error.service_code, error.request_id) == (client, wire, "r1")
        assert error.message == "the manager refused StartWriteCache: because"
    assert [wire for wire in expected if service_error("X", wire, "").retryable] == [4, 7, 9, 20]
    assert {code.value for code in ClientErrorCode} == {*range(17), *range(50, 57), *range(100, 120)}


def test_every_error_class_is_drawn_in_the_tree() -> None:
    drawing = errors.__doc__ or ""
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, ClientError)]
    assert len(classes) > 25
    for kind in classes:
        assert kind.__name__ in drawing
        assert kind.fixer in ("caller", "administrator", "kvcm")
        assert not (kind.retryable and kind.unknown_outcome)
