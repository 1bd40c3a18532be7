// Package tree asks the helper of Kubernetes' own DRA drivers for PCIe roots, on this machine or on a tree laid out elsewhere.
package tree

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"k8s.io/dynamic-resource-allocation/deviceattribute"
)

// Function is a PCI function. Root is empty where the helper has no answer, and Why says what it said.
type Function struct {
	Address, Class, Root, Why string
}

// Functions are all PCI functions below root, in order of their addresses. The helper reads /sys and nothing else, so that
// a thread of this process changes its root for it; another root than / needs CAP_SYS_CHROOT.
func Functions(root string) (found []Function, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if filepath.Clean(root) != "/" {
			runtime.LockOSThread() // never unlocked: the thread ends with this function, and its root with it
			if err = syscall.Unshare(syscall.CLONE_FS); err != nil {
				return
			}
			if err = syscall.Chroot(root); err != nil {
				err = fmt.Errorf("chroot to %s: %w", root, err)
				return
			}
			if err = syscall.Chdir("/"); err != nil {
				return
			}
		}
		found, err = here()
	}()
	<-done
	return found, err
}

func here() ([]Function, error) {
	const folder = "/sys/bus/pci/devices"
	entries, err := os.ReadDir(folder)
	if os.IsNotExist(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	var found []Function
	for _, entry := range entries {
		function := Function{Address: entry.Name()}
		if text, err := os.ReadFile(filepath.Join(folder, entry.Name(), "class")); err == nil {
			function.Class = strings.TrimPrefix(strings.TrimSpace(string(text)), "0x")
		}
		if attribute, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(entry.Name()); err != nil {
			function.Why = err.Error()
		} else {
			function.Root = *attribute.Value.StringValue
		}
		found = append(found, function)
	}
	slices.SortFunc(found, func(a, b Function) int { return strings.Compare(a.Address, b.Address) })
	return found, nil
}
