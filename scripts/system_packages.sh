#!/usr/bin/env bash
# The two programs that pip cannot bring: Graphviz (`dot` lays out graphs) and Chromium (the notebooks' browser tests).
# Installs what is missing where it may (root, apt-get), and only says so where it may not: never fails.
set -u

has_graphviz() { command -v dot >/dev/null; }
has_chromium() { command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; }

wanted=()
has_graphviz || wanted+=(graphviz)
has_chromium || wanted+=(chromium)
[ ${#wanted[@]} -eq 0 ] && exit 0

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt() { timeout 600 apt-get -o DPkg::Lock::Timeout=120 -qq "$@" </dev/null; }
    echo "installing system packages: ${wanted[*]}"
    apt update || echo "apt-get update failed; trying with the lists at hand"
    # One at a time, so that one that cannot be had does not take the other with it.
    for package in "${wanted[@]}"; do
        apt install -y --no-install-recommends "$package" >/dev/null || echo "apt-get install $package failed"
    done
fi

has_graphviz || echo "missing: graphviz (program dot): graphs fall back to a plainer layout; its tests are skipped"
has_chromium || echo "missing: chromium: the browser tests are skipped"
exit 0
