"""Noise at release: the stored numbers against slow exact arithmetic, the path's joint law, and the same bits everywhere."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from dpmerge.errors import CheckpointError
from dpmerge.tensors import Noise, NoisePath, merge_models, next_rung, noising, normals, read_tensors
from dpmerge.tensors.kernel import BLOCK
from dpmerge.tensors.normals import Normals
from dpmerge.tensors.path import parts, rung
from tests.checkpoint_builders import NUMPY, Array, bits, combine_tensors, single, verify_combination

KEY = bytes(range(32))


# --- the definition, slowly: whole numbers, fractions and mpmath at 200 bits -------------------------------------------------


def chacha20(key: bytes, counter: int, length: int) -> bytes:
    """RFC 8439, section 2.3, with the nonce 0."""

    def quarter(s: list[int], a: int, b: int, c: int, d: int) -> None:
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            s[x] = (s[x] + s[y]) & 0xFFFFFFFF
            s[z] ^= s[x]
            s[z] = (s[z] << turn | s[z] >> (32 - turn)) & 0xFFFFFFFF

    out = b""
    while len(out) < length:
        words = [int.from_bytes((b"expand 32-byte k" + key)[4 * k : 4 * k + 4], "little") for k in range(12)]
        start = [*words, counter, 0, 0, 0]
        state = list(start)
        for _ in range(10):
            for column in range(4):
                quarter(state, column, 4 + column, 8 + column, 12 + column)
            for column in range(4):
                quarter(state, column, 4 + (column + 1) % 4, 8 + (column + 2) % 4, 12 + (column + 3) % 4)
        out += b"".join(((a + b) & 0xFFFFFFFF).to_bytes(4, "little") for a, b in zip(state, start, strict=True))
        counter += 1
    return out[:length]


def exact_normal(key: bytes, root: float, node: int, tensor: str, element: int) -> mpmath.mpf:
    """Φ⁻¹ of a uniform number of 64 + 256 bits, to about 200."""

    def stream(use: bytes, place: int, counter: int, length: int) -> bytes:
        message = node.to_bytes(8, "little", signed=True) + place.to_bytes(8, "little") + tensor.encode()
        seed = hashlib.blake2b(root.hex().encode(), digest_size=32, key=key, person=b"dpmerge path").digest()
        subkey = hashlib.blake2b(message, digest_size=32, key=seed, person=b"dpmerge " + use).digest()
        return chacha20(subkey, counter, length)

    block, place = divmod(element, 1 << 16)
    word = int.from_bytes(stream(b"words", block, place // 8, 64)[place % 8 * 8 :][:8], "little")
    tail = (word % 2**63 << 256) + int.from_bytes(stream(b"further", element, 0, 32), "big")
    p = mpmath.ldexp(mpmath.mpf(2 * tail + 1), -321)
    start = float(stats.norm.isf(float(p)))
    x = mpmath.findroot(lambda x: mpmath.erfc(x / mpmath.sqrt(2)) / 2 - p, (start, start + 1e-12))
    return -x if word >> 63 else x


def exact_path(key: bytes, root: float, index: int, tensor: str, element: int) -> mpmath.mpf:
    """Z at a rung, by the definition: recursion over octaves and halves."""

    def v(k: int) -> mpmath.mpf:
        return mpmath.mpf(rung(root, k)) ** 2

    def normal(k: int) -> mpmath.mpf:
        return exact_normal(key, root, k, tensor, element)

    def at(k: int) -> mpmath.mpf:
        if k == 0:
            return mpmath.mpf(root) * normal(0)
        if k % 32 == 0 and k > 0:
            return at(k - 32) + mpmath.sqrt(v(k) - v(k - 32)) * normal(k)
        if k % 32 == 0:
            return at(k + 32) / 4 + mpmath.sqrt(v(k) * (1 - v(k) / v(k + 32))) * normal(k)
        width = 1
        while k % (2 * width) == 0:
            width *= 2
        low, high = k - width, k + width
        share = (v(k) - v(low)) / (v(high) - v(low))
        return (1 - share) * at(low) + share * at(high) + mpmath.sqrt((v(k) - v(low)) * (1 - share)) * normal(k)

    return at(index)


def exact_release(values: Sequence[Array], weights: Sequence[float], key: bytes, root: float, index: int, tensor: str) -> Array:
    """What is stored, element by element."""
    deviation = rung(root, index)
    spacing = Fraction(2) ** (math.floor(math.log2(deviation)) - 26)
    found = np.empty(values[0].size, np.float64)
    with mpmath.workprec(200):
        for element in range(values[0].size):
            average = sum(Fraction(w) * Fraction(float(v.reshape(-1)[element])) for w, v in zip(weights, values, strict=True))
            whole, rest = divmod(average / spacing, 1)
            noise = exact_path(key, root, index, tensor, element) / mpmath.mpf(float(spacing))
            step = int(whole) + int(mpmath.nint(noise + mpmath.mpf(rest.numerator) / rest.denominator))
            found[element] = float(step * spacing)
    return found.astype(values[0].dtype).reshape(values[0].shape)


def released(folder: Path, values: Sequence[Array], weights: Sequence[float], noise: Noise, **options: Any) -> Array:
    models = {f"m{k}": single(folder / f"m{k}", {"t": value}) for k, value in enumerate(values)}
    return combine_tensors(models, dict(zip(models, weights, strict=True)), noise=noise, **options)["t"]


def at(index: int, root: float = 0.02, key: bytes = KEY) -> Noise:
    return Noise(NoisePath(key, root), rung(root, index))


def counted_steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What exact arithmetic is asked from now on."""
    found: list[Any] = []
    original = noising._exact_step

    def counted(*arguments: Any) -> int:
        found.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(noising, "_exact_step", counted)
    return found


