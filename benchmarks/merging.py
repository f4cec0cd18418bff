"""The weighted sum against the disk: three models of 1 GB, warm cache, beside `cat`, `cp` and mergekit; and its exact noise."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.report import Claim
from dpmerge import example_portfolio
from dpmerge.tensors import DTYPES, Header, header_bytes, next_rung

WEIGHTS = {"a": 0.2, "b": 0.3, "c": 0.5}
REPEAT = 5
HIDDEN, INNER, VOCABULARY = 1024, 4096, 32000
# A whole process, as a release starts it; it prints the seconds of the merge and its peak memory in MB.
SCRIPT = """
import sys, time
from pathlib import Path
from dpmerge.tensors import merge_models
root, digests = Path(sys.argv[1]), sys.argv[2] == "digests"
start = time.perf_counter()
merge_models({n: root / n for n in "abc"}, {"a": 0.2, "b": 0.3, "c": 0.5}, root / "out", digests=digests)
taken = time.perf_counter() - start
# Not getrusage: that also counts what the parent had before it became this process.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(taken, int(status["VmHWM"].split()[0]) / 1024)
"""
# One thread. It prints the processor's seconds of the merge, which other processes do not lengthen, and its peak memory in MB.
NOISE = """
import sys, time
from pathlib import Path
from dpmerge.tensors import Noise, NoisePath, merge_models
root, deviation = Path(sys.argv[1]), float.fromhex(sys.argv[2])
noise = Noise(NoisePath(bytes(32), 0.02), deviation) if deviation else None
start = time.process_time()
merge_models({"a": root / "a"}, {"a": 1.0}, root / "out", digests=False, threads=1, noise=noise)
taken = time.process_time() - start
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(taken, int(status["VmHWM"].split()[0]) / 1024)
"""


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """A Llama of about 16.8 million parameters a layer, and 65.5 million in its embeddings."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(layers):
        start = f"model.layers.{layer}"
        found |= {f"{start}.self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"}
        found |= {f"{start}.mlp.{part}_proj.weight": (INNER, HIDDEN) for part in ("gate", "up")}
        found[f"{start}.mlp.down_proj.weight"] = (HIDDEN, INNER)
        found |= {f"{start}.{part}_layernorm.weight": (HIDDEN,) for part in ("input", "post_attention")}
    return found | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


@contextmanager
def three_models(dtype: str) -> Iterator[Path]:
    """Three models of 1 GB, read once so that they are in the cache; removed at the end."""
    layers = 12 if dtype == "F32" else 28
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "vocab_size": VOCABULARY,
        "torch_dtype": {"F32": "float32", "BF16": "bfloat16"}[dtype],
    }
    tensors = shapes(layers)
    header, _ = header_bytes([Header(name, DTYPES[dtype], shape) for name, shape in tensors.items()], {"format": "pt"})
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="dpmerge-benchmark-") as folder:
        for name in WEIGHTS:
            model = Path(folder) / name
            model.mkdir()
            (model / "config.json").write_text(json.dumps(config))
            with (model / "model.safetensors").open("wb") as file:
                file.write(header)
                for shape in tensors.values():
                    values = rng.standard_normal(shape, dtype=np.float32)
                    file.write(values.data if dtype == "F32" else (values.view(np.uint32) >> 16).astype(np.uint16).data)
                file.flush()
                os.fsync(file.fileno())
        yield Path(folder)


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def disk(root: Path) -> float:
    """`cat` of the inputs and `cp` of one: what any merge must at least read and write."""
    files = [str(root / name / "model.safetensors") for name in WEIGHTS]
    copy = root / "copy"
    total = seconds(["cat", *files]) + seconds(["cp", files[0], str(copy)])
    copy.unlink()
    return total


def ours(root: Path, digests: bool) -> tuple[float, float, float]:
    """Seconds of the merge, seconds of the whole process, peak memory in MB. Everything is on the disk at the end."""
    start = time.perf_counter()
    command = [sys.executable, "-c", SCRIPT, str(root), "digests" if digests else "none"]
    merge, memory = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    whole = time.perf_counter() - start
    shutil.rmtree(root / "out")
    return float(merge), whole, float(memory)


def mergekit(executable: str, root: Path, dtype: str) -> tuple[float, float]:
    """Seconds and peak memory in MB of `mergekit-yaml` with the same weights; a whole process."""
    models = "\n".join(f"  - model: {root / n}\n    parameters: {{weight: {w}}}" for n, w in WEIGHTS.items())
    names = {"F32": "float32", "BF16": "bfloat16"}
    recipe = root / "recipe.yaml"
    recipe.write_text(f"merge_method: linear\nmodels:\n{models}\ndtype: {names[dtype]}\n")
    time_taken = seconds([executable, str(recipe), str(root / "peer"), "--no-copy-tokenizer"])
    shutil.rmtree(root / "peer")
    return time_taken, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def measure(dtype: str, factor: float, peer_factor: float) -> Iterator[Claim]:
    with three_models(dtype) as root:
        disk(root)
        limits, plain, hashed = [], [], []
        for _ in range(REPEAT):  # in turn, so that what else the machine does meets all of them alike
            limits.append(disk(root))
            plain.append(ours(root, digests=False))
            hashed.append(ours(root, digests=True))
        limit, merge, with_digests = factor * min(limits), min(plain)[0], min(hashed)[0]
        memory = max(peak for _, _, peak in plain + hashed)
        yield Claim(
            f"three 1 GB models, {dtype}, warm cache: merge and fsync, beside cat of the inputs and cp of one",
            f"{merge:.2f} s against {min(limits):.2f} s: {merge / min(limits):.2f} times; "
            f"with SHA-256 of all four files {with_digests:.2f} s",
            f"≤ {factor:g} times",
            merge <= limit,
        )
        yield Claim("… peak memory", f"{memory:.0f} MB", "< 150 MB", memory < 150)
        executable = os.environ.get("MERGEKIT_YAML") or shutil.which("mergekit-yaml")
        if executable is None:
            print("no mergekit-yaml on the path and no MERGEKIT_YAML: not compared with mergekit", flush=True)
            return
        peers = [mergekit(executable, root, dtype) for _ in range(2)]
        their_time, our_time = min(time for time, _ in peers), min(whole for _, whole, _ in plain)
        with_hashes = min(whole for _, whole, _ in hashed)
        yield Claim(
            "… against mergekit-yaml linear, whole processes; ours with fsync, and like mergekit without hashes",
            f"{our_time:.2f} s, {memory:.0f} MB against {their_time:.2f} s, {max(peak for _, peak in peers):.0f} MB: "
            f"{their_time / our_time:.1f} times (with SHA-256 of all four files {their_time / with_hashes:.1f} times)",
            f"≥ {peer_factor:g} times",
            their_time >= peer_factor * our_time,
        )


