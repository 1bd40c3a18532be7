# shellcheck shell=bash
# To be sourced by a script that plants faults. It stands in a copy of the checkout then, whose faults harm nobody:
# gates_in NAME makes the copy in .cache/NAME and enters it; gate sees a fault noticed and takes it back.
checkout=$PWD
passed=0
failed=0

gates_in() { # gates_in NAME
	local copy=$checkout/.cache/$1 site original entry tool name
	rm -rf "$copy"
	git clone --quiet --no-hardlinks . "$copy"
	git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
		[[ -e $file ]] && printf '%s\0' "$file"
	done | tar --create --null --files-from=- | tar --extract --directory="$copy"
	cd "$copy" || exit
	git add -A
	git -c user.name=gates -c user.email=gates@example.invalid commit --quiet --allow-empty -m "what is tested"

	# A virtual environment of the same tools that sees the copy instead of the checkout.
	python3 -m venv --without-pip .venv
	site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	original=$("$checkout/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	for entry in "$original"/*; do
		[[ $(basename "$entry") == ansible_collections ]] || ln -s "$entry" "$site/"
	done
	mkdir -p "$site/ansible_collections/gpufabric"
	for entry in "$original"/ansible_collections/*; do
		[[ $(basename "$entry") == gpufabric ]] || ln -s "$entry" "$site/ansible_collections/"
	done
	lab/link-collection .venv
	for tool in "$checkout"/.venv/bin/*; do # console scripts start the interpreter that their first line names
		name=$(basename "$tool")
		[[ -d $tool || -e .venv/bin/$name ]] || sed "1s|^#!.*|#!$copy/.venv/bin/python|" "$tool" >".venv/bin/$name"
		chmod +x ".venv/bin/$name" 2>/dev/null || true
	done
	touch .venv/.ready
	mkdir -p .cache
}

gate() { # gate LABEL PATTERN COMMAND...: the command must fail, and its output must name the fault
	local label=$1 pattern=$2 code=0 output
	shift 2
	output=$("$@" 2>&1) || code=$?
	git checkout --quiet . && git clean --quiet --force
	if [[ $code != 0 ]] && grep -qE -- "$pattern" <<<"$output"; then
		echo "gate holds: $label"
		passed=$((passed + 1))
	else
		printf 'GATE OPEN: %s (exit code %s, wanted a failure that matches %s)\n%s\n' "$label" "$code" "$pattern" \
			"$(tail -n 15 <<<"$output")" >&2
		failed=$((failed + 1))
	fi
}

gates_done() {
	echo "$passed passed, $failed failed"
	[[ $failed == 0 ]]
}
