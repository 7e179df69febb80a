"""The GPU is a feature of a server: read without starting CUDA, and gating what nobody tried there.

The driver's management library is a stand-in, and so is torch.
"""

import pytest
from servers import serve
from throwaway import Throwaway

from fake_driver import DRIVER


@pytest.fixture
def server(throwaway: Throwaway) -> Throwaway:
    throwaway.put("driver.py", DRIVER)
    return serve(throwaway, "old")


@pytest.mark.parametrize(
    ("gpus", "device", "said"),
    [
        ([(8, 9)], "cuda", ("gated", "the GPU is not a Hopper (H100, H200)")),
        ([(9, 0), (8, 9)], "cuda", ("gated", "the GPU is not a Hopper (H100, H200)")),
        ([(9, 0), (9, 0)], "cuda", ("live", "")),
        ([], "cuda", ("live", "")),
        ([(8, 9)], "mps", ("live", "")),
    ],
    ids=["L40", "two kinds", "two H100", "no driver", "not on the GPU"],
)
def test_a_gpu_that_no_check_ran_on_gates(
    server: Throwaway, gpus: list[tuple[int, int]], device: str, said: tuple[str, str]
) -> None:
    server.play(f"""
from driver import *
Driver.gpus = {gpus}
use(proven(STEP), proven(TEN, "other-gpu"), HELPER)
ours.activate("all")
import sglang.srt.a as a, sglang.srt.server_args as arguments
assert state() == ("live", "")
publish(device={device!r})
word, why = state()
assert (word, why.partition(": this patch was not tested")[0]) == {said!r}, (word, why)
assert state("one.ten") == ("live", "")
assert a.Worker().step(1) == (1020 if word == "live" else 20)
assert cuda.started == 0, "torch is asked only where CUDA runs already"
""")


def test_where_cuda_runs_torch_tells_which_gpu_it_is(server: Throwaway) -> None:
    server.play("""
from driver import *
from sglang_perf_patches import gpu
assert gpu.capability() == "9.0" and cuda.started == 0
cuda.is_started = True
assert gpu.capability() == "8.9" and cuda.started == 1
""")


def test_the_driver_is_asked_once_and_let_go_before_anybody_forks(server: Throwaway) -> None:
    server.play("""
from driver import *
from sglang_perf_patches import gpu
assert gpu.capability() == "9.0"
assert Driver.calls[0] == "nvmlInit_v2" and Driver.calls[-1] == "nvmlShutdown"
before = list(Driver.calls)
child = os.fork()
if not child:
    os._exit(0 if gpu.capability() == "9.0" and Driver.calls == before else 1)
assert os.waitpid(child, 0)[1] == 0
assert gpu.capability() == "9.0" and Driver.calls == before
""")
