"""``doctor`` asked about a launch command, and a throwaway sglang that reads its arguments."""

import sys

from throwaway import PUBLISHING, Throwaway

LAUNCH = (sys.executable, "-m", "sglang.launch_server")
ASK = ("doctor", "--gpu", "none", "--")


def refused(throwaway: Throwaway, *words: str, **variables: str) -> str:
    """The one sentence with which a launch command is refused, exit code 2."""
    done = throwaway.command(*ASK, *LAUNCH, *words, **variables)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    (line,) = done.stderr.splitlines()
    return line.removeprefix("sglang-perf-patches: ")


def answered(throwaway: Throwaway, *words: str) -> str:
    """The answer about a command, exit code 0, without line breaks."""
    done = throwaway.command(*ASK, *words)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


SERVER_ARGS = """
import argparse
from dataclasses import dataclass

@dataclass
class ServerArgs:
    tp_size: int = 1
    device: str = "cuda"

_published = None

def prepare_server_args(words):
    parser = argparse.ArgumentParser(prog="a server")
    parser.add_argument("--tp-size", "--tp", type=int, default=1)
    given = parser.parse_args(words)
    print("chatter of the release")
    if given.tp_size == 3:
        raise ValueError("no three\\nprocesses")
    return ServerArgs(given.tp_size)

"""
SERVER_ARGS += PUBLISHING
PROVEN = """
import dataclasses
import throwaway_patches as t
step = dataclasses.replace(t.STEP, proven_with={})
t.use(step, dataclasses.replace(t.TEN, only_with=("mlx",)), t.POLICY)
"""
