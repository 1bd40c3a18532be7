# shellcheck shell=bash
# tests/stages.sh: how scripts tell what a stage took and how it ended. To be sourced.

elapsed() { # elapsed SECONDS
	printf '%3d min %02d s' $(($1 / 60)) $(($1 % 60))
}

ended() { # ended CODE
	[[ $1 == 0 ]] && echo ok || echo "FAILED ($1)"
}

stage_line() { # stage_line LABEL SECONDS [CODE]
	printf '  %-52s %s%s\n' "$1" "$(elapsed "$2")" "${3:+  $(ended "$3")}"
}
