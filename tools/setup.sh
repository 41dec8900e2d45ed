#!/bin/sh
# Finds a Python that the course can use and lets tools/bootstrap.py bring .venv up to date with it.
# Nothing happens, in a tenth of a second, when .venv is up to date already.
# PYTHON=/path/to/python chooses one; otherwise the one in .venv, then python3, then the newest supported one.
# OFFLINE=1 takes .venv as it is, even if requirements.txt has changed since.

oldest=10   # 3.10: the oldest Python with a build of the torch release that requirements.txt pins ...
newest=14   # 3.14: ... and the newest.

cd "$(dirname "$0")/.." || exit 1

fail() {
    echo "setup: $1" >&2
    exit 1
}

is_supported() {
    "$1" -c "import sys; sys.exit(not (3, $oldest) <= sys.version_info[:2] <= (3, $newest))" >/dev/null 2>&1
}

version_of() {
    "$1" -c "import sys; print('%d.%d.%d' % sys.version_info[:3])" 2>/dev/null
}

if [ -n "$OFFLINE" ]; then
    [ -e .venv/.setup-stamp ] && [ ! -e .venv/.setup-unfinished ] && exit 0
    fail "OFFLINE=$OFFLINE takes .venv as it is, and there is no finished one: it takes a network once"
fi

if [ -n "$PYTHON" ]; then
    found=$(version_of "$PYTHON") || fail "PYTHON=$PYTHON does not run as a Python interpreter"
    is_supported "$PYTHON" || fail "PYTHON=$PYTHON is Python $found, and the course needs 3.$oldest to 3.$newest"
    exec "$PYTHON" tools/bootstrap.py
fi

seen=""
for candidate in .venv/bin/python python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
    if is_supported "$candidate"; then
        exec "$candidate" tools/bootstrap.py
    fi
    found=$(version_of "$candidate") && seen="$seen $found"
done
if [ -n "$seen" ]; then
    fail "found only Python$seen, and the course needs 3.$oldest to 3.$newest: install one, or name it: make PYTHON=/path/to/python3"
fi
fail "found no Python: install Python 3.$oldest to 3.$newest, or name it: make PYTHON=/path/to/python3"