def single_precision() -> Iterator[Claim]:
    """Three fp32 models of 1 GB."""
    yield from measure("F32", 2.0, 5.0)


def bfloat16() -> Iterator[Claim]:
    """Three bf16 models of 1 GB: twice the parameters, decoded and rounded by integer arithmetic."""
    yield from measure("BF16", 5.0, 2.0)


def noise_at_release() -> Iterator[Claim]:
    """One fp32 model of 10⁷ parameters and one of 10⁸, seconds of one core: the first release of a path, and a far one."""
    rng = np.random.default_rng(0)
    normals = np.empty(1 << 16)
    rungs = {"the first release of a path": 0.02, "75 rungs above it": next_rung(0.02, 0.02 * 2 ** (74.5 / 32))}
    for size, limit in ((10**7, 2.0), (10**8, 20.0)):
        with tempfile.TemporaryDirectory(prefix="dpmerge-benchmark-") as folder:
            root = Path(folder)
            (root / "a").mkdir()
            header, _ = header_bytes([Header("weight", DTYPES["F32"], (size,))], {"format": "pt"})
            with (root / "a" / "model.safetensors").open("wb") as file:
                file.write(header)
                for _ in range(10):
                    file.write((0.05 * rng.standard_normal(size // 10, dtype=np.float32)).data)
            (plain, _), start = _noised(root, 0.0), time.process_time()
            for _ in range(size // normals.size):
                rng.standard_normal(out=normals)
            numpy = time.process_time() - start
            for name, deviation in rungs.items():
                taken, memory = min(_noised(root, deviation) for _ in range(2))
                yield Claim(
                    f"noise on {size:.0e} fp32 parameters, one core, {name}",
                    f"{taken:.2f} s, {memory:.0f} MB (without noise {plain:.2f} s, numpy's own normals alone {numpy:.2f} s)",
                    f"< {limit:g} s, < 150 MB",
                    taken < limit and memory < 150,
                )


def _noised(root: Path, deviation: float) -> tuple[float, float]:
    command = [sys.executable, "-c", NOISE, str(root), deviation.hex()]
    taken, memory = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    shutil.rmtree(root / "out")
    return float(taken), float(memory)


def whole_command() -> Iterator[Claim]:
    """`dpmerge merge` with a ledger on three fp32 models of 400 MB, less the same command on models of a few numbers."""
    with tempfile.TemporaryDirectory(prefix="dpmerge-benchmark-") as folder:
        root = Path(folder)
        for size, name in ((1000, "small"), (10**8, "big")):
            _portfolio(root / name, size)
        files = [str(path) for path in sorted((root / "big").glob("*/model.safetensors"))]
        limits, small, big = [], [], []
        for _ in range(REPEAT):
            limits.append(seconds(["cat", *files]) + seconds(["cp", files[0], str(root / "copy")]))
            small.append(_released(root, "small"))
            big.append(_released(root, "big"))
    taken, limit = min(big) - min(small), min(limits)
    yield Claim(
        "`dpmerge merge` with a ledger, three fp32 models of 400 MB, whole process less its accounting, beside cat and cp",
        f"{taken:.2f} s against {limit:.2f} s: {taken / limit:.1f} times",
        "≤ 5 times",
        taken <= 5 * limit,
    )


def _portfolio(folder: Path, size: int) -> None:
    """The example portfolio's records, each with a model of ten tensors."""
    header, _ = header_bytes([Header(f"layer{k}", DTYPES["F32"], (size // 10,)) for k in range(10)], {"format": "pt"})
    rng = np.random.default_rng(0)
    for record in sorted(example_portfolio().glob("*/record.json")):
        model = folder / record.parent.name
        model.mkdir(parents=True)
        shutil.copy(record, model)
        with (model / "model.safetensors").open("wb") as file:
            file.write(header)
            for _ in range(10):
                file.write((1e-5 * rng.standard_normal(size // 10, dtype=np.float32)).data)


def _released(root: Path, name: str) -> float:
    program, ledger, out = [sys.executable, "-m", "dpmerge"], root / "ledger.db", root / "out"
    new = ["ledger", "new", str(ledger), "--dataset", "mnist-train-60000", "--epsilon", "30", "--delta", "1e-5"]
    seconds([*program, *new])
    weights = "mnist-c1-s0.5=0.1,mnist-c1-s2=0.7,mnist-c2-s0.5=0.2"
    how = ["--rule", "combination", "--weights", weights, "--delta", "1e-5", "--ledger", str(ledger), "--out", str(out)]
    taken = seconds([*program, "merge", str(root / name), *how])
    shutil.rmtree(out)
    ledger.unlink()
    return taken


ALL = (single_precision, bfloat16, noise_at_release, whole_command)
