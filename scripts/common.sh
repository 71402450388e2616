# What the scripts beside this one share. Sourced, not run; the caller stands at the top of the tree.
# shellcheck shell=bash

# Where cargo puts what it builds.
# shellcheck disable=SC2034
target=${CARGO_TARGET_DIR:-target}

say() { printf '%s\n' "$*" >&2; }

die() {
  say "$0: $1"
  [ $# -lt 2 ] || say "  try: $2"
  exit 1
}

is_root() { [ "$(id -u)" = 0 ]; }

need_cargo() {
  command -v cargo >/dev/null && return
  # A shell that was never logged in does not have it on its path.
  if [ -x "$HOME/.cargo/bin/cargo" ]; then
    PATH=$HOME/.cargo/bin:$PATH
    return
  fi
  die 'cargo is missing' 'install Rust 1.90 or newer with rustup: https://rustup.rs'
}

# need_tools COMMAND:PACKAGE…: installs the packages whose command is missing; root only.
need_tools() {
  local pair packages=()
  for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || packages+=("${pair#*:}")
  done
  [ ${#packages[@]} -gt 0 ] || return 0
  if ! is_root || ! command -v apt-get >/dev/null; then
    die "these packages are missing: ${packages[*]}" 'install them as root, then run this again'
  fi
  say "installing ${packages[*]}"
  DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${packages[@]}" >&2
}

# The points of all mounts of panefs below a directory, the last one made first.
mounts_below() {
  awk -v below="$1/" '
    { for (i = 7; $i != "-"; i++) {} }
    $(i + 1) ~ /^fuse\.panefs/ && index($5, below) == 1 { print $5 }
  ' /proc/self/mountinfo | tac
}
