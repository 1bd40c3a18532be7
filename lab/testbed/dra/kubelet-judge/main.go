// Command kubelet-judge drives a DRA driver through the kubelet's own code: its plugin watcher, its DRA plugin manager and its
// DRA manager with the state file. The API server is a real one; containers are not started. What the driver hands out is
// read with containerd's CDI library. It starts the driver itself (the words after `--`), because restarts are among the cases,
// and prints a table of cases.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// judge holds what the cases share.
type judge struct {
	ctx                 context.Context
	client              kubernetes.Interface
	base, cdi           string
	driver, node, class string
	state               []string
	rounds              int
	daemon              *daemon
	kubelet             *kubelet
	offered             []offer
	health              bool
}

func (j *judge) folder(name string) string { return filepath.Join(j.base, name) }

// verdict is an error for what the driver must not do.
type verdict struct {
	name, seen string
	seconds    float64
	err        error
}

func main() {
	klog.InitFlags(nil)
	flag.Set("logtostderr", "false")
	flag.Set("alsologtostderr", "false")
	var (
		kubeconfig = flag.String("kubeconfig", "", "how to reach the API server, as an administrator")
		base       = flag.String("base", "", "folder with plugins, plugins_registry and the kubelet's state")
		cdi        = flag.String("cdi-dir", "", "where the driver writes CDI specs")
		driver     = flag.String("driver", "rdma.gpufabric.io", "name of the driver")
		class      = flag.String("class", "rail.rdma.gpufabric.io", "device class of the claims; it is made")
		node       = flag.String("node-name", "node1", "name of the node; the Node object exists")
		gates      = flag.String("feature-gates", "", "the kubelet's feature gates")
		state      = flag.String("port-state", "", "sysfs files of the ports' states, all below the first HCA; the judge writes them")
		rounds     = flag.Int("rounds", 5, "restarts of the driver and of the kubelet with prepared claims")
		serve      = flag.Bool("serve", false, "try nothing: be a node that prepares and unprepares what the scheduler sends it")
		only       = flag.String("only", "", "run the cases whose names contain this")
	)
	flag.Parse()
	if *gates != "" {
		if err := utilfeature.DefaultMutableFeatureGate.Set(*gates); err != nil {
			exit(err)
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		exit(err)
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		exit(err)
	}
	j := &judge{ctx: context.Background(), client: client, base: *base, cdi: *cdi, driver: *driver, node: *node, class: *class,
		rounds: *rounds, daemon: &daemon{words: flag.Args(), log: filepath.Join(*base, "driver.log")},
		health: strings.Contains(*gates, "ResourceHealthStatus=true")}
	if *state != "" {
		j.state = strings.Split(*state, ",")
	}
	if *serve {
		if err := j.serve(); err != nil {
			exit(err)
		}
		return
	}
	defer j.daemon.kill()
	verdicts := j.try(*only)
	j.daemon.kill()
	if !show(verdicts) {
		os.Exit(1)
	}
}

func exit(err error) {
	fmt.Fprintln(os.Stderr, "kubelet-judge:", err)
	os.Exit(2)
}

// try runs the cases in their order: later ones find what earlier ones left.
func (j *judge) try(only string) []verdict {
	var verdicts []verdict
	for _, c := range j.cases() {
		if only != "" && !c.always && !strings.Contains(c.name, only) {
			continue
		}
		start := time.Now()
		seen, err := c.run()
		verdicts = append(verdicts, verdict{c.name, seen, time.Since(start).Seconds(), err})
		if err != nil && c.always {
			break // nothing further can be tried
		}
	}
	return verdicts
}

func show(verdicts []verdict) bool {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "CASE\tVERDICT\tSECONDS\tSEEN")
	for _, v := range verdicts {
		word, seen := "ok", v.seen
		if v.err != nil {
			word, seen = "FAILED", v.err.Error()
		}
		fmt.Fprintf(table, "%s\t%s\t%.2f\t%s\n", v.name, word, v.seconds, strings.ReplaceAll(seen, "\n", " "))
	}
	table.Flush()
	return len(verdicts) > 0 && !slices.ContainsFunc(verdicts, func(v verdict) bool { return v.err != nil })
}

// within waits for a condition; the error is the last one.
func within(limit time.Duration, try func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := try()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
