#!/bin/sh
# Installs Chromium where that is possible; the tests that need it say what they left out where it is not.
for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    # A mirror that does not answer must not hold up the tests.
    patience="-o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 -o Acquire::Retries=1"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086  # several options
    timeout 300 sh -c "apt-get $patience update -q && apt-get $patience install -q -y --no-install-recommends chromium" >/dev/null 2>&1
fi
command -v chromium >/dev/null 2>&1 || echo "Chromium is not here and cannot be installed: tests that drive pages of the console are left out."
exit 0
