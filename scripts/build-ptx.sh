#!/bin/sh
# Builds glake-cuda/kernels/glake.ptx from glake.cu: for any GPU from Turing (compute_75) on, and
# any driver from 11.4 on. Uses the nvcc on PATH, or else installs one with pip in a temporary
# folder. Checks the result with ptxas if it is there.
set -eu
cd "$(dirname "$0")/../glake-cuda/kernels"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! nvcc=$(command -v nvcc); then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" -q install nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* \
        nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.*
    nvcc=$(echo "$work"/venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
fi

"$nvcc" -ptx -O3 -std=c++17 -arch=compute_75 -o "$work/glake.ptx" glake.cu
# nvcc stamps its own PTX version, which older drivers refuse; nothing here needs more than 7.4.
# It also keeps variables private; the host looks this one up by name.
sed -E -e 's/^\.version .*/.version 7.4/' -e '/^\/\//d' \
    -e 's/^\.global (.* glake_mismatches)/.visible .global \1/' "$work/glake.ptx" > glake.ptx
grep -q '^\.visible \.global .* glake_mismatches' glake.ptx

if ptxas=$(command -v "$(dirname "$nvcc")/ptxas"); then
    for arch in sm_75 sm_90; do "$ptxas" -arch=$arch -o /dev/null glake.ptx; done
fi
wc -c glake.ptx
