#!/bin/sh
# Makes a CUDA toolkit in a folder, from packages of pip: what building candle with its feature
# `cuda` needs, on a machine without a GPU or a driver.
#
#   scripts/cuda-toolkit.sh DIR
#   CUDA_HOME=DIR CUDA_COMPUTE_CAP=90 cargo build ...
#
# DIR/lib64 holds what is linked against, with an empty libcuda: a program so built needs the
# driver and DIR/lib64's libcublas, libcurand and libcudart where it runs. The packages are
# installed in DIR/venv; a virtual environment that has them can be linked there beforehand.
set -eu
[ $# -eq 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
[ ! -e "$dir/bin" ] || [ -L "$dir/bin" ] || { echo "$dir holds a toolkit, or something else, already" >&2; exit 1; }

installed() { echo "$dir"/venv/lib/python3*/site-packages/nvidia/cu13; }
if [ ! -x "$(installed)/bin/nvcc" ] || [ ! -e "$(installed)/include/curand.h" ]; then
    python3 -m venv "$dir/venv"
    "$dir/venv/bin/pip" -q install nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* \
        nvidia-cuda-crt==13.0.* nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.* \
        nvidia-cublas==13.0.* nvidia-cuda-nvrtc==13.0.* nvidia-curand==10.4.*
fi
packages=$(installed)

# The layout of an installed toolkit.
for folder in bin include nvvm; do ln -sfn "$packages/$folder" "$dir/$folder"; done
mkdir -p "$dir/lib64"
ln -sfn lib64 "$dir/lib"
for file in "$packages"/lib/*.so.*; do
    name=$(basename "$file")
    ln -sf "$file" "$dir/lib64/$name"
    case $name in *.alt.*) ;; *) ln -sf "$name" "$dir/lib64/${name%%.so.*}.so" ;; esac
done
for file in "$packages"/lib/*.a; do ln -sf "$file" "$dir/lib64/"; done

# A libcuda to link against: every name in cuda.h that may be a function's, with nothing behind it.
# Only names count for the linker; where the program runs the driver has the functions.
grep -oE '\bcu[A-Z][A-Za-z0-9_]*' "$packages/include/cuda.h" | sort -u |
    sed 's/.*/.globl &\n.type &, @function\n&:/' > "$dir/lib64/libcuda.s"
{
    echo .text
    cat "$dir/lib64/libcuda.s"
    echo '.section .note.GNU-stack,"",@progbits'
} | cc -x assembler -shared -nostdlib -Wl,-soname,libcuda.so.1 -o "$dir/lib64/libcuda.so" -
rm "$dir/lib64/libcuda.s"

"$dir/bin/nvcc" --version | tail -n 2 | head -n 1