INDICES, WEIGHTS = (0, 75, -47), ((1.0,), (0.3, 0.7), (1 / 3, 1e-9, 2 / 3))


@pytest.mark.parametrize(  # each pair of a type, an index and weights at least once
    ("dtype", "index", "weights"),
    [
        (dtype, INDICES[(place + turn) % 3], weights)
        for turn, dtype in enumerate(("F64", "F32", "F16", "BF16"))
        for place, weights in enumerate(WEIGHTS)
    ],
)
def test_stored_numbers_are_those_of_the_definition(tmp_path: Path, dtype: str, index: int, weights: tuple[float, ...]) -> None:
    rng = np.random.default_rng([index + 100, len(weights), *dtype.encode()])
    values = [rng.standard_normal(4).astype(NUMPY[dtype]) for _ in weights]
    expected = exact_release(values, weights, KEY, 0.02, index, "t")
    assert bits(released(tmp_path, values, weights, at(index))) == bits(expected)


@pytest.mark.parametrize("dtype", ["F64", "F32"])
def test_numbers_of_any_size_beside_the_noise(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(4)
    sizes = 10.0 ** np.array([-30, -12, -6, 0, 3, 6, 9, 13, 18, 24, 30])
    values = [(sizes * rng.standard_normal(sizes.size)).astype(NUMPY[dtype]) for _ in range(2)]
    expected = exact_release(values, (0.25, 0.3), KEY, 1e-3, 5, "t")
    assert bits(released(tmp_path, values, (0.25, 0.3), at(5, 1e-3))) == bits(expected)


@pytest.mark.parametrize("dtype", ["F64", "F32", "BF16"])
def test_a_wide_margin_gives_the_same_bits(tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [np.random.default_rng(k).standard_normal(40).astype(NUMPY[dtype]) for k in range(2)]
    refined = counted_steps(monkeypatch)
    by_doubles = released(tmp_path / "a", values, (0.4, 0.6), at(40))
    assert len(refined) == 0
    monkeypatch.setattr(noising, "_error", lambda *_: math.inf)
    assert bits(released(tmp_path / "b", values, (0.4, 0.6), at(40))) == bits(by_doubles)
    assert len(refined) == 40


def test_bits_are_asked_for_until_the_rounding_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """An average that lies within 2⁻¹⁰⁰ of a tie with its noise: 128 bits of each uniform number do not decide it, more do."""
    asked: list[int] = []
    original = Normals.refined

    def counted(self: Normals, node: int, element: int, further: int, mp: Any) -> Any:
        asked.append(further)
        return original(self, node, element, further, mp)

    monkeypatch.setattr(Normals, "refined", counted)
    noise = noising.TensorNoise(at(0), Normals(at(0).path.seed, "t"))
    spacing = Fraction(noise.noise.spacing)
    with mpmath.workprec(300):
        found = exact_path(KEY, 0.02, 0, "t", 3) / mpmath.mpf(float(spacing))
        position = Fraction(int(mpmath.nint(mpmath.ldexp(found, 150))), 2**150)
    for side in (-1, 1):
        asked.clear()
        average = math.ceil(position) + Fraction(1, 2) + Fraction(side, 2**100) - position
        assert noising._exact_step(average * spacing, noise, 3) == math.ceil(position) + (side > 0)
        assert asked == [64, 128]


def test_words_too_small_for_doubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each such normal is computed alone; the stored number stays what it is."""
    values = [np.random.default_rng(1).standard_normal(2000).astype(np.float32)]
    expected = released(tmp_path / "a", values, (1.0,), at(1))
    original, asked = noising._refined, []

    def counted(normals: Normals, node: int, element: int) -> tuple[float, float]:
        asked.append((node, element))
        return original(normals, node, element)

    monkeypatch.setattr(noising, "_refined", counted)
    monkeypatch.setattr("dpmerge.tensors.normals._RARE", 1 << 55)  # 1 word of 256
    assert bits(released(tmp_path / "b", values, (1.0,), at(1))) == bits(expected)
    assert 20 < len(asked) < 200
    # One of which nothing is known, as if its 63 bits were 0: exact arithmetic decides.
    steps = counted_steps(monkeypatch)
    monkeypatch.setattr(noising, "_refined", lambda *_: (0.0, math.inf))
    assert bits(released(tmp_path / "c", values, (1.0,), at(1))) == bits(expected)
    assert 20 < len(steps) < 200


def test_zero_has_no_sign(tmp_path: Path) -> None:
    """−0 would show that the average was negative where k shows nothing."""
    noise = at(0, 1.0)
    with mpmath.workprec(200):
        average = -np.array([float(exact_path(KEY, 1.0, 0, "t", k)) for k in range(4)])
    found = released(tmp_path, [average], (1.0,), noise)
    assert (found == 0).any() and not np.signbit(found[found == 0]).any()


def test_doubles_are_within_their_bound() -> None:
    """Every eleventh piece in its middle, where the quantile errs, and both ends of others: not all of the bound is needed."""
    pieces = np.arange(normals._FIRST, normals._FIRST + (21 << 10), 11) << normals._PIECE
    middles = (pieces | normals._MIDDLE).view(np.float64).astype(np.int64)
    ends = np.concatenate([pieces[::10], (pieces + (1 << normals._PIECE) - 1)[::10]]).view(np.float64).astype(np.int64)
    # Words and 2⁶³ − 1, which is rounded up to the next octave.
    for words, bound in ((middles, 2.0**-49), (np.append(ends, 2**63 - 1), 0.8 * normals.ERROR)):
        found = normals.Workspace()._upper_quantiles(words)
        with mpmath.workprec(110):
            for word, double in zip(words, found, strict=True):
                x, p = mpmath.mpf(float(double)), mpmath.ldexp(mpmath.mpf(2 * int(word) + 1), -65)
                assert abs(mpmath.erfc(x / mpmath.sqrt(2)) / 2 - p) < bound * mpmath.npdf(x)


# --- the path ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", [0.02, 1.0, 3e-7])
def test_the_joint_law_is_that_of_a_brownian_motion(root: float) -> None:
    """Exactly, in fractions: the covariance of two rungs is the smaller variance, and a node has one variance everywhere."""
    indices = [*range(-40, 41), -96, -75, 75, 96, 160]
    made = {k: {part.node: part for part in parts(root, k)} for k in indices}
    variances: dict[int, Fraction] = {}
    for found in made.values():
        for part in found.values():
            assert variances.setdefault(part.node, part.variance) == part.variance and part.weight > 0
    for j in indices:
        for k in indices:
            common = made[j].keys() & made[k].keys()
            covariance = sum(made[j][n].weight * made[k][n].weight * variances[n] for n in common)
            assert covariance == Fraction(rung(root, min(j, k))) ** 2


def test_the_first_release_takes_one_normal_and_others_few() -> None:
    assert len(parts(0.02, 0)) == 1
    assert len(parts(0.02, 75)) == 9 and len(parts(0.02, -1)) == 7


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-12, 1e6), st.floats(1e-12, 1e6))
def test_rungs(root: float, noise: float) -> None:
    found = next_rung(root, noise)
    index = round(32 * math.log2(found / root))
    assert found == rung(root, index) >= noise > rung(root, index - 1)
    assert next_rung(root, found) == found and NoisePath(KEY, root).rung(noise) == found
    assert next_rung(root, math.nextafter(found, math.inf)) == rung(root, index + 1)
    assert rung(root, index + 32) == 2 * found
    assert found / noise <= 2 ** (1 / 32) * (1 + 1e-15)


def test_steps_of_an_octave_are_powers_of_two_rounded_down() -> None:
    for k in range(32):
        step = Fraction(rung(1.0, k))
        assert step**32 <= 2**k < (step + Fraction(1, 2**52)) ** 32


# --- as random numbers -------------------------------------------------------------------------------------------------------


def noises(folder: Path, index: int, count: int = 40_000, key: bytes = KEY, tensor: str = "t", root: float = 1.0) -> Array:
    """Z itself, in units of its deviation: the release of zeros."""
    zeros = single(folder / f"{tensor}{index}{key.hex()}", {tensor: np.zeros(count)})
    return combine_tensors({"m": zeros}, {"m": 1.0}, noise=at(index, root, key))[tensor] / rung(root, index)


def test_noise_is_normal_and_independent_over_elements_tensors_nodes_keys_and_roots(tmp_path: Path) -> None:
    samples = {index: noises(tmp_path, index) for index in (0, 32, 41, -64)}
    for sample in samples.values():
        assert stats.kstest(sample, "norm").pvalue > 1e-4
        assert stats.chi2.sf((sample**2).sum(), sample.size) > 1e-4 and stats.chi2.cdf((sample**2).sum(), sample.size) > 1e-4
    bound = 4.5 / math.sqrt(40_000)  # a false alarm is one in 10⁵
    first = samples[0]
    others = [noises(tmp_path, 0, tensor="u"), noises(tmp_path, 0, key=bytes(32)), noises(tmp_path, 0, root=2.0)]
    for other in (*others, np.roll(first, 1), np.roll(first, 8)):
        assert abs(np.corrcoef(first, other)[0, 1]) < bound
        assert abs(np.corrcoef(first**2, other**2)[0, 1]) < bound
    for j, k in ((0, 32), (0, 41), (-64, 0), (32, 41), (-64, 41)):
        low, high = sorted((j, k))
        expected = rung(1.0, low) / rung(1.0, high)
        assert abs(np.corrcoef(samples[j], samples[k])[0, 1] - expected) < bound
        step = samples[high] * rung(1.0, high) - samples[low] * rung(1.0, low)
        assert abs(np.corrcoef(step, samples[low])[0, 1]) < bound


def test_blocks_of_a_stream_differ(tmp_path: Path) -> None:
    blocks = noises(tmp_path, 0, count=3 * normals.BLOCK).reshape(3, normals.BLOCK)
    assert (np.abs(np.corrcoef(blocks) - np.eye(3)) < 4.5 / math.sqrt(normals.BLOCK)).all()


def test_the_law_is_that_of_opendps_gaussian(tmp_path: Path) -> None:
    """An independent sampler: the discrete Gaussian on multiples of 2⁻⁴⁰."""
    opendp = pytest.importorskip("opendp.prelude", reason="OpenDP is not installed (pip install opendp)")
    opendp.enable_features("contrib")
    space = opendp.vector_domain(opendp.atom_domain(T=float, nan=False), size=10_000), opendp.l2_distance(T=float)
    theirs = np.array(opendp.m.make_gaussian(*space, scale=1.0, k=-40)([0.0] * 10_000))
    for index in (0, 75):
        assert stats.ks_2samp(noises(tmp_path, index), theirs).pvalue > 1e-6


# --- in a merge --------------------------------------------------------------------------------------------------------------


def models(folder: Path) -> dict[str, Path]:
    """More than one block, with a rest, several tensors and one that is no number."""
    found = {}
    for seed, name in enumerate("ab"):
        rng = np.random.default_rng(seed)
        big = rng.standard_normal((3, BLOCK // 2 + 11)).astype(np.float32)
        found[name] = single(folder / name, {"big": big, "bias": rng.standard_normal(5), "steps": np.arange(3)})
    return found


def test_the_same_bits_for_any_number_of_threads_and_when_it_is_verified(tmp_path: Path) -> None:
    given_models, weights = models(tmp_path), {"a": 0.3, "b": 0.7}
    merge_models(given_models, weights, tmp_path / "one", threads=1, noise=at(7))
    merge_models(given_models, weights, tmp_path / "three", threads=3, noise=at(7))
    one, three = read_tensors(tmp_path / "one"), read_tensors(tmp_path / "three")
    plain = combine_tensors(given_models, weights)
    assert all(bits(one[name]) == bits(three[name]) for name in plain)
    assert bits(one["steps"]) == bits(plain["steps"])
    for name in ("big", "bias"):
        spread = (one[name].astype(float) - plain[name]) / rung(0.02, 7)
        assert 0.3 < spread.std() < 2 and (np.abs(spread) < 6).all()
    assert verify_combination(given_models, weights, tmp_path / "one", threads=2, noise=at(7)) == []
    for other in (None, at(8), at(7, key=bytes(32))):
        found = verify_combination(given_models, weights, tmp_path / "one", noise=other)
        assert [difference.tensor for difference in found] == ["bias", "big"]


def test_tensors_that_were_not_trained_go_without(tmp_path: Path) -> None:
    given_models, weights = models(tmp_path), {"a": 0.3, "b": 0.7}
    noise = Noise(NoisePath(KEY, 0.02), 0.02, frozenset({"big"}))
    found, plain = combine_tensors(given_models, weights, noise=noise), combine_tensors(given_models, weights)
    assert bits(found["big"]) == bits(plain["big"]) and bits(found["bias"]) != bits(plain["bias"])
    with pytest.raises(CheckpointError, match="has no tensor 'head', which was to go without noise"):
        combine_tensors(given_models, weights, noise=Noise(NoisePath(KEY, 0.02), 0.02, frozenset({"head"})))


def test_tied_tensors_have_one_noise(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch files need torch")
    shared = torch.zeros(4, 2)
    (tmp_path / "m").mkdir()
    torch.save({"embed": shared, "head": shared, "other": torch.zeros(4, 2)}, tmp_path / "m" / "model.pt")
    found = combine_tensors({"m": tmp_path / "m"}, {"m": 1.0}, noise=at(0))
    assert bits(found["embed"]) == bits(found["head"]) != bits(found["other"])


def test_numbers_that_are_stored_twice_are_refused(tmp_path: Path) -> None:
    """Two noises on one number could be averaged."""
    torch = pytest.importorskip("torch", reason="PyTorch files need torch")
    values = torch.arange(6.0).reshape(2, 3)
    twice = {
        "transposed": {"one": values, "two": values.T},
        "part": {"one": values, "two": values[1:]},
        "columns": {"one": values[:, :2], "two": values[:, 1:]},
        "copied": {"one": values, "two": values.clone()},
    }
    once = {
        "rows": {"one": values[:1], "two": values[1:]},
        "tied": {"one": values, "two": values},
        "constant": {"one": torch.ones(5), "two": torch.ones(5)},
        "empty": {"one": values[:0], "two": values[:0].T},
    }
    for name, state in (twice | once).items():
        (tmp_path / name).mkdir()
        torch.save(state, tmp_path / name / "model.pt")
    for name in once:
        combine_tensors({"m": tmp_path / name}, {"m": 1.0}, noise=at(0))
    for name in twice:
        combine_tensors({"m": tmp_path / name}, {"m": 1.0})
        with pytest.raises(CheckpointError, match=r"'one' and 'two' hold the same numbers|'two' and 'one' hold the same"):
            combine_tensors({"m": tmp_path / name}, {"m": 1.0}, noise=at(0))


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan, 1e-200])
def test_noise_that_cannot_be_added_is_refused(noise: float) -> None:
    with pytest.raises(CheckpointError, match="cannot be added; a standard deviation is between"):
        next_rung(0.02, noise)
    with pytest.raises(CheckpointError, match="cannot be added"):
        NoisePath(KEY, noise)


def test_other_refusals(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="a key has 32 random bytes"):
        NoisePath(b"short", 1.0)
    with pytest.raises(CheckpointError, match=r"noise of 0\.021 is not on the path that begins with 0\.02; the next noise"):
        Noise(NoisePath(KEY, 0.02), 0.021)
    assert KEY.hex() not in repr(at(0)) and repr(KEY) not in repr(at(0))
    given_models = models(tmp_path)
    with pytest.raises(CheckpointError, match="noise is added to an average; a method"):
        combine_tensors(given_models, {"a": 0.5, "b": 0.5}, method="slerp", noise=at(0))
    endless = single(tmp_path / "c", {"t": np.array([1.0, math.nan])})
    with pytest.raises(CheckpointError, match="element 1 is nan; a merge needs finite values"):
        combine_tensors({"c": endless}, {"c": 1.0}, noise=at(0))
    wide = single(tmp_path / "d", {"t": np.full(50, 65504, np.float16)})
    with pytest.raises(CheckpointError, match="beyond the range of F16; weights that sum to 1 never are unless noise is added"):
        combine_tensors({"d": wide}, {"d": 1.0}, noise=at(0, 100.0))
