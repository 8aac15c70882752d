#!/usr/bin/env bash
# Build the Dockerfile, start the image and ask it for speech, on a machine without Docker and without a registry.
#
#   sudo tools/build_image.sh FOLDER [none|cpu|cuda]
#
# Needs root, unshare, and debootstrap (or DEBOOTSTRAP="sh /path/to/debootstrap"; MIRROR: another mirror of Debian). FOLDER gets two Debian 12 roots: one has
# buildah, which runs the steps of the Dockerfile in a chroot; the other one, with Debian's Python 3.11, takes the place
# of the base image python:3.11-slim. The last line printed is the answer of the server.
set -euo pipefail

folder=$(realpath -m "$1")
torch=${2:-none}
source=$(dirname "$(dirname "$(realpath "$0")")")

make_root() {  # NAME PACKAGE...: a Debian root with packages
  local root=$folder/$1; shift
  [ -e "$root/complete" ] && return
  ${DEBOOTSTRAP:-debootstrap} --variant=minbase --include=ca-certificates bookworm "$root" ${MIRROR:-}
  cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
  cp -L /usr/local/share/ca-certificates/* "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
  chroot "$root" update-ca-certificates
  DEBIAN_FRONTEND=noninteractive chroot "$root" sh -c "apt-get update && apt-get install -y --no-install-recommends $*"
  touch "$root/complete"
}

in_builder() {  # SCRIPT: run it with buildah, in a mount namespace whose root is the builder
  unshare --mount --propagation private sh -euc '
    mount --bind "$1/builder" "$1/builder"
    cd "$1/builder"
    mkdir -p old work
    mount -t proc proc proc
    mount -t sysfs sysfs sys
    mount --rbind /dev dev
    mount --bind "$1" work
    pivot_root . old
    umount -l old
    export HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
    exec sh -euc "$2"' sh "$folder" "$1"
}

mkdir -p "$folder"
make_root builder buildah
make_root base python3.11 python3.11-venv
for name in python python3; do ln -sfn /usr/bin/python3.11 "$folder/base/usr/local/bin/$name"; done
rm -rf "$folder/context" && mkdir "$folder/context"
git -C "$source" ls-files -z | tar -C "$source" --null -T - -c | tar -C "$folder/context" -x

in_builder '
  buildah images -q docker.io/library/python:3.11-slim 2>/dev/null | grep -q . && exit
  made=$(buildah from scratch)
  buildah add -q "$made" /work/base /
  buildah config --env PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin "$made"
  buildah commit -q "$made" docker.io/library/python:3.11-slim'
in_builder "
  cd /work/context
  buildah bud --pull-never --format docker --build-arg TORCH=$torch -t nightingale:$torch ."
in_builder "
  made=\$(buildah from --pull-never localhost/nightingale:$torch)
  buildah run -e NIGHTINGALE_API_KEY=secret -e NIGHTINGALE_PORT=8899 \$made -- nightingale serve 2>/work/server.log &
  for second in \$(seq 120); do grep -q '^ready' /work/server.log && break; sleep 1; done
  cat > /work/ask.py <<'END'
import json, os, urllib.request
body = json.dumps({'input': 'Good morning.', 'voice': 'emma'}).encode()
headers = {'Content-Type': 'application/json', 'Authorization': 'Bearer secret'}
asked = urllib.request.Request('http://127.0.0.1:8899/v1/audio/speech', body, headers)
with urllib.request.urlopen(asked, timeout=100) as answer:
    print(answer.status, answer.headers['content-type'], len(answer.read()), 'bytes, asked as uid', os.getuid())
END
  buildah run -v /work/ask.py:/tmp/ask.py:ro \$made -- python /tmp/ask.py
  kill %1 2>/dev/null || kill \$!"
