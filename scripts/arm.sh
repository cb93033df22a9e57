#!/usr/bin/env bash
# Builds the native module for ARM (aarch64), and lays a Python for it beside it, so that tests run it under qemu-user.
#
#   scripts/arm.sh build/arm
#
# Needs g++-aarch64-linux-gnu, qemu-user, cmake and Debian's apt-get and dpkg-deb; alters nothing outside the folder.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
folder=$(cd "$1" && pwd)
root=$folder/root
python=${PYTHON:-.venv/bin/python}

# Debian's Python for ARM, with the libraries that it loads and the headers that the module is compiled with.
apt=$folder/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$root"
if [ ! -e "$root/usr/bin/python3" ]; then
    options=(-o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State::Lists="$apt/lists"
             -o Dir::Cache="$apt/cache" -o Dir::State::status=/dev/null -o APT::Sandbox::User=root -qq)
    apt-get "${options[@]}" update
    version=$(apt-cache "${options[@]}" depends python3-minimal | sed -n 's/.*Depends: \(python3\.[0-9]*\)-minimal$/\1/p')
    (cd "$apt" && apt-get "${options[@]}" download "$version-minimal" "lib$version-minimal" "lib$version-stdlib" \
        "lib$version-dev" libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8)
    for package in "$apt"/*.deb; do dpkg-deb -x "$package" "$root"; done
    ln -s "$version" "$root/usr/bin/python3"
fi
version=$(readlink "$root/usr/bin/python3")

cmake -S . -B "$folder/module" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSKBUILD=ON \
    -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
    -DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
    -DCMAKE_CXX_FLAGS="-idirafter $root/usr/include" \
    -DPython_EXECUTABLE="$("$python" -c 'import sys; print(sys.executable)')" \
    -DPython_INCLUDE_DIR="$root/usr/include/$version" -DSKBUILD_SOABI="${version/python3./cpython-3}-aarch64-linux-gnu"
cmake --build "$folder/module" --parallel "${JOBS:-1}"
