# shellcheck shell=bash
# tests/pythons.sh: which interpreters are installed here. To be sourced.

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
