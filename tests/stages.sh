# shellcheck shell=bash
# tests/stages.sh: runs stages, prints their times and results, and finds interpreters. To be sourced.
declare -a report=()
failed=0 unverified=0

elapsed() { # elapsed SECONDS
	printf '%3d min %02d s' $(($1 / 60)) $(($1 % 60))
}

ended() { # ended CODE
	[[ $1 == 0 ]] && echo ok || echo "FAILED ($1)"
}

stage_line() { # stage_line LABEL SECONDS [CODE]
	printf '  %-52s %s%s\n' "$1" "$(elapsed "$2")" "${3:+  $(ended "$3")}"
}

entry() { # entry LABEL SECONDS CODE
	report+=("$(stage_line "$1" "$2" "$3")")
	[[ $3 == 0 ]] || failed=$((failed + 1))
	return "$3"
}

not_verified() { # not_verified LABEL REASON
	echo "::: $1: not verified, $2"
	report+=("$(printf '  %-52s not verified: %s' "$1" "$2")")
	unverified=$((unverified + 1))
}

stage() { # stage LABEL COMMAND...: 3 says that the command could not be tried here
	local label=$1 start=$SECONDS code
	shift
	echo "::: $label"
	"$@"
	code=$?
	if [[ $code == 3 ]]; then
		not_verified "$label" "see above"
		return 0
	fi
	entry "$label" "$((SECONDS - start))" "$code"
}

stage_within() { # stage_within MINUTES LEAST LABEL COMMAND...: in what is left of the MINUTES since the start
	local left=$(($1 * 60 - SECONDS)) least=$2 label=$3 start=$SECONDS code
	shift 3
	if ((left < least * 60)); then
		not_verified "$label" "$((left / 60)) minutes are left, $least at least are needed"
		return 0
	fi
	echo "::: $label"
	timeout --kill-after=30 "$left" "$@"
	code=$?
	case $code in
	3) not_verified "$label" "see above" ;;
	124 | 137) not_verified "$label" "not done within the $((left / 60)) minutes that were left" ;;
	*) entry "$label" "$((SECONDS - start))" "$code" ;;
	esac
}

# make test has parallel stages: each gets its line in the table.
test_stages() {
	local results=$PWD/.cache/test-stages.tsv label seconds code ended
	rm -f "$results"
	echo "::: make test"
	RESULTS=$results make test
	ended=$?
	while IFS=$'\t' read -r label seconds code; do
		entry "make test: $label" "$seconds" "$code"
	done <"$results"
	[[ $ended == 0 || $failed != 0 ]] || entry "make test" 0 "$ended"
	return "$ended"
}

stages_report() { # stages_report NAME: the table and the counts; fails where a stage failed
	printf '\nStages of %s:\n' "$1"
	printf '%s\n' "${report[@]}"
	stage_line total "$SECONDS"
	printf '\n%d passed, %d failed, %d not verified\n' $((${#report[@]} - failed - unverified)) "$failed" "$unverified"
	[[ $failed == 0 ]]
}

python_of() { # python_of 3.12 [MODULE]: the path of that interpreter, if one is installed and has this module
	local candidate
	for candidate in /usr/bin/python"$1" "$HOME"/.pyenv/versions/"$1".*/bin/python"$1" "$(command -v "python$1" || true)"; do
		if [[ -x $candidate ]] && "$candidate" -c "import sys${2:+, $2}; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
			echo "$candidate"
			return
		fi
	done
	return 1
}
