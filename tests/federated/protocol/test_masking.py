"""The building blocks of secure aggregation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bottlegan.federated.protocol.masking import (
    agree_on_mask,
    combine,
    derive,
    draw_normal,
    draw_secret,
    expand,
    is_masking_key,
    is_seed,
    publish,
    seal,
    split,
    unseal,
)


@settings(deadline=None, max_examples=20)
@given(count=st.integers(2, 9), data=st.data())
def test_enough_shares_give_the_secret_back_and_fewer_do_not(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.integers(2, count))
    secret = draw_secret()
    shares = list(enumerate(split(secret, needed, count)))
    chosen = data.draw(st.permutations(shares))
    assert combine(chosen[:needed]) == secret
    assert combine(chosen[: needed - 1]) != secret


def test_two_labs_agree_on_a_mask_and_nobody_else_has_it() -> None:
    one, two, three = ([draw_secret() for _ in range(3)] for _ in range(3))
    public = {key[0]: publish(*key) for key in (one, two, three)}
    mask = agree_on_mask(one[1], public[two[0]], b"round")
    assert mask == agree_on_mask(two[1], public[one[0]], b"round")
    assert mask != agree_on_mask(two[1], public[one[0]], b"another")
    assert mask != agree_on_mask(three[1], public[one[0]], b"round")
    assert is_seed(one[2], public[one[0]])
    assert is_masking_key(one[1], public[one[0]])
    assert not is_seed(one[1], public[one[0]])
    assert not is_masking_key(one[0], public[one[0]])


def test_what_is_sealed_is_read_by_its_receiver_only_and_as_it_was_sent() -> None:
    one, two, three = ([draw_secret() for _ in range(3)] for _ in range(3))
    sealed = seal(b"share", one[0], publish(*two), b"one to two")
    assert unseal(sealed, two[0], publish(*one), b"one to two") == b"share"
    assert unseal(sealed, two[0], publish(*one), b"two to one") is None
    assert unseal(sealed, three[0], publish(*one), b"one to two") is None
    assert unseal(sealed[:-1] + b"?", two[0], publish(*one), b"one to two") is None


def test_masks_and_noise_follow_from_their_seed_and_look_random() -> None:
    seed = draw_secret()
    assert np.array_equal(expand(seed, 10), expand(seed, 20)[:10])
    mask = expand(seed, 100_000)
    assert not np.array_equal(mask, expand(draw_secret(), 100_000))
    counts = np.bincount(mask >> 28, minlength=16)
    assert abs(counts - 6250).max() < 500
    normal = draw_normal(seed, 100_000)
    assert normal.mean() == pytest.approx(0, abs=0.03)
    assert normal.std() == pytest.approx(1, abs=0.02)
    assert np.isfinite(normal).all()
    assert derive(seed, b"a") == derive(seed, b"a") != derive(seed, b"b")
