#!/usr/bin/env bash
# Makes the image `tidelock-base:local`: Debian bookworm with Python, from Debian's own mirror, for machines on which
# no image registry can be reached (CI among them). Elsewhere it is not needed: the Dockerfiles take python:3.11-slim.
#
# Nothing happens if the image is there. To be run as root (debootstrap asks for it), with a container engine.
#
#   TIDELOCK_BASE_IMAGE  name of the image                        (tidelock-base:local)
#   TIDELOCK_BASE_CACHE  folder that keeps the image as a file for the next machine; unset = keep nothing
#   DEBIAN_MIRROR        where Debian's packages come from        (http://deb.debian.org/debian)
#
# The image trusts the certificate authorities that an administrator has added to this machine, because a package
# index that is reached through one of them must be reachable while images are built, too.
set -euo pipefail

image=${TIDELOCK_BASE_IMAGE:-tidelock-base:local}
cache=${TIDELOCK_BASE_CACHE:-}
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
suite=bookworm
packages=python3,python3-venv,ca-certificates
authorities=/usr/local/share/ca-certificates

if docker image inspect "$image" >/dev/null 2>&1; then
    echo "base-image: $image is there"
    exit 0
fi

# The file's name changes with what is inside, so that a cache never gives an old image. Read this script and the
# authorities in a fixed order.
content=$({ cat "${BASH_SOURCE[0]}"; find "$authorities" -name '*.crt' -print0 2>/dev/null | sort -z | xargs -0r cat; } |
    sha256sum | cut -c1-16)
archive=${cache:+$cache/tidelock-base-$suite-$(dpkg --print-architecture)-$content.tar.gz}

import() { # stdin: an archive of the root folder, compressed or not
    docker import --change 'CMD ["bash"]' --change 'ENV LANG=C.UTF-8' --message "Debian $suite with Python" - "$image" >/dev/null
}

if [ -n "$archive" ] && [ -f "$archive" ]; then
    import <"$archive"
    echo "base-image: $image imported from the cache"
    exit 0
fi

command -v debootstrap >/dev/null || { echo "base-image: debootstrap is missing; Debian has it in a package of that name" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "base-image: debootstrap needs root" >&2; exit 1; }

scratch=$(mktemp -d)
root=$scratch/root
trap 'rm -rf --one-file-system "$scratch"' EXIT

# Not every mirror is fast or sound at every moment. debootstrap goes on where it stopped.
for try in 1 2 3; do
    debootstrap --variant=minbase --include="$packages" "$suite" "$root" "$mirror" && break
    [ "$try" -lt 3 ] || { echo "base-image: debootstrap failed three times" >&2; exit 1; }
    echo "base-image: debootstrap failed, once more" >&2
done

if [ -d "$authorities" ]; then
    mkdir -p "$root$authorities"
    find "$authorities" -name '*.crt' -exec cp -Lt "$root$authorities" {} +
    chroot "$root" update-ca-certificates
fi

# What no container needs: package lists and archives, manuals, translations, logs of the installation.
rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/usr/share/{doc,info,locale,man}/*
rm -f "$root/etc/resolv.conf" "$root/etc/hostname"

if [ -n "$archive" ]; then
    mkdir -p "$cache"
    tar --numeric-owner -C "$root" -czf "$archive.$$" .
    mv "$archive.$$" "$archive"
    import <"$archive"
else
    tar --numeric-owner -C "$root" -cf - . | import
fi
echo "base-image: $image made"
