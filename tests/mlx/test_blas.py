"""The BLAS that the tests lend MLX on Linux gives the results of the one in its wheel."""

import shutil
from pathlib import Path

import pytest

import released

_JOBS = Path(__file__).with_name("blas_jobs.py")


@pytest.mark.skipif(not shutil.which("gcc"), reason="there is no gcc, so nothing is lent")
def test_products_are_equal_to_the_bit() -> None:
    arguments = {"count": 400}
    found = released.value(released.slim("0.5.23"), _JOBS, "products", arguments=arguments)
    assert found == {"made": 400, "different": 0}
