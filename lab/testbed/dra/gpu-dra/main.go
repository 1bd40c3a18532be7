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
	"strings"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/kubernetes/test/e2e/dra/test-driver/app"

	"testbed/dra/tree"
)

func main() {
	var (
		driver     = flag.String("driver", "gpu.example.com", "name of the driver")
		node       = flag.String("node-name", "", "name of the node whose GPUs these are")
		kubeconfig = flag.String("kubeconfig", "", "how to reach the API server")
		root       = flag.String("root", "/", "the tree whose sys/bus/pci is read")
		class      = flag.String("class", "0302", "PCI class, or its first digits, of what plays a GPU")
		plugins    = flag.String("plugins-dir", "/var/lib/kubelet/plugins", "folder of the driver's folder")
		registry   = flag.String("plugins-registry", "/var/lib/kubelet/plugins_registry", "where the kubelet looks for drivers")
		cdi        = flag.String("cdi-dir", "/var/run/cdi", "where CDI specs go")
	)
	flag.Parse()
	if err := run(*driver, *node, *kubeconfig, *root, *class, *plugins+"/"+*driver, *registry, *cdi); err != nil {
		fmt.Fprintln(os.Stderr, "gpu-dra:", err)
		os.Exit(1)
	}
}

func run(driver, node, kubeconfig, root, class, data, registry, cdi string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	devices, err := gpus(root, class)
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

// gpus are the devices: index and PCI address under the driver's domain, the root under the standard name.
func gpus(root, class string) ([]resourceapi.Device, error) {
	functions, err := tree.Functions(root)
	if err != nil {
		return nil, err
	}
	var devices []resourceapi.Device
	for _, function := range functions {
		if !strings.HasPrefix(function.Class, class) || function.Root == "" {
			continue
		}
		index := int64(len(devices))
		devices = append(devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", index),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"index":    {IntValue: &index},
				"pciBusID": {StringValue: &function.Address},
				deviceattribute.StandardDeviceAttributePCIeRoot: {StringValue: &function.Root},
			},
		})
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("no PCI function of class %s… below %s", class, root)
	}
	return devices, nil
}
