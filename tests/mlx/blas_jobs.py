"""Runs in a release's environment: MLX's own BLAS, and the one that the shims load in its place."""

import ctypes
import sys
from pathlib import Path
from random import Random
from typing import Any

import linux_shims
import mlx.core
import numpy as np

ROW_MAJOR, COLUMN_MAJOR, PLAIN, TRANSPOSED = 101, 102, 111, 112
SIZES = (1, 2, 7, 8, 31, 32, 33, 64, 200)


def products(count: int) -> dict[str, int]:
    """How many products of random matrices of float32 were made, and how many differ in any bit."""
    (theirs,) = Path(mlx.core.__file__).parents[1].glob("mlx_cpu.libs/libblas-*")
    libraries = [str(theirs), str(linux_shims.fast_blas(Path(sys.prefix)))]
    multiply = [ctypes.CDLL(library).cblas_sgemm for library in libraries]
    chance, numbers = Random(3), np.random.default_rng(3)
    different = 0
    for _ in range(count):
        order = chance.choice((ROW_MAJOR, COLUMN_MAJOR))
        (m, n, k), kinds = chance.choices(SIZES, k=3), chance.choices((PLAIN, TRANSPOSED), k=2)
        scales = chance.choice((1.0, 0.18)), chance.choice((0.0, 1.0, 0.3))
        is_turned = order == COLUMN_MAJOR
        shapes = [
            shape[::-1] if (kind == TRANSPOSED) != is_turned else shape
            for shape, kind in zip([(m, k), (k, n), (m, n)], [*kinds, PLAIN], strict=True)
        ]
        a, b, c = (
            numbers.standard_normal((rows, columns + 3), np.float32) for rows, columns in shapes
        )
        results = []
        for function in multiply:
            result = c.copy()
            function(
                *(order, *kinds, m, n, k, ctypes.c_float(scales[0]), *_of(a), *_of(b)),
                *(ctypes.c_float(scales[1]), *_of(result)),
            )
            results.append(result.tobytes())
        different += results[0] != results[1]
    return {"made": count, "different": different}


def _of(matrix: Any) -> tuple[Any, int]:
    return ctypes.c_void_p(matrix.ctypes.data), matrix.shape[1]
