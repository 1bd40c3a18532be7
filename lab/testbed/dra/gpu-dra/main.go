// Command gpu-dra is a double of a GPU's DRA driver: Kubernetes' own test driver with devices for the PCI functions of one
// class. Where they are is real: each has the PCIe root that Kubernetes' helper reads in sysfs. What they are is not: a
// container that gets one gets environment variables and no GPU.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/kubernetes/test/e2e/dra/test-driver/app"
)

const (
	driver    = "gpu.example.com"
	data      = "/var/lib/kubelet/plugins/" + driver
	registry  = "/var/lib/kubelet/plugins_registry"
	cdi       = "/var/run/cdi"
	functions = "/sys/bus/pci/devices"
)

func main() {
	node := flag.String("node-name", "", "name of the node whose GPUs these are")
	kubeconfig := flag.String("kubeconfig", "", "how to reach the API server")
	class := flag.String("class", "0302", "PCI class, or its first digits, of what plays a GPU")
	flag.Parse()
	if err := run(*node, *kubeconfig, *class); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-dra:", err)
		os.Exit(1)
	}
}

func run(node, kubeconfig, class string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	devices, err := gpus(class)
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	for _, folder := range []string{data, registry, cdi} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	pools := map[string]resourceslice.Pool{node: {Slices: []resourceslice.Slice{{Devices: devices}}}}
	plugin, err := app.StartPlugin(ctx, cdi, driver, client, node,
		app.FileOperations{DriverResources: &resourceslice.DriverResources{Pools: pools}},
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(registry))
	if err != nil {
		return err
	}
	fmt.Printf("%d GPUs of %s offered\n", len(devices), node)
	<-ctx.Done()
	plugin.Stop()
	return nil
}

// gpus are the devices, one at each root, in order of their addresses: index and PCI address under the driver's domain, the root, as the helper
// of Kubernetes' own drivers reads it, under the standard name.
func gpus(class string) ([]resourceapi.Device, error) {
	entries, err := os.ReadDir(functions)
	if err != nil {
		return nil, err
	}
	var devices []resourceapi.Device
	taken := map[string]bool{}
	for _, entry := range entries {
		address, index := entry.Name(), int64(len(devices))
		text, err := os.ReadFile(filepath.Join(functions, address, "class"))
		if err != nil || !strings.HasPrefix(strings.TrimPrefix(string(text), "0x"), class) {
			continue
		}
		root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(address)
		if err != nil || taken[*root.Value.StringValue] {
			continue
		}
		taken[*root.Value.StringValue] = true
		devices = append(devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", index),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"index":    {IntValue: &index},
				"pciBusID": {StringValue: &address},
				deviceattribute.StandardDeviceAttributePCIeRoot: root.Value,
			},
		})
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("no PCI function of class %s…", class)
	}
	return devices, nil
}
