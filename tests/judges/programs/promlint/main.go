// Command promlint reads metrics in Prometheus' text format and prints what client_golang's linter finds in them; it
// exits with 1 where that is anything.
package main

import (
	"fmt"
	"os"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func main() {
	problems, err := promlint.New(os.Stdin).Lint()
	if err != nil {
		fmt.Fprintln(os.Stderr, "not Prometheus' text format:", err)
		os.Exit(2)
	}
	for _, problem := range problems {
		fmt.Println(problem.Metric+":", problem.Text)
	}
	if len(problems) > 0 {
		os.Exit(1)
	}
}
