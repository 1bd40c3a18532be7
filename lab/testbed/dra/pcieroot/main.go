// Command pcieroot prints what k8s.io/dynamic-resource-allocation/deviceattribute says about every PCI function of the given
// trees: a line each with the tree's name, the address and the root, or what the helper said instead.
package main

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"testbed/dra/tree"
)

func main() {
	for _, root := range os.Args[1:] {
		functions, err := tree.Functions(root)
		if err != nil {
			log.Fatal(err)
		}
		for _, function := range functions {
			fmt.Printf("%s\t%s\t%s\t%s\n", filepath.Base(root), function.Address, function.Root, function.Why)
		}
	}
}
