# bash completion for fccctl: verbs and options are what its own help lists.
_fccctl() {
    local verb= word i skip=
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
    case ${COMP_WORDS[COMP_CWORD - 1]} in
    --socket | --sockets | --chrome | --svg | --from) compopt -o default; return ;;
    --device) COMPREPLY=($(compgen -W 'cpu gpu cuda hip' -- "$2")); return ;;
    --dtype) COMPREPLY=($(compgen -W 'f32 f16 bf16' -- "$2")); return ;;
    --route) COMPREPLY=($(compgen -W 'rule flat hierarchical' -- "$2")); return ;;
    --schedule) COMPREPLY=($(compgen -W 'fused sequential auto both routes' -- "$2")); return ;;
    esac
    if [[ -z $verb || $verb == help ]]; then
        COMPREPLY=($(compgen -W "$("$1" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z]*\) .*/\1/p') help --socket --json --help --version" -- "$2"))
    elif [[ $2 == -* ]]; then
        COMPREPLY=($(compgen -W "$("$1" "$verb" --help 2>/dev/null | grep -oE '^  (-[a-z], )?--?[a-z-]+' | tr -d ' ,')" -- "$2"))
    elif [[ $verb == plan || $verb == bench ]]; then
        COMPREPLY=($(compgen -W 'gemv_all_reduce gemm_all_to_all embedding_all_to_all noop' -- "$2"))
    fi
}
complete -F _fccctl fccctl
