#!/bin/sh
# Runs the dbt example on a lake, with dbt in an environment of its own: its dependencies are none of ours.
set -eu
cd "$(dirname "$0")/.."
home=build/dbt
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
if ! [ -x $home/bin/dbt ]; then
    .venv/bin/python -m venv $home
    $home/bin/python -m pip install --quiet --disable-pip-version-check 'dbt-core==1.10.*' 'dbt-spark==1.9.*' ||
        { echo "dbt cannot be installed here, so its example was not run."; exit 0; }
fi
lake=$(mktemp -d)
trap 'rm -rf "$lake"' EXIT
PYTHONPATH="src:$packages" DBT_LOG_PATH="$lake/logs" DBT_SEND_ANONYMOUS_USAGE_STATS=false $home/bin/python examples/dbt/run.py "$lake/lake"
