#!/bin/bash
# .resident: not listed, always reachable, not to be removed
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
only_residentfs
enter_mount

echo data >file
# shellcheck disable=SC2012 # ls is what is tested
is "ls -a does not show it" "$(ls -a | tr '\n' ' ')" ". .. file "
is "find does not" "$(find . -mindepth 1)" ./file
is "du does not" "$(du -a . | grep -c resident)" 0
is "tar does not" "$(tar cf - . | tar tf - | grep -c resident)" 0
works "it is a directory, by name" stat .resident type
for name in status budget metrics telemetry.json buffers config log flush version; do
    sees "$name is a file there" "file" stat .resident/$name type
done
ok "ls .resident lists them" test "$(cd .resident && find . -type f \( -name status -o -name budget -o -name metrics -o -name telemetry.json -o -name buffers -o -name config -o -name log -o -name flush -o -name version \) | wc -l)" -eq 9
is "the root has no link for it" "$(fsop stat . nlink)" 2
# shellcheck disable=SC2016 # for the inner shell
ok "rm -rf mnt/* mnt/.[!.]* leaves it" bash -c 'rm -rf ./* ./.[!.]* 2>/dev/null; test -n "$(cat .resident/status)" && test ! -e file'
not_ok "it cannot be removed" rm .resident/status
not_ok "nor the directory" rmdir .resident
not_ok "nor renamed" mv .resident x
not_ok "nor can a file be made in it" touch .resident/new
not_ok "nor a file be moved there" bash -c 'echo x >f; mv f .resident/f'
not_ok "nor a file take its name" mkdir .resident
not_ok "nor be renamed over it" bash -c 'mkdir d; mv -T d .resident'
works "a directory elsewhere may be called so" mkdir sub : mkdir sub/.resident : open sub/.resident/x O_CREAT,O_WRONLY 0644
# shellcheck disable=SC2012
is "and is an ordinary one" "$(ls -A sub sub/.resident | tr '\n' ' ')" "sub: .resident  sub/.resident: x "

unmount_fs
done_testing
