"""Noise that a secret decides."""

import numpy as np
import pytest
from scipy import stats

from unlearning.certified.noise import add_noise
from unlearning.certified.secret_noise import KeyedNormal, derived_key, noise_secret


def test_keyed_noise_is_normal() -> None:
    """Mean, variance, shape, and no dependence on the number before."""
    drawn = KeyedNormal(b"k" * 32).standard_normal(200_001)
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01
    assert np.std(add_noise(np.zeros(200_001), 3.0, KeyedNormal(b"q" * 32))) == pytest.approx(3.0, rel=0.01)


def test_another_key_is_another_stream_and_the_same_key_the_same_one() -> None:
    """One bit of the key suffices."""
    one, same, other = (
        KeyedNormal(key).standard_normal(1000) for key in (bytes(32), bytes(32), bytes(31) + b"\1")
    )
    np.testing.assert_array_equal(one, same)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.15


def test_a_stream_goes_on_and_its_beginning_does_not_depend_on_the_length() -> None:
    """As a generator's does; an odd number of numbers too."""
    whole = KeyedNormal(bytes(32)).standard_normal(10)
    np.testing.assert_array_equal(KeyedNormal(bytes(32)).standard_normal(7), whole[:7])
    stream = KeyedNormal(bytes(32))
    parts = [stream.standard_normal(4), stream.standard_normal(6)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_keys_differ_for_other_texts_and_for_texts_divided_otherwise() -> None:
    """So no two releases share one."""
    keys = [derived_key(b"s" * 32, *what) for what in (("a", "b"), ("ab",), ("a", "b", ""), ("b", "a"))]
    keys.append(derived_key(b"t" * 32, "a", "b"))
    assert len(set(keys)) == 5


def test_a_secret_is_made_once_and_for_its_owner_alone(tmp_path) -> None:
    """As a key file is, which it is."""
    path = tmp_path / "noise-secret"
    assert noise_secret(path) == noise_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_secret_is_written_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    """A process that dies while it makes the secret leaves none, so the next start makes one."""

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("unlearning.runtime.durable_files.os.fsync", dies)
        with pytest.raises(KeyboardInterrupt):
            noise_secret(tmp_path / "secret")
    assert list(tmp_path.iterdir()) == []
    assert noise_secret(tmp_path / "secret") == noise_secret(tmp_path / "secret")
