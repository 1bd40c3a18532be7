package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	draplugin "k8s.io/kubernetes/pkg/kubelet/cm/dra/plugin"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

// daemon is the driver under trial, a process.
type daemon struct {
	words   []string
	log     string
	command *exec.Cmd
	ended   chan struct{}
}

func (d *daemon) start() error {
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	d.command = exec.Command(d.words[0], d.words[1:]...)
	d.command.Stdout, d.command.Stderr = log, log
	if err := d.command.Start(); err != nil {
		return err
	}
	d.ended = make(chan struct{})
	go func(command *exec.Cmd, ended chan struct{}) {
		command.Wait()
		close(ended)
	}(d.command, d.ended)
	return nil
}

func (d *daemon) kill() { d.end(syscall.SIGKILL) }

// end sends a signal and waits until the process is gone.
func (d *daemon) end(number syscall.Signal) error {
	if d.command == nil {
		return nil
	}
	d.command.Process.Signal(number)
	select {
	case <-d.ended:
		d.command = nil
		return nil
	case <-time.After(20 * time.Second):
		d.command.Process.Signal(syscall.SIGABRT) // Python's faulthandler writes what each thread does
		time.Sleep(time.Second)
		d.command.Process.Kill()
		<-d.ended
		d.command = nil
		return fmt.Errorf("the driver did not end within 20 s of %v", number)
	}
}

// kubelet is the part of a kubelet that speaks to DRA drivers. A second one over the same folder is that kubelet restarted.
type kubelet struct {
	manager *dra.Manager
	cancel  context.CancelFunc
	stop    chan struct{}
	mutex   sync.Mutex
	pods    map[string]*v1.Pod
}

func (j *judge) startKubelet(state string) (*kubelet, error) {
	if err := os.MkdirAll(j.folder(state), 0o700); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(j.ctx)
	manager, err := dra.NewManager(klog.FromContext(ctx), j.client, j.folder(state))
	if err != nil {
		cancel()
		return nil, err
	}
	k := &kubelet{manager: manager, cancel: cancel, stop: make(chan struct{}), pods: map[string]*v1.Pod{}}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	getNode := func() (*v1.Node, error) { return j.client.CoreV1().Nodes().Get(ctx, j.node, metav1.GetOptions{}) }
	if err := manager.Start(ctx, k.active, getNode, ready); err != nil {
		cancel()
		return nil, err
	}
	plugins := pluginmanager.NewPluginManager(j.folder("plugins_registry"), record.NewFakeRecorder(1000))
	plugins.AddHandler(registration.DRAPlugin, manager.GetWatcherHandler())
	go plugins.Run(ctx, ready, k.stop)
	return k, nil
}

func (k *kubelet) active() []*v1.Pod {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	var pods []*v1.Pod
	for _, pod := range k.pods {
		pods = append(pods, pod)
	}
	return pods
}

func (k *kubelet) admit(pod *v1.Pod) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	k.pods[string(pod.UID)] = pod
}

func (k *kubelet) forget(pod *v1.Pod) {
	k.mutex.Lock()
	defer k.mutex.Unlock()
	delete(k.pods, string(pod.UID))
}

func (k *kubelet) drivers() *draplugin.DRAPluginManager {
	return k.manager.GetWatcherHandler().(*draplugin.DRAPluginManager)
}

func (k *kubelet) plugin(driver string) (*draplugin.DRAPlugin, error) {
	return k.drivers().GetPlugin(driver)
}

func (k *kubelet) end() {
	close(k.stop)
	k.drivers().Stop()
	k.cancel()
}

// restartKubelet is a kubelet that ends and comes back with its state file and its pods.
func (j *judge) restartKubelet() error {
	pods := j.kubelet.active()
	j.kubelet.end()
	k, err := j.startKubelet("state")
	if err != nil {
		return err
	}
	for _, pod := range pods {
		k.admit(pod)
	}
	j.kubelet = k
	return nil
}

// registered waits until the kubelet knows the driver.
func (j *judge) registered(limit time.Duration) error {
	return within(limit, func() error { _, err := j.kubelet.plugin(j.driver); return err })
}
