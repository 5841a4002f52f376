#!/usr/bin/env bash
# Installs what this machine lacks: Debian packages (shown before apt runs, no sudo when nothing is missing) and a private
# Python environment in .venv for tests, demo and benchmarks.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(build-essential cmake ninja-build pkg-config clang-format git curl python3 python3-venv
          libuv1-dev libjansson-dev libpcre2-dev libutf8proc-dev libssl-dev libcmocka-dev)
# optional: used where they exist (emulated tiers in tests, kernels of other processors, fuzzing)
wanted=(clang libclang-rt-14-dev libsimde-dev qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
if apt-cache show libllhttp-dev >/dev/null 2>&1; then packages+=(libllhttp-dev); else packages+=(node-llhttp); fi

# what was tried before is not tried again
tried() { [ "$(cat build/.optional-tried 2>/dev/null)" = "${wanted[*]}" ]; }
have() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'; }
missing=() optional=()
for p in "${packages[@]}"; do have "$p" || missing+=("$p"); done
for p in "${wanted[@]}"; do have "$p" || optional+=("$p"); done

if ((${#missing[@]} + ${#optional[@]})); then
    sudo=()
    [ "$(id -u)" = 0 ] || sudo=(sudo)
    export DEBIAN_FRONTEND=noninteractive
    if ((${#missing[@]})) || ! tried; then
        "${sudo[@]}" apt-get update -qq
    fi
    if ((${#missing[@]})); then
        echo "+ ${sudo[*]:-} apt-get install -y --no-install-recommends ${missing[*]}"
        "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    fi
    if ((${#optional[@]})) && ! tried; then
        for p in "${optional[@]}"; do
            if apt-cache show "$p" >/dev/null 2>&1; then
                echo "+ ${sudo[*]:-} apt-get install -y --no-install-recommends $p"
                "${sudo[@]}" apt-get install -y -qq --no-install-recommends "$p" >/dev/null || true
            fi
        done
        mkdir -p build && echo "${wanted[*]}" >build/.optional-tried
    fi
fi

want=$(sha256sum tools/requirements.txt | cut -d' ' -f1)
if [ ! -x .venv/bin/python ] || [ "$(cat .venv/.requirements 2>/dev/null)" != "$want" ]; then
    echo "+ python3 -m venv .venv && .venv/bin/pip install -r tools/requirements.txt"
    rm -rf .venv
    /usr/bin/python3 -m venv .venv
    .venv/bin/pip install -q --disable-pip-version-check -r tools/requirements.txt
    echo "$want" >.venv/.requirements
fi
