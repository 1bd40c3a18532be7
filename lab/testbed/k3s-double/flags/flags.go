// Package flags gives a component its command line as k3s does.
package flags

import "strings"

// Merge combines the program's own arguments (`--name=value`, each name once) with those of the user (k3s'
// `kube-apiserver-arg` and its companions). `name=value` takes the place of the program's own value, `name+=value` is put
// behind it and `name-=value` before it; what a user gives several times is kept in the given order. The component sees a
// repeated flag and takes it as one list: feature gates add up, and of a controller named twice the first entry counts.
func Merge(own, given []string) []string {
	var names []string
	values := map[string][]string{}
	replaced := map[string]bool{}
	for _, argument := range own {
		name, value, _ := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
		names = append(names, name)
		values[name] = []string{value}
	}
	for _, argument := range given {
		key, value, found := strings.Cut(strings.TrimPrefix(argument, "--"), "=")
		if !found {
			value = "true"
		}
		name := strings.TrimRight(key, "+-")
		if _, known := values[name]; !known {
			names = append(names, name)
		}
		switch {
		case strings.HasSuffix(key, "+"):
			values[name] = append(values[name], value)
		case strings.HasSuffix(key, "-"):
			values[name] = append([]string{value}, values[name]...)
		case replaced[name]:
			values[name] = append(values[name], value)
		default:
			values[name] = []string{value}
		}
		replaced[name] = true
	}
	var made []string
	for _, name := range names {
		for _, value := range values[name] {
			made = append(made, "--"+name+"="+value)
		}
	}
	return made
}
