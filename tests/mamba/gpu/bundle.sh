#!/usr/bin/env bash
# Pack what sync_counts.py needs on a GPU machine without a network into one archive below 64 MiB.
# usage: bundle.sh KIT OUT      KIT: the folder that the GPU kit's make_kit.sh wrote, made with
#                               0.5.9 0.5.10.post1 0.5.16 0.5.20 0.5.23; OUT: the archive (tar.xz)
# It leaves out what stand-ins can replace (see sync_counts.py) and sglang's prebuilt binaries and
# tuning tables, and adds wrapt. Needs pip, unzip and xz.
set -euo pipefail
kit=$(cd "$1" && pwd); out=$(realpath "$2")
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
cat "$kit"/part.* | xz -dc | tar xf -
mkdir -p src/0.5.11; mv site/sglang src/0.5.11/
rm -rf site/{flashinfer,deep_gemm,PIL,IPython,openai_harmony}* site/{grpc,_mscclpp,pillow,soundfile,_soundfile}*
python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
  --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
  --platform manylinux_2_5_x86_64 --platform manylinux1_x86_64 -d . wrapt
unzip -qo wrapt-*.whl -d site
find src \( -name '*.so' -o -path '*configs*json' \) -delete
find . -name '*.pyi' -delete
# The releases share most of their text: file beside file, it is packed once.
find site src -type f |
  awk -F/ '{key = $0; if ($1 == "src") { key = "~"; for (i = 3; i <= NF; i++) key = key "/" $i; key = key "/" $2 }
            print key "\t" $0}' |
  sort | cut -f2 | tar -cf - -T - | xz -T1 --lzma2=preset=2,dict=96MiB > "$out"
ls -l "$out"
