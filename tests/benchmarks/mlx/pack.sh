#!/usr/bin/env bash
# Pack what the mlx benchmark needs on a machine with an NVIDIA GPU, Python 3.12 and PyTorch for CUDA 13, and no network.
# usage: pack.sh OUT      writes OUT/part.aa, part.ab, ... of at most 55 MB; needs a Python 3.12 with pip (PYTHON=...) and the releases below ~/.cache
set -euo pipefail
out=$(mkdir -p "$1" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../../.." && pwd)
python=${PYTHON:-python3.12}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
pip() { "$python" -m pip "$@" --quiet --disable-pip-version-check; }
# CUDA's libraries are those that PyTorch brought: MLX looks for them beside itself, under nvidia/.
pip download --no-deps --only-binary=:all: --python-version=3.12 --platform=manylinux_2_35_x86_64 --dest "$work/wheels" \
  mlx==0.32.4 mlx-cuda-13==0.32.4
pip download --only-binary=:all: --dest "$work/deps" mlx-lm==0.32.2 mlx==0.32.4 transformers==5.12.1 psutil tqdm wrapt
rm -f "$work"/deps/{numpy,mlx-0,mlx_,hf_xet,pygments,rich,markdown_it,mdurl}*.whl
cp "$work"/deps/*.whl "$work/wheels/"
pip download --no-deps --only-binary=:all: --dest "$work/wheels" mlx-lm==0.32.2
mkdir "$work/site"
for wheel in "$work"/wheels/*.whl; do (cd "$work/site" && unzip -q -o "$wheel"); done
for v in 0.5.11 0.5.17 0.5.23; do
  tree=$(PYTHONPATH=$root/src "$python" -c "from sglang_perf_patches import downloads; print(downloads.tree('$v'))")
  mkdir -p "$work/src/$v/sglang/srt/hardware_backend"
  cp "$tree"/sglang/__init__.py "$tree"/sglang/version.py "$tree"/sglang/_version.py "$work/src/$v/sglang/" 2>/dev/null || true
  cp "$tree"/sglang/srt/environ.py "$work/src/$v/sglang/srt/" 2>/dev/null || true
  cp -r "$tree/sglang/srt/hardware_backend/mlx" "$work/src/$v/sglang/srt/hardware_backend/"
done
find "$work" -name __pycache__ -prune -exec rm -rf {} +
cd "$work" && tar -cf - site src | xz -T0 -6 | split -b 55000000 - "$out/part."
ls -l "$out"
