# What a runtime of containers does, in namespaces that are new: root, cache, user, then the command.
set -e
root=$1 cache=$2 user=$3
shift 3
ip link set lo up
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$cache" "$root/cache"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t tmpfs -o mode=755,size=64k tmpfs "$root/dev"
for device in null zero full random urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -o remount,ro "$root/dev"
exec chroot "$root" setpriv --reuid "$user" --regid 0 --clear-groups --bounding-set=-all --no-new-privs \
    env -i --chdir=/cache "$@"
