package flags

import (
	"slices"
	"testing"
)

func TestMerge(t *testing.T) {
	own := []string{"--secure-port=0", "--feature-gates=A=false", "--controllers=*,-one"}
	for name, row := range map[string]struct{ given, want []string }{
		"nothing given": {nil, own},
		"a value takes the place of ours": {
			[]string{"feature-gates=B=true"},
			[]string{"--secure-port=0", "--feature-gates=B=true", "--controllers=*,-one"}},
		"behind ours": {
			[]string{"feature-gates+=B=true"},
			[]string{"--secure-port=0", "--feature-gates=A=false", "--feature-gates=B=true", "--controllers=*,-one"}},
		"before ours": {
			[]string{"controllers-=one"},
			[]string{"--secure-port=0", "--feature-gates=A=false", "--controllers=one", "--controllers=*,-one"}},
		"several of one name keep their order": {
			[]string{"feature-gates=B=true", "feature-gates=C=true"},
			[]string{"--secure-port=0", "--feature-gates=B=true", "--feature-gates=C=true", "--controllers=*,-one"}},
		"a value after an added one is added too": {
			[]string{"feature-gates+=B=true", "feature-gates=C=true"},
			[]string{"--secure-port=0", "--feature-gates=A=false", "--feature-gates=B=true", "--feature-gates=C=true",
				"--controllers=*,-one"}},
		"a new name, a switch without a value, hyphens of the user's": {
			[]string{"--v=4", "profiling"},
			[]string{"--secure-port=0", "--feature-gates=A=false", "--controllers=*,-one", "--v=4", "--profiling=true"}},
	} {
		if got := Merge(own, row.given); !slices.Equal(got, row.want) {
			t.Errorf("%s:\n got  %v\n want %v", name, got, row.want)
		}
	}
}
