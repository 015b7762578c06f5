# bash completion for fccctl: verbs and options are what its own help lists, and an option's values what it says are allowed.
_fccctl() {
    local verb= word i skip= values=
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        if [[ $skip ]]; then
            skip=
        elif [[ $word == --socket ]]; then
            skip=1
        elif [[ $word != -* ]]; then
            verb=$word
            break
        fi
    done
    word=${COMP_WORDS[COMP_CWORD - 1]}
    case $word in
    --socket | --sockets | --chrome | --svg | --timeline | --from | --cache | --fit) compopt -o default; return ;;
    esac
    if [[ $verb && $word == --* ]]; then # with --help nothing is done, whatever the option is
        values=$("$1" "$verb" "$word" '?' --help 2>&1 | sed -nE 's/.*: "\?": allowed are ([a-z0-9]+(, [a-z0-9]+)*)$/\1/p')
    fi
    if [[ $values ]]; then
        COMPREPLY=($(compgen -W "${values//,/}" -- "$2"))
    elif [[ -z $verb || $verb == help ]]; then
        COMPREPLY=($(compgen -W "$("$1" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p') help --socket --json --help --version" -- "$2"))
    elif [[ $2 == -* ]]; then
        COMPREPLY=($(compgen -W "$("$1" "$verb" --help 2>/dev/null | grep -oE '^  (-[a-zA-Z], )?--?[a-zA-Z-]+' | tr -d ' ,')" -- "$2"))
    elif [[ $verb == program || $verb == tune || $verb == report || $verb == simulate ]]; then
        compopt -o default
    elif [[ $verb == plan || $verb == bench ]]; then
        COMPREPLY=($(compgen -W "$("$1" "$verb" --help 2>/dev/null | sed -n '/^Operators: /,/^$/{s/^Operators: //;p;}' | tr -d ,)" -- "$2"))
    fi
}
complete -F _fccctl fccctl
