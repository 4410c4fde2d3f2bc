#!/bin/bash
# the recipes of README, as they are written there; mounts from within containers
# In a mount namespace of its own, for they are about /mnt/vram.
[ -n "${RECIPES_NAMESPACE:-}" ] || RECIPES_NAMESPACE=1 exec unshare --mount "$0" "$@"
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_emulated
[ "$(id -u)" -eq 0 ] || skip_all "needs root"
need python3 jq od xargs shuf awk

if ! mount -t tmpfs tmpfs /mnt || ! mount -t tmpfs tmpfs /var/lib; then
    skip_all "no mounts in a namespace here"
fi
mkdir -p /var/lib/prometheus/node-exporter "$work/cwd"
# Every user may open it, as udev has it.
mknod -m 666 /mnt/fuse c 10 229 && mount --bind /mnt/fuse /dev/fuse
cd "$work/cwd" || exit 1
# A checkpoint of two tensors, 200 MiB.
python3 - <<'PYTHON'
import array, json
weight = array.array("f", (i / 4 for i in range(1024)))
head = json.dumps({"layer.bias": {"dtype": "U8", "shape": [200 << 20], "data_offsets": [0, 200 << 20]},
                   "layer.weight": {"dtype": "F32", "shape": [32, 32], "data_offsets": [200 << 20, (200 << 20) + 4096]}}).encode()
with open("model.safetensors", "wb") as file:
    file.write(len(head).to_bytes(8, "little") + head + bytes(range(256)) * (200 << 12) + weight.tobytes())
PYTHON
must_mount /mnt/vram
# Where an installation has them.
export RESIDENT_LIBRARY=${RESIDENT_LIBRARY:-$(dirname "$RESIDENTFS")/core/share/libresident.so.1}
export RESIDENTFS_EMULATED_LIBRARY=${RESIDENTFS_EMULATED_LIBRARY:-$(dirname "$RESIDENTFS")/core/driver/libresidentfs-emulated.so}
export PYTHONPATH=$repository/core/share/python PYTHONDONTWRITEBYTECODE=1

# The blocks of the section, in order: $work/recipe.1, …
awk -v out="$work/recipe." '
    /^## / { recipes = $0 == "## Recipes" }
    recipes && /^```sh$/ { inside = 1; count++; next }
    /^```/ { inside = 0 }
    inside { print >(out count) }' "$repository/README.md"
names=('stream a checkpoint' 'inspect a tensor' 'scratch space' 'containers' 'share without a GPU' 'Prometheus')
is "README has as many recipes as are known here" "$(find "$work" -name 'recipe.*' | wc -l)" ${#names[@]}
for i in "${!names[@]}"; do
    bash -eu "$work/recipe.$((i + 1))" >"$work/out.$((i + 1))" 2>&1
    is "recipe: ${names[i]}" "$? $(grep -c 'rror' "$work/out.$((i + 1))")" "0 0"
done
is "the checkpoint is there" "$(sum /mnt/vram/model.safetensors)" "$(sum model.safetensors)"
like "the tensor's name and shape are shown" "$(cat "$work/out.2")" '\["layer.weight","F32",\[32,32\]\]'
like "… and its numbers" "$(cat "$work/out.2")" '^[0-9]+ +0 +0\.25 +0\.5 +0\.75$'
like "scratch space sorts" "$(head -n 1 "$work/out.3")" '^300000$'
is "a container sees what another wrote" "$(cat "$work/out.4")" "from one container"
is "a program has changed what the shell wrote, and the shell sees it" "$(cat "$work/out.5")" "HELLO from the shell"
like "node_exporter gets the metrics" "$(cat /var/lib/prometheus/node-exporter/residentfs.prom)" \
    '^residentfs_resident_bytes\{mount="vram",device="emulated:0"\} [0-9]+$'
if command -v promtool >/dev/null; then
    ok "… in Prometheus' format" sh -c 'promtool check metrics </var/lib/prometheus/node-exporter/residentfs.prom'
else
    skip "no promtool on this machine"
fi
unmount_fs

# Rootless, and in a container of one's own: as root of a user namespace it mounts by itself.
cp "$RESIDENTFS" "$(dirname "$RESIDENTFS")/core/driver/libresidentfs-emulated.so" /mnt/
mkdir -m 777 /mnt/rootless
# shellcheck disable=SC2016
got=$(as_nobody unshare --user --map-root-user --mount sh -c '
    /mnt/residentfs emulated /mnt/rootless -o emulated_memory=64MiB &&
    echo in a user namespace >/mnt/rootless/f && cat /mnt/rootless/f && umount /mnt/rootless' 2>&1)
is "rootless, in a user namespace" "$got" "in a user namespace"
umount -l /dev/fuse /var/lib /mnt
done_testing
