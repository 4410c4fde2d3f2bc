# shellcheck shell=bash disable=SC2034,SC2154 # lib.sh sets what is used here, tests use what is set
# Programs that share memory, run step by step. Source it after lib.sh, and call before mounting:
# only_residentfs.
#
#   client NAME [COMMAND…]   starts a sharer (tests/helper/sharer.c), by COMMAND if there is one
#   say NAME CALLS…          has it run them; prints what they print; fails if one does
#   client_end NAME          lets it end without letting go of anything; waits for that
#   client_kill NAME         SIGKILL
#   said/refused …           the same as tests of their own

SHARER=$(dirname "$FSOP")/sharer
RAWSHARE=$(dirname "$FSOP")/rawshare
declare -A client_pid client_to client_from

sharer() {
    timeout 60 "$SHARER" "$@"
}

client() {
    local name=$1 to from
    shift
    rm -f "$work/$name.to" "$work/$name.from"
    mkfifo -m 666 "$work/$name.to" "$work/$name.from"
    # exec: the process id is that of the sharer itself.
    (exec "$@" "$SHARER" - <"$work/$name.to" >"$work/$name.from" 2>&1) &
    client_pid[$name]=$!
    exec {to}>"$work/$name.to" {from}<"$work/$name.from"
    client_to[$name]=$to
    client_from[$name]=$from
}

say() {
    local name=$1 line
    shift
    printf '%s\n' "$*" >&"${client_to[$name]}" || return 1
    while IFS= read -r -t 60 -u "${client_from[$name]}" line; do
        case $line in
        '= ok') return 0 ;;
        '= failed') return 1 ;;
        esac
        printf '%s\n' "$line"
    done
    echo "$name ended, or said nothing for 60 s"
    return 1
}

# client_gone NAME: waits for it, which has been told to end.
client_gone() {
    local to=${client_to[$1]} from=${client_from[$1]}
    wait "${client_pid[$1]}" 2>/dev/null
    exec {to}>&- {from}<&-
}

client_end() {
    printf 'exit\n' >&"${client_to[$1]}"
    client_gone "$1"
}

client_kill() {
    kill -9 "${client_pid[$1]}"
    client_gone "$1"
}

# said NAME CLIENT EXPECTED CALLS…: the client's calls succeed and print that.
said() {
    local name=$1 client=$2 expected=$3 got
    shift 3
    if got=$(say "$client" "$@") && [ "$got" = "$expected" ]; then
        pass "$name"
    else
        fail "$name" "$client: $*
saw:      ${got:0:2000}
expected: ${expected:0:2000}"
    fi
}

# refused NAME CLIENT ERRNO CALLS…: the last call fails with that, and says something about it.
refused() {
    local name=$1 client=$2 expected=$3 got last
    shift 3
    if got=$(say "$client" "$@"); then
        fail "$name" "$client: $* succeeded: ${got:0:1000}, expected $expected"
        return
    fi
    last=${got##*$'\n'}
    if [[ $last == "$expected: "?* ]]; then
        pass "$name"
    else
        fail "$name" "$client: $*
saw:      ${got:0:1000}
expected: $expected: …"
    fi
}

# shares FILE: how many programs map it.
shares() {
    fsop getxattr "$1" user.resident.shares
}

# unshared FILE: the daemon has noticed that nobody maps it any more.
unshared() {
    # shellcheck disable=SC2016
    wait_for '[ "$(shares '"'$1'"')" = 0 ]' 10
}

# Open descriptors of the daemon.
daemon_descriptors() {
    find "/proc/$daemon_pid/fd" -mindepth 1 | wc -l
}
