#!/bin/sh
# Builds the burn programs for a machine with a GPU and without Rust, in the folder bundle-burn/.
#
#   scripts/burn-bundle.sh [burn] [burn21]     both, or the ones named
#
# There: cd bundle-burn && ./run.sh [burn] [burn21]; see scripts/burn-run.sh.
#
# Nothing of CUDA is needed here. cubecl 0.11 links to an LLVM that a build script downloads; DOCS_RS keeps
# it from that, NVRTC compiles the kernels instead (the feature `cuda-cpp`), and functions that abort stand
# for what of LLVM the program names but never calls. So it links twice: the first time to see the names.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- burn burn21
out=bundle-burn
rm -rf $out
mkdir -p $out

for program in "$@"; do
    target=${CARGO_TARGET_DIR:-programs/$program/target}
    binary=$target/release/glake-$program-train
    link() {
        cargo rustc --release --manifest-path "programs/$program/Cargo.toml" -- "$@"
    }
    case $program in
    burn)
        export DOCS_RS=1
        link -C link-arg=-Wl,--unresolved-symbols=ignore-all
        names=$(nm -D --undefined-only "$binary" | awk '$NF ~ /^(LLVM|cubecl_)/ { print $NF }')
        {
            echo '#include <stdlib.h>'
            for name in $names; do echo "void $name(void) { abort(); }"; done
        } > "$target/no-llvm.c"
        cc -c -o "$target/no-llvm.o" "$target/no-llvm.c"
        link -C "link-arg=$(realpath "$target/no-llvm.o")"
        ;;
    burn21)
        unset DOCS_RS
        link
        ;;
    *) echo "no program $program: burn or burn21" >&2; exit 2 ;;
    esac
    strip -o "$out/$program" "$binary"
    xz -T0 -f "$out/$program"
done
cp scripts/burn-run.sh $out/run.sh
chmod +x $out/run.sh

mib=$(du -sm $out | cut -f1)
echo "$out/: $mib MiB"
[ "$mib" -lt 60 ] || { echo "more than 60 MiB: build one at a time" >&2; exit 1; }
