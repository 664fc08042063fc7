# Shared by the scripts: messages, the list of Debian packages, and how to install what is missing.
# Sourced, not run.

set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
MODEL_FOLDER="${XDG_CACHE_HOME:-$HOME/.cache}/longspan/models"
MODEL_FILE="$MODEL_FOLDER/SmolLM2-135M-Instruct.Q4_1.gguf"
VENV="$ROOT/build/venv"

# What building needs; each name is a Debian 12 package.
BUILD_PACKAGES=(g++ cmake ninja-build ccache pkg-config git
  libgrpc++-dev protobuf-compiler-grpc protobuf-compiler libprotobuf-dev libabsl-dev
  libspdlog-dev libfmt-dev prometheus-cpp-dev zlib1g-dev libcli11-dev nlohmann-json3-dev libjemalloc-dev
  libpcre2-dev libutf8proc-dev libxxhash-dev libhwy-dev
  libgtest-dev libgmock-dev libbenchmark-dev
  python3 python3-venv python3-pip unzip ca-certificates)
# What scripts/test needs besides.
TEST_PACKAGES=(prometheus)
# What scripts/test --all needs besides.
ALL_PACKAGES=(clang libclang-rt-14-dev buildah debootstrap libdnnl-dev)

say() { printf '\n==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# install_packages NAME...: installs what is missing with apt, after saying what.
install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null || die "these packages are missing and there is no apt-get: ${missing[*]}"
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "run as root, or install sudo; missing packages: ${missing[*]}"
    sudo=(sudo)
  fi
  say "Installing Debian packages: ${missing[*]}"
  "${sudo[@]}" apt-get update -qq || die "apt-get update failed: check the network and /etc/apt"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null ||
    die "apt-get install failed for: ${missing[*]}"
}

# python_environment REQUIREMENTS_FILE: a virtual environment in build/venv with the given packages.
python_environment() {
  local stamp="$VENV/.$(sha256sum "$1" | cut -c1-16)"
  [ -e "$stamp" ] && return 0
  say "Preparing the Python environment (build/venv)"
  [ -x "$VENV/bin/pip" ] || python3 -m venv "$VENV" || die "python3 -m venv failed: install python3-venv"
  "$VENV/bin/pip" install -q -r "$1" || die "pip could not install $1: check the network"
  touch "$stamp"
}
