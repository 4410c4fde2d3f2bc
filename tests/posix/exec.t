#!/bin/bash
# programs and shared libraries run from the mount
# shellcheck source=../lib.sh
. "$(dirname "$0")/../lib.sh"
enter_mount

cp "$(command -v sleep)" prog
ok "a program runs" ./prog 0
cp "$(command -v bash)" shell
# shellcheck disable=SC2016 # for that shell
is "a large one" "$(./shell -c 'echo $((6 * 7))')" 42
# shellcheck disable=SC2016 # for that shell
printf '#!%s/shell\necho "script $1"\n' "$mnt" >script
chmod 755 script
is "a script whose interpreter is in the mount" "$(./script x)" "script x"
chmod 644 prog
is "without the x bit it does not" "$(./prog 0 2>/dev/null; echo $?)" 126
chmod 755 prog
head -c 100 prog >half
chmod 755 half
isnt "a program cut short does not run" "$(./half 2>/dev/null; echo $?)" 0

# The kernel keeps writers away from a program that runs, and programs from a file being written.
./prog 60 &
pid=$!
# shellcheck disable=SC2016 # evaluated by wait_for
wait_for '[ "$(readlink "/proc/$pid/exe")" = "$mnt/prog" ]' 10
expect_errno "writing to a program that runs: text busy" ETXTBSY open prog O_WRONLY
expect_errno "truncating it too" ETXTBSY truncate prog 0
works "it may be replaced" rename shell shell2 : rename prog moved
ok "… and deleted" rm moved
kill -0 $pid
is "it goes on" $? 0
kill $pid
wait $pid 2>/dev/null
cp "$(command -v sleep)" prog
exec 7>>prog
# Bash tries again as a script, so by another way.
isnt "running a file that is open for writing: text busy" \
    "$(setpriv ./prog 0 2>&1 | grep -c 'Text file busy')" 0
exec 7>&-
ok "after it is closed it runs" ./prog 0

# Loading one library instead of that of the system.
library=$(ldd "$(command -v cat)" | awk '/libc\.so/ { print $3; exit }')
if [ -n "$library" ]; then
    mkdir lib
    cp -L "$library" lib/
    like "a shared library is loaded from the mount" "$(LD_LIBRARY_PATH=$mnt/lib cat /proc/self/maps)" "r-xp .* $mnt/lib/"
else
    skip "no libc to copy"
fi
if command -v gcc >/dev/null; then
    echo 'int answer(void); int main(void) { return answer() != 42; }' >main.c
    echo 'int table[5000] = {42}; int answer(void) { return table[0]; }' >answer.c
    ok "gcc builds in the mount" gcc -shared -fPIC -o libanswer.so answer.c
    ok "… and links" gcc -o main main.c -L. -lanswer -Wl,-rpath,"$mnt"
    ok "… and it runs with its library" ./main
    echo 'int table[5000] = {43}; int answer(void) { return table[0]; }' >answer.c
    gcc -shared -fPIC -o libanswer.so answer.c
    not_ok "built anew it is the new one" ./main
else
    skip "no gcc" 4
fi

unmount_fs
done_testing
