#!/bin/sh
# Builds the burn programs for a machine with a GPU and without Rust, in the folder bundle-burn/.
#
#   scripts/burn-bundle.sh [burn] [burn21]     both, or the ones named
#
# There: cd bundle-burn && ./run.sh [burn] [burn21]; see scripts/burn-run.sh.
#
# Nothing of CUDA is needed here. cubecl 0.11 links to an LLVM that a build script downloads; DOCS_RS keeps
# it from that, NVRTC compiles the kernels instead (the feature `cuda-cpp`), and what of LLVM the program
# names but never calls stays unresolved.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- burn burn21
out=bundle-burn
rm -rf $out
mkdir -p $out

for program in "$@"; do
    case $program in
    burn) export DOCS_RS=1 RUSTFLAGS="-C link-arg=-Wl,--unresolved-symbols=ignore-all" ;;
    burn21) unset DOCS_RS RUSTFLAGS ;;
    *) echo "no program $program: burn or burn21" >&2; exit 2 ;;
    esac
    target=${CARGO_TARGET_DIR:-programs/$program/target}
    cargo build --release --manifest-path "programs/$program/Cargo.toml"
    strip -o "$out/$program" "$target/release/glake-$program-train"
    # Two of them are too large for the way there.
    xz -T0 -f "$out/$program"
done
cp scripts/burn-run.sh $out/run.sh
chmod +x $out/run.sh

mib=$(du -sm $out | cut -f1)
echo "$out/: $mib MiB"
[ "$mib" -lt 60 ] || { echo "more than 60 MiB: build one at a time" >&2; exit 1; }
