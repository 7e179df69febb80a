#!/usr/bin/env bash
# Pack what the long run and the two servers need on a machine without a network, with torch there (Python 3.12).
# usage: pack.sh TREES OUT [MEGABYTES]
#   TREES/VERSION/sglang are the releases. OUT gets part.aa, part.ab, … of so many megabytes: one xz archive with
#   src/VERSION/sglang, site/ (what sglang imports on a CPU, and hypothesis) and nixl/ (nixl with UCX alone).
set -euo pipefail
trees=$(cd "$1" && pwd); out=$(mkdir -p "$2" && cd "$2" && pwd); size=${3:-40}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT; cd "$work"
install="python3 -m pip install -q --no-deps --no-compile --only-binary=:all: --python-version 3.12 --implementation cp"
for glibc in 34 31 28 27 24 17 12 5; do install+=" --platform manylinux_2_${glibc}_x86_64"; done
install+=" --platform manylinux2014_x86_64 --platform manylinux2010_x86_64 --platform manylinux1_x86_64"
# torch and what comes with it is there; the rest is lent on a CPU (tests.proof.stubs).
left_out='torch|triton|torchvision|torchao|xgrammar|outlines|outlines_core|llguidance|scipy|timm|networkx|sympy'
left_out+='|hf-xet|uvloop|pytest|jedi|mpmath|ninja|pluggy|iniconfig|genson|openai-harmony'
grep -vE "^(#|($left_out)==)" "$here/../../harness/cpu.txt" >site.txt
$install --target site -r site.txt
$install --target nixl nixl==1.5.1 nixl-cu13==1.5.1 wrapt
(
  cd nixl
  rm -rf nixl_ep nixl_ep_cu13 include pkgconfig wrapt-stubs *.scripts *.data
  find .nixl_cu13.mesonpy.libs/plugins nixl_cu13.libs/nixl -name 'lib*' ! -name libplugin_UCX.so -delete
  find nixl_cu13.libs/ucx -type f ! -name 'libuc?_cuda.so*' ! -name 'libuct_cma.so*' -delete
  rm -f nixl_cu13.libs/lib{aws,azure,gusli,xml2,s2n,uring,curl,aio,ibverbs,mlx5,nl-,numa,zstd}*
)
for version in $(PYTHONPATH="$here/../../../src" python3 "$here/../../swa/groups.py"); do
  mkdir -p "src/$version"
  tar -C "$trees/$version" -cf - --exclude=__pycache__ --exclude=multimodal_gen --exclude=sglang/test \
    --exclude=sglang/benchmark --exclude='*.json' --exclude='*.cu*' --exclude='*.so' --exclude='*.h' sglang |
    tar -C "src/$version" -xf -
done
find . -name __pycache__ -prune -exec rm -rf {} +; rm -rf site/bin nixl/bin site.txt
# The same file of every release side by side, so that all but one cost next to nothing.
find src -type f | awk '{file = $0; sub("src/[^/]*/", "", file); print file "\t" $0}' | LC_ALL=C sort | cut -f2 >list
find site nixl -type f -o -type l >>list
rm -f "$out"/part.*
tar --no-recursion -cf - -T list | xz -6 -T1 | split -b "${size}000000" - "$out/part."
ls -l "$out"
