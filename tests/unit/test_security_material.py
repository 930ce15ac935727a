"""Certificates and keys from files: what is taken, what is refused with a sentence, and when they expire."""

from __future__ import annotations

import base64
import contextlib
import datetime
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcm.common.clock import FakeClock
from kvcm.config.errors import SettingsError
from kvcm.service.tls.expiry import first_expiry_s
from kvcm.service.tls.keeper import TlsKeeper
from kvcm.service.tls.material import make_material
from kvcm.service.tls.testing import DAY, Authority, Pair

pytestmark = pytest.mark.unit

AUTHORITY = Authority()
PAIR = AUTHORITY.issue()


@pytest.mark.parametrize("days", [1, 90, 365 * 40], ids=["soon", "usual", "after 2050"])
def test_expiry_is_read_from_the_certificate(days: int) -> None:
    pair = AUTHORITY.issue(valid_for=days * DAY)
    assert first_expiry_s(pair.cert) == int(pair.not_after.timestamp())


def test_the_first_expiry_of_a_chain_counts() -> None:
    short, long = AUTHORITY.issue(valid_for=3 * DAY), AUTHORITY.issue(valid_for=300 * DAY)
    assert first_expiry_s(long.cert + short.cert) == int(short.not_after.timestamp())


@pytest.mark.parametrize(
    ("chain", "key", "client_ca", "sentence"),
    [
        (b"", PAIR.key, b"", "do not hold a certificate and its key"),
        (PAIR.cert, b"", b"", "do not hold a certificate and its key"),
        (PAIR.cert, AUTHORITY.issue().key, b"", "does not belong"),
        (PAIR.cert, PAIR.key[:-40], b"", "do not hold"),
        (PAIR.cert, PAIR.key, b"no certificate", "client_ca_file"),
        (PAIR.cert, PAIR.key, b"\xff", "client_ca_file"),
        (PAIR.cert * 17, PAIR.key, b"", "1 to 16"),
    ],
)
def test_what_does_not_fit_together_is_refused_without_its_content(chain: bytes, key: bytes, client_ca: bytes, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence) as caught:
        make_material(chain, key, client_ca)
    assert caught.value.__cause__ is None
    assert "BEGIN" not in caught.value.message


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_the_password() -> None:
    pair = AUTHORITY.issue(password=b"hush")
    with pytest.raises(SettingsError, match="encrypted"):
        make_material(pair.cert, pair.key)


def test_nothing_secret_is_in_the_repr() -> None:
    assert "PRIVATE" not in repr(make_material(PAIR.cert, PAIR.key))


@settings(deadline=None, max_examples=150)
@given(at=st.integers(0, 400), byte=st.integers(0, 255), cut=st.integers(0, 500))
def test_a_damaged_certificate_never_raises_anything_but_a_refusal(at: int, byte: int, cut: int) -> None:
    der = bytearray(base64.b64decode(b"".join(PAIR.cert.splitlines()[1:-1])))
    der[at % len(der)] = byte
    text = base64.b64encode(der[: len(der) - cut % len(der)])
    pem = b"-----BEGIN CERTIFICATE-----\n" + b"\n".join(text[i : i + 64] for i in range(0, len(text), 64)) + b"\n-----END CERTIFICATE-----\n"
    with contextlib.suppress(SettingsError):
        assert isinstance(first_expiry_s(pem), int)


def keeper_at(moment: datetime.datetime, pair: Pair) -> tuple[TlsKeeper, FakeClock]:
    clock = FakeClock(wall_us=int(moment.timestamp()) * 1_000_000)
    keeper = TlsKeeper(clock)
    keeper.take((pair.cert, pair.key))
    return keeper, clock


def test_a_certificate_is_warned_about_in_advance_once_a_day(caplog: pytest.LogCaptureFixture) -> None:
    pair = AUTHORITY.issue()
    keeper, clock = keeper_at(pair.not_after - 15 * DAY, pair)
    assert not caplog.records
    clock.advance_us(2 * 86_400_000_000)
    keeper.warn()
    keeper.warn()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "hours=312" in caplog.text
    clock.advance_us(14 * 86_400_000_000)
    keeper.warn()
    assert caplog.records[-1].levelno == logging.ERROR
    (family,) = keeper.families()
    assert (family.name, list(family.samples)) == ("tls.certificate_expiry_seconds", [((), pair.not_after.timestamp())])


def test_an_expired_certificate_does_not_replace_one_that_works() -> None:
    pair, older = AUTHORITY.issue(), AUTHORITY.issue(valid_for=10 * DAY)
    keeper, _ = keeper_at(older.not_after + DAY, pair)
    with pytest.raises(SettingsError, match="expired already"):
        keeper.take((older.cert, older.key))
    assert keeper.material.chain == pair.cert
