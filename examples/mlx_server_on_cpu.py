"""Serve a tiny model with stock sglang's MLX backend on this CPU: patched, and then as it is.

    python3 examples/mlx_server_on_cpu.py

needs Linux, Python 3.11 or newer and pip. It makes an environment of its own in your cache folder
(the first time: some minutes, 2.5 GB), starts the real server with the mlx patches on, sends it
requests all at once, shows what `sglang-perf-patches` says about it, and does the same with the
patches off. One run of each says nothing about speed. With `--hybrid` the model has layers with a
state, as Qwen3-Next and Qwen3.5 have. Stock then ends at once, so it runs without its radix cache.
With `--bench` the script then measures: `sglang-perf-patches bench server` starts the server three
times with patches and three times without.

It ends with 0 if the replies are equal and a patch was live in the scheduler and has run, with 1 if
not, and with 2 if it could not find out.
"""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

# The environments, in which the tests run too.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "harness"))

from linux_mlx.completions import Completion, complete, workload
from linux_mlx.environments import (
    Environment,
    install_bench_client,
    install_checkout,
    releases,
    sglang_environment,
)
from linux_mlx.patches import live_and_run, report
from linux_mlx.processes import Failure
from linux_mlx.server import (
    arguments_of,
    free_port,
    running_server,
    server_command,
    server_variables,
    write_model,
)

_SHOWN = 64
# Short prompts and long replies: the mlx patches are about decode steps.
_LOAD = (
    *("--num-prompts", "32", "--max-concurrency", "8"),
    *("--random-input-len", "64", "--random-output-len", "128", "--random-range-ratio", "0.5"),
)


@dataclass(frozen=True)
class Outcome:
    """The results of a run of the server."""

    replies: list[str]
    most_decoded_together: int
    live_and_run: list[str]
    group: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the two servers, print the verdict and return the exit code."""
    options = _options(arguments)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _leave)
    try:
        wrong = _compare(options)
    except (Failure, OSError) as failure:
        print(f"could not compare: {failure}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing is left running", file=sys.stderr)
        return 130
    if wrong:
        print(f"FAILED: {wrong}")
    return 1 if wrong else 0


def serve(
    environment: Environment,
    model: Path,
    requests: Sequence[Completion],
    *,
    selection: str,
    log: Path,
    launcher: Sequence[str | Path] = (),
    arguments: Sequence[str] = (),
    show: bool = False,
) -> Outcome:
    """Start the server with a selection of patches, send the requests, and shut it down.

    `launcher` precedes the server's command and `arguments` follow it; with `show` it prints the
    replies and the patches' state.
    """
    with running_server(
        environment, model, selection=selection, log=log, launcher=launcher, arguments=arguments
    ) as server:
        complete(server.url, requests[:2])  # MLX first compiles kernels
        replies = complete(server.url, requests)
        working = live_and_run(server, patience_s=0 if selection == "none" else 15)
        if show:
            _print_replies(requests, replies)
            own = ("status", str(server.group))  # the others of this user are not shown
            for words in (("list",), own) if selection != "none" else ():
                print(f"\n$ sglang-perf-patches {' '.join(words)}", flush=True)
                report(server, *words, shown=True)
    return Outcome(replies, server.most_decoded_together(), working, server.group)


def bench(
    environment: Environment,
    model: Path,
    folder: Path,
    *,
    selection: str,
    arguments: Sequence[str] = (),
    options: Sequence[str] = (),
) -> int:
    """Measure the server with `sglang-perf-patches bench server`; its exit code.

    In any case it waits until the command has ended its processes.
    """
    install_bench_client(environment)
    words = [
        *(environment.script("sglang-perf-patches"), "bench", "server", *options, *_LOAD, "--"),
        *(*server_command(environment, model), "--host", "127.0.0.1"),
        *("--port", free_port(), *arguments),
    ]
    process = subprocess.Popen(
        [str(word) for word in words], env=server_variables(selection, folder)
    )
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def what_is_wrong(patched: Outcome, stock: Outcome) -> str | None:
    """A sentence that says why the comparison fails; None if it succeeds."""
    if not patched.live_and_run:
        return "no patch was live in the scheduler and had run"
    if stock.live_and_run:
        return f"with patches off, {', '.join(stock.live_and_run)} was live"
    if min(patched.most_decoded_together, stock.most_decoded_together) < 2:
        return "no two requests were decoded together"
    different = [
        number
        for number, replies in enumerate(zip(patched.replies, stock.replies, strict=True))
        if replies[0] != replies[1]
    ]
    if different:
        return (
            f"the replies to {len(different)} of {len(stock.replies)} requests differ: {different}"
        )
    return None


def _compare(options: argparse.Namespace) -> str | None:
    if sys.platform != "linux" or sys.version_info < (3, 11):
        raise Failure("this example is for Linux and Python 3.11 or newer")
    environment = sglang_environment(options.sglang)
    install_checkout(environment)
    requests = workload(options.requests)
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        model = write_model(environment, folder, "hybrid" if options.hybrid else "dense")
        launcher = (environment.script("sglang-perf-patches"), "run") if options.run else ()
        outcomes = []
        for name, selection in (("patched", options.patches), ("stock", "none")):
            print(f"\nsglang {options.sglang} with SGLANG_PERF_PATCHES={selection}:", flush=True)
            arguments = _arguments(options)
            if options.hybrid and selection == "none":
                _show_how_it_ends(environment, model, folder / "ended.log", arguments)
                arguments = ("--disable-radix-cache",)
                print("and with --disable-radix-cache:", flush=True)
            outcome = serve(
                environment,
                model,
                requests,
                selection=selection,
                log=folder / f"{name}.log",
                launcher=launcher,
                arguments=arguments,
                show=True,
            )
            outcomes.append(outcome)
        patched, stock = outcomes
        wrong = what_is_wrong(patched, stock)
        if not wrong:
            _print_verdict(requests, patched)
        if not wrong and options.bench:
            wrong = _measure(environment, model, options)
    return wrong


def _show_how_it_ends(
    environment: Environment, model: Path, log: Path, arguments: Sequence[str]
) -> None:
    """Start stock with the same arguments, and print its error.

    Raises:
        Failure: it serves.
    """
    try:
        with running_server(
            environment, model, selection="none", log=log, arguments=arguments
        ) as server:
            complete(server.url, workload(1))
    except Failure:
        errors = [line for line in log.read_text().splitlines() if re.match(r"\w*Error: ", line)]
        print(f"it ends: {errors[-1] if errors else 'see its log'}", flush=True)
        return
    raise Failure("stock serves a hybrid: no patch is needed")


def _print_verdict(requests: Sequence[Completion], patched: Outcome) -> None:
    print(
        f"\nOK: {len(requests)} replies are equal, patched and stock, "
        f"up to {patched.most_decoded_together} decoded together; "
        f"live and run in the scheduler: {', '.join(patched.live_and_run)}"
    )
    print("To measure speed, add --bench: one run a side does not show it")


def _measure(environment: Environment, model: Path, options: argparse.Namespace) -> str | None:
    """Measure; returns what is wrong with the outcome, or None."""
    print(f"\n$ sglang-perf-patches bench server --turns {options.turns} ...", flush=True)
    # A separate folder with a short path: the server creates sockets there.
    with tempfile.TemporaryDirectory(prefix="mlx-bench-") as folder:
        code = bench(
            environment,
            model,
            Path(folder),
            selection=options.patches,
            arguments=_arguments(options),
            options=("--turns", str(options.turns)),
        )
    return f"bench server ended with {code}" if code else None


def _arguments(options: argparse.Namespace) -> tuple[str, ...]:
    """The server's further options, besides those of every server here."""
    without = () if options.radix_cache else ("--disable-radix-cache",)
    return (*arguments_of(options.sglang), *without)


