#!/bin/sh
# Lets a clone in a dev container use the environment that the image brings: use_environment.sh IMAGES_ENVIRONMENT
#
# .venv becomes a link to it, so every target of the Makefile finds it, and the two packages are installed in place from
# this clone. OFFLINE=1, which devcontainer.json sets, then keeps `make` from replacing it, because that would download
# gigabytes. After a change of requirements.txt, build the container again.
set -e
cd "$(dirname "$0")/.."
environment=$1

if [ -e .venv ] && [ ! -L .venv ]; then
    echo "dev container: $PWD/.venv was made outside the container and does not run here." >&2
    echo "dev container: remove it or give it another name, and build the container again." >&2
    exit 1
fi
ln -sfn "$environment" .venv
.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation -e ./ipu_model -e .
echo "dev container: .venv is $environment, with the course from $PWD"
