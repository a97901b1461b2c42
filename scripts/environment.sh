#!/usr/bin/env bash
# The folder $VENV, for `make setup` and `make distclean`:
#   environment.sh create    makes a virtual environment there, or leaves the one that is there as it is
#   environment.sh bytecode  compiles the packages there, and ours, on all cores
#   environment.sh settings  puts JupyterLab's settings there, unless it has some of the user's
#   environment.sh remove    removes it
# Only a folder with MARKER in it is ever removed: `create` writes it into folders that it made itself, and into no other.
set -euo pipefail

MARKER=".neptune_lab-made-this-folder"
PYTHON="${PYTHON:-python3}"
folder="${VENV/#\~\//$HOME/}"
folder="${folder%"${folder##*[!/]}"}"  # without slashes at its end, with which rm follows a link
folder="${folder:-/}"

fail() { echo "error: $1" >&2; exit 1; }

ours() { [[ -d "$folder" && ! -L "$folder" && -f "$folder/$MARKER" ]]; }

# pyvenv.cfg: a virtual environment; conda-meta: one of conda's.
is_environment() { [[ -x "$folder/bin/python" && ( -f "$folder/pyvenv.cfg" || -d "$folder/conda-meta" ) ]]; }

remove() { rm -rf -- "$folder"; }

create() {
  if is_environment; then return; fi
  command -v "$PYTHON" >/dev/null || fail "no $PYTHON found: install Python 3.11 to 3.13, or say make PYTHON=/path/to/python3"
  "$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || fail "$PYTHON is $("$PYTHON" --version 2>&1): neptune_lab needs Python 3.11 to 3.13 (make PYTHON=/path/to/python3.11)"
  if ours; then remove; fi  # an interrupted run left it
  if [[ ! -e "$folder" && ! -L "$folder" ]]; then
    mkdir -p -- "$(dirname -- "$folder")"
    mkdir -- "$folder"
    touch -- "$folder/$MARKER"
  elif [[ ! -d "$folder" || -n "$(ls -A -- "$folder/")" ]]; then
    fail "VENV=$VENV exists and is no working virtual environment: nothing was changed; give a new folder, as in make VENV=.venv, or remove this one yourself"
  fi
  "$PYTHON" -m venv "$folder" || {
    if ours; then remove; fi
    fail "could not make $VENV; on Debian and Ubuntu the package python3-venv is needed"
  }
}

# pip would compile on one core, with what hardly any program imports; Python compiles that when it is imported.
bytecode() {
  "$folder/bin/python" -c '
import compileall, re, sysconfig
rarely = re.compile("/(transformers/models|sympy/physics|plotly/(graph_objs|validators)|torch/(testing|onnx|ao)|sqlalchemy|pip|setuptools|tests?)/")
for packages in (sysconfig.get_path("purelib"), "neptune_lab", "widgets/neptune_widgets"):
    compileall.compile_dir(packages, quiet=2, rx=rarely, workers=0)
'
}

settings() {
  local target="$folder/share/jupyter/lab/settings/overrides.json"
  if [[ -e "$target" ]] && ! ours; then return; fi
  mkdir -p -- "$(dirname -- "$target")"
  cp -- scripts/jupyterlab.json "$target"
}

case "${1:-}" in
  create) create ;;
  bytecode) bytecode ;;
  settings) settings ;;
  remove)
    if [[ ! -e "$folder" && ! -L "$folder" ]]; then exit 0; fi
    ours || fail "VENV=$VENV was not made by \`make setup\`: it was not removed; remove it yourself if you want it gone"
    remove
    ;;
  *) fail "expected \"create\", \"bytecode\", \"settings\" or \"remove\"" ;;
esac
