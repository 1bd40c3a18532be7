package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Config holds the k3s options the double honours. Options that only the real k3s honours are accepted and logged; any other
// one is refused, as k3s refuses unknown flags.
type Config struct {
	ClusterCIDR       string `json:"cluster-cidr,omitempty"`
	ServiceCIDR       string `json:"service-cidr,omitempty"`
	ClusterDNS        string `json:"cluster-dns,omitempty"`
	ClusterDomain     string `json:"cluster-domain,omitempty"`
	FlannelBackend    string `json:"flannel-backend,omitempty"`
	NodeIP            string `json:"node-ip,omitempty"`
	NodeName          string `json:"node-name,omitempty"`
	NodeLabel         list   `json:"node-label,omitempty"`
	NodeTaint         list   `json:"node-taint,omitempty"`
	KubeletArg        list   `json:"kubelet-arg,omitempty"`
	APIServerArg      list   `json:"kube-apiserver-arg,omitempty"`
	ControllerArg     list   `json:"kube-controller-manager-arg,omitempty"`
	SchedulerArg      list   `json:"kube-scheduler-arg,omitempty"`
	ProxyArg          list   `json:"kube-proxy-arg,omitempty"`
	TLSSAN            list   `json:"tls-san,omitempty"`
	Server            string `json:"server,omitempty"`
	Token             string `json:"token,omitempty"`
	TokenFile         string `json:"token-file,omitempty"`
	DataDir           string `json:"data-dir,omitempty"`
	KubeconfigMode    string `json:"write-kubeconfig-mode,omitempty"`
	SecretsEncryption bool   `json:"secrets-encryption,omitempty"`
	ProtectKernel     bool   `json:"protect-kernel-defaults,omitempty"`
	SELinux           bool   `json:"selinux,omitempty"`
	PauseImage        string `json:"pause-image,omitempty"`
	Disable           list   `json:"disable,omitempty"`
	BindAddress       string `json:"bind-address,omitempty"`
	WriteKubeconfig   string `json:"write-kubeconfig,omitempty"`
}

// withoutEffect are options of k3s for parts that the double does not have.
var withoutEffect = strings.Fields(`airgap-extra-registry alsologtostderr cluster-init debug
	default-local-storage-path default-runtime disable-apiserver-lb disable-cloud-controller
	disable-default-registry-endpoint disable-helm-controller disable-kube-proxy disable-network-policy
	egress-selector-mode embedded-registry etcd-arg etcd-disable-snapshots etcd-expose-metrics etcd-snapshot-retention
	etcd-snapshot-schedule-cron flannel-external-ip flannel-iface helm-job-image image-service-endpoint lb-server-port log
	node-external-ip nonroot-devices prefer-bundled-bin private-registry secrets-encryption-provider
	service-node-port-range servicelb-namespace snapshotter supervisor-metrics system-default-registry tls-san-security
	v vmodule write-kubeconfig-group`)

// list accepts one string or a list of strings, as k3s does.
type list []string

func (l *list) UnmarshalJSON(data []byte) error {
	var many []string
	if err := yaml.Unmarshal(data, &many); err == nil {
		*l = many
		return nil
	}
	var one string
	if err := yaml.Unmarshal(data, &one); err != nil {
		return err
	}
	*l = strings.Split(one, ",")
	return nil
}

func readConfig() (*Config, error) {
	config := &Config{ClusterCIDR: "10.42.0.0/16", ServiceCIDR: "10.43.0.0/16", FlannelBackend: "vxlan",
		ClusterDomain: "cluster.local", PauseImage: "rancher/mirrored-pause:3.6", DataDir: "/var/lib/rancher/k3s",
		KubeconfigMode: "0600", BindAddress: "0.0.0.0", WriteKubeconfig: "/etc/rancher/k3s/k3s.yaml"}
	first := "/etc/rancher/k3s/config.yaml"
	files := []string{first}
	dropins, _ := filepath.Glob(first + ".d/*.yaml")
	slices.Sort(dropins)
	for _, file := range append(files, dropins...) {
		data, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return nil, err
		}
		if err := decode(data, config); err != nil {
			return nil, fmt.Errorf("failed to read %s: %w", file, err)
		}
	}
	if err := config.complete(); err != nil {
		return nil, err
	}
	return config, nil
}

func decode(data []byte, config *Config) error {
	given := map[string]any{}
	if err := yaml.Unmarshal(data, &given); err != nil {
		return err
	}
	for _, key := range withoutEffect {
		if value, ok := given[key]; ok {
			fmt.Fprintf(os.Stderr, "level=warning msg=\"option %s: %v has no effect in the double\"\n", key, value)
			delete(given, key)
		}
	}
	honoured, err := yaml.Marshal(given)
	if err != nil {
		return err
	}
	return yaml.UnmarshalStrict(honoured, config)
}

func (c *Config) complete() error {
	if c.NodeName == "" {
		name, err := os.Hostname()
		if err != nil {
			return err
		}
		c.NodeName = strings.ToLower(name)
	}
	if c.NodeIP == "" {
		return errors.New("the double takes no address from the default route: set node-ip")
	}
	if c.TokenFile != "" {
		data, err := os.ReadFile(c.TokenFile)
		if err != nil {
			return err
		}
		c.Token = strings.TrimSpace(string(data))
	}
	_, services, err := net.ParseCIDR(c.ServiceCIDR)
	if err != nil {
		return fmt.Errorf("service-cidr: %w", err)
	}
	if _, _, err := net.ParseCIDR(c.ClusterCIDR); err != nil {
		return fmt.Errorf("cluster-cidr: %w", err)
	}
	if c.ClusterDNS == "" {
		c.ClusterDNS = addressAt(services, 10)
	}
	return nil
}

// addressAt is the n-th address of an IPv4 network.
func addressAt(network *net.IPNet, n byte) string {
	ip := slices.Clone(network.IP.To4())
	ip[3] += n
	return ip.String()
}
