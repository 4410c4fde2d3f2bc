# shellcheck shell=bash
# Completion of residentfs for bash. What can be chosen comes from the program itself: its --help and
# --list-devices.

# NAME=A|B or NAME=METAVAR of each option. Enums have their values behind the name.
_residentfs_options() {
    "$1" --help 2>/dev/null | sed -nE 's/^  ([a-z_]+=[^ ]+).*/\1/p'
}

_residentfs_devices() {
    # Without a driver there are none of its devices.
    "$1" --list-devices 2>/dev/null | cut -d' ' -f1 | grep '^cuda:'
    echo emulated
}

# The last of WORD's options, by commas.
_residentfs_option_words() {
    local program=$1 before='' word=$2 option name candidates=()
    if [[ $word == *,* ]]; then
        before=${word%,*},
        word=${word##*,}
    fi
    while read -r option; do
        name=${option%%=*}
        if [[ $word == "$name="* ]]; then
            candidates=()
            [[ ${option#*=} != *'|'* ]] || mapfile -t candidates < <(tr '|' '\n' <<<"${option#*=}")
            mapfile -t COMPREPLY < <(compgen -P "$before$name=" -W "${candidates[*]}" -- "${word#*=}")
            break
        fi
        candidates+=("$name=")
        mapfile -t COMPREPLY < <(compgen -P "$before" -W "${candidates[*]} ro noexec noatime" -- "$word")
    done < <(_residentfs_options "$program")
    [[ ${COMPREPLY[*]} != *= ]] || compopt -o nospace 2>/dev/null
    # Readline has parted the word at "=" and replaces what follows it only.
    if [[ $COMP_WORDBREAKS == *=* && $2 == *=* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${2%=*}="}")
    fi
}

_residentfs() {
    local program=$1 line word previous count=0 i words
    COMPREPLY=()
    # The words as blanks part them, up to the cursor.
    line=${COMP_LINE:0:COMP_POINT}
    read -ra words <<<"$line"
    word=
    if [[ $line != *' ' ]]; then
        word=${words[-1]}
        unset 'words[-1]'
    fi
    previous=${words[-1]}
    case $previous in
    -o)
        _residentfs_option_words "$program" "$word"
        return
        ;;
    --config)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        return
        ;;
    esac
    if [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "-o -f -d --config --check-config --list-devices --help --version" -- "$word")
        return
    fi
    for ((i = 1; i < ${#words[@]}; i++)); do
        case ${words[i]} in
        -o | --config) i=$((i + 1)) ;;
        -*) ;;
        *) count=$((count + 1)) ;;
        esac
    done
    if [ $count -eq 0 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_residentfs_devices "$program")" -- "$word")
        # Likewise at ":".
        [[ $word != *:* || $COMP_WORDBREAKS != *:* ]] || COMPREPLY=("${COMPREPLY[@]#"${word%:*}:"}")
    elif [ $count -eq 1 ]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -d -- "$word")
    fi
}

complete -F _residentfs residentfs
