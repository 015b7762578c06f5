# bash completion for fccd: the options are what its own help lists.
_fccd() {
    COMPREPLY=()
    case ${COMP_WORDS[COMP_CWORD - 1]} in
    --config | --socket | --code-cache | --gpu-compiler | --plugin-dir | --cluster-key | --nodes | --log-file | --pid-file | --hold-file) compopt -o default; return ;;
    --socket-group) COMPREPLY=($(compgen -g -- "$2")); return ;;
    --gpus) COMPREPLY=($(compgen -W 'auto none cuda hip' -- "$2")); return ;;
    --gpu-sharing) COMPREPLY=($(compgen -W 'auto ipc' -- "$2")); return ;;
    --gpu-begin) COMPREPLY=($(compgen -W 'alone together' -- "$2")); return ;;
    --gpu-bind) COMPREPLY=($(compgen -W 'own shared' -- "$2")); return ;;
    --gpu-turns) COMPREPLY=($(compgen -W 'weighted free' -- "$2")); return ;;
    --transport) COMPREPLY=($(compgen -W 'auto tcp verbs' -- "$2")); return ;;
    --seccomp) COMPREPLY=($(compgen -W 'on log off' -- "$2")); return ;;
    --log-level) COMPREPLY=($(compgen -W 'error warning info debug' -- "$2")); return ;;
    --log-format) COMPREPLY=($(compgen -W 'text json' -- "$2")); return ;;
    esac
    COMPREPLY=($(compgen -W "--background --config --check-config --list-gpus --help --version $("$1" --help 2>/dev/null | grep -oE '^  --[a-z-]+')" -- "$2"))
}
complete -F _fccd fccd
