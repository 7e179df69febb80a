"""A stand-in for sglang's bench_serving: few requests, and a result with the same keys."""

import argparse
import json
import statistics
import sys
import time
import urllib.request

parser = argparse.ArgumentParser()
for name in ("backend", "dataset-name", "random-range-ratio", "seed", "tokenizer", "base-url"):
    parser.add_argument(f"--{name}")
for name in ("random-input-len", "random-output-len", "max-concurrency", "num-prompts"):
    parser.add_argument(f"--{name}", type=int)
parser.add_argument("--output-file")
parser.add_argument("--output-details", action="store_true")
parser.add_argument("--extra-request-body", default="")
given = parser.parse_args()
if given.extra_request_body == "hang":
    time.sleep(600)
if given.extra_request_body == "crash":
    sys.exit("ValueError: no such dataset")
times = []
errors = []
for number in range(8):
    body = json.dumps({"input_ids": [number], "load": True}).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"{given.base_url}/generate", body)
    ) as reply:
        times.append(json.load(reply)["ms"])
    errors.append("refused" if given.extra_request_body == "errors" and number < 3 else "")
middle = statistics.median(times)
result = {
    "median_ttft_ms": middle,
    "p99_ttft_ms": max(times),
    "median_tpot_ms": middle / 10,
    "median_itl_ms": middle / 10,
    "p99_itl_ms": max(times) / 10,
    "output_throughput": 1e3 / middle,
    "completed": errors.count(""),
    "errors": errors,
}
with open(given.output_file, "a", encoding="utf-8") as file:
    file.write(json.dumps(result) + "\n")
