#!/bin/sh
# Builds what a machine with a GPU and without Rust needs to try glake: the tests with the feature
# `gpu`, the examples and the benches, with the traces they read, in the folder bundle/.
#
#   scripts/gpu-bundle.sh [TRACE...]     traces to add to those of the repository
#
# There: cd bundle && ./run.sh [WORD...]     all, or the items with one of the words in their name.
# OUT (out/) takes one log per item and the summary; TIMEOUT_S (300) is each item's limit. What is
# printed at the end is short: verdicts, bars, figures of the replays, failures.
set -eu
from=$PWD
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
rm -rf bundle
mkdir -p bundle/tests bundle/examples bundle/benches bundle/traces
# Before anything is built: one may be missing.
root=$PWD
for trace in "$@"; do (cd "$from" && cp "$trace" "$root/bundle/traces/"); done

# The packages that are there; a later one joins by its name.
packages=""
gpu=""
for package in glake glake-core glake-cuda glake-vmm glake-multipath glake-kvcache glake-dedup glake-hook; do
    manifest=$package/Cargo.toml
    [ "$package" = glake ] && manifest=Cargo.toml
    [ -f "$manifest" ] || continue
    packages="$packages -p $package"
    if grep -q '^gpu = ' "$manifest"; then gpu="$gpu,$package/gpu"; fi
done

build() {
    # shellcheck disable=SC2086 # the list is meant to be split
    cargo "$@" --profile bundle $packages --features "${gpu#,}" \
        --message-format=json-render-diagnostics >> bundle/artefacts.json
}
# ONLY=hook leaves out what is not the hook's.
if [ "${ONLY:-}" != hook ]; then
    build test --no-run --tests --benches
    build build --examples
else
    : > bundle/artefacts.json
fi

python3 - <<'PYTHON'
import json, pathlib, shutil

# They read files of the repository, or need no GPU and take long; the stand-in is for machines
# without a GPU.
LEFT_OUT = {"glake.golden", "glake.corpus"}
STAND_IN = "standin"

repository = pathlib.Path.cwd()
for line in open("bundle/artefacts.json"):
    message = json.loads(line)
    if message.get("reason") != "compiler-artifact" or not message.get("executable"):
        continue
    target = message["target"]
    kind = target["kind"][0]
    folder = {"example": "examples", "bench": "benches"}.get(kind, "tests")
    folder_of_package = pathlib.Path(message["manifest_path"]).parent
    package = "glake" if folder_of_package == repository else folder_of_package.name
    name = target["name"] if kind in ("lib", "example") else f"{package}.{target['name']}"
    if name in LEFT_OUT or target["name"].startswith(STAND_IN):
        continue
    shutil.copy(message["executable"], f"bundle/{folder}/{name}")
PYTHON
rm bundle/artefacts.json

# The hook's trials, in programs that load the driver and that link to it; any object with the driver's name
# and functions does for the linker.
cargo build --quiet --profile bundle -p glake-hook-trials -p glake-standin
# By itself, for the trials have features of the hook that it has not.
cargo build --quiet --profile bundle -p glake-capi
mkdir -p bundle/trials "$target/bundle/driver"
ln -sf ../libglake_standin.so "$target/bundle/driver/libcuda.so"
CARGO_ENCODED_RUSTFLAGS="-Lnative=$target/bundle/driver" cargo build --quiet --release \
    --config 'profile.release.strip=true' --manifest-path glake-hook/trials/linked/Cargo.toml --features linked \
    --target-dir "$target/linked"
cp "$target/bundle/trial" bundle/trials/loading
cp "$target/linked/release/trial" bundle/trials/linked
# PyTorch's scripts, with what they load.
cp -r programs/pytorch bundle/pytorch
cp "$target/bundle/libglake.so" bundle/pytorch/

cp traces/*.csv* bundle/traces/
cp scripts/gpu-run.sh bundle/run.sh
chmod +x bundle/run.sh

mib=$(du -sm bundle | cut -f1)
echo "bundle/: $mib MiB"
[ "$mib" -lt 60 ] || { echo "more than 60 MiB" >&2; exit 1; }
