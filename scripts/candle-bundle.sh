#!/bin/sh
# Builds candle's programs for a machine with an H200 and without Rust, in the folder candle-bundle/.
#
#   scripts/candle-bundle.sh [CUDA_HOME]     a toolkit; by scripts/cuda-toolkit.sh in target/cuda where there is none
#
# There: cd candle-bundle && ./run.sh; see programs/candle/run.sh. candle-bundle.tgz is the same, packed.
# CUDA_COMPUTE_CAP (90) names another GPU.
set -eu
cuda=${1:+$(realpath -m "$1")}
cd "$(dirname "$0")/.."
: "${cuda:=$PWD/target/cuda}"
[ -e "$cuda/lib64/libcuda.so" ] || [ -e "$cuda/lib64/stubs/libcuda.so" ] || scripts/cuda-toolkit.sh "$cuda"

export CUDA_HOME="$cuda" CUDA_COMPUTE_CAP="${CUDA_COMPUTE_CAP:-90}" PATH="$cuda/bin:$PATH"
target=${CARGO_TARGET_DIR:-programs/candle/target}
cargo build --release --manifest-path programs/candle/Cargo.toml --features cuda --target-dir "$target"

# The hook's functions have to be in the program, not in the driver that it is linked to.
binary=$target/release/glake-candle-programs
for function in cuMemAllocAsync cuMemFreeAsync cuMemAlloc_v2 cuMemFree_v2 cuMemGetInfo_v2 cudaMallocAsync_ptsz; do
    nm "$binary" | grep -q " [Tt] $function\$" || { echo "$function is the driver's: no hook" >&2; exit 1; }
done

rm -rf candle-bundle
mkdir candle-bundle
strip -o candle-bundle/glake-candle-programs "$binary"
cp programs/candle/run.sh programs/candle/table.py candle-bundle/
tar -czf candle-bundle.tgz candle-bundle
mib=$(du -sm candle-bundle | cut -f1)
echo "candle-bundle/: $mib MiB, packed $(du -sm candle-bundle.tgz | cut -f1)"
[ "$mib" -lt 64 ] || { echo "64 MiB or more" >&2; exit 1; }