def _print_replies(requests: Sequence[Completion], replies: Sequence[str]) -> None:
    for number, (request, reply) in enumerate(zip(requests, replies, strict=True)):
        shown = reply if len(reply) <= _SHOWN else f"{reply[:_SHOWN]}…"
        lengths = f"{len(request.prompt.split()):3} + {request.max_tokens:3} words"
        print(f"  {number:2}  {lengths}  {shown}")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Compare stock sglang's MLX server on this CPU, patched and as it is."
    )
    parser.add_argument(
        "--sglang",
        metavar="VERSION",
        choices=releases(),
        default=releases()[0],
        help=f"the release to serve with: {', '.join(releases())} (default: the newest)",
    )
    parser.add_argument(
        "--patches",
        metavar="SELECTION",
        default="mlx",
        help="SGLANG_PERF_PATCHES of the patched server (default: mlx)",
    )
    parser.add_argument(
        "--requests", metavar="N", type=int, default=16, help="how many, all at once (default: 16)"
    )
    parser.add_argument(
        "--radix-cache",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether the server shares common prefixes (default: it does)",
    )
    parser.add_argument(
        "--hybrid", action="store_true", help="serve a model with states, on the newest release"
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="start the server under `sglang-perf-patches run`, as releases before 0.5.11 need",
    )
    parser.add_argument(
        "--bench", action="store_true", help="then measure, with `sglang-perf-patches bench server`"
    )
    parser.add_argument(
        "--turns", metavar="N", type=int, default=3, help="of --bench: boots a side (default: 3)"
    )
    parser.add_argument(
        "--keep", metavar="FOLDER", type=Path, help="keep the model and the servers' logs here"
    )
    options = parser.parse_args(arguments)
    if options.requests < 2:
        parser.error("it takes two requests to be decoded together")
    if options.hybrid and (options.bench or options.sglang != releases()[0]):
        parser.error("--hybrid is for the newest release, and not to be measured")
    return options


def _leave(signal_number: int, _frame: FrameType | None) -> None:
    """Exit by an exception, so that all started processes end."""
    sys.exit(128 + signal_number)


if __name__ == "__main__":
    sys.exit(main())
