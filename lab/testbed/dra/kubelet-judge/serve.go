package main

import (
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// serve is a node without containers: pods that the scheduler binds to it get their claims prepared by the kubelet's code and
// are then called running; deleted ones are unprepared and leave. It prints a line for each.
func (j *judge) serve() error {
	ctx, stop := signal.NotifyContext(j.ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	j.ctx = ctx
	k, err := j.startKubelet("state")
	if err != nil {
		return err
	}
	j.kubelet = k
	defer k.end()
	running, said := map[types.UID]bool{}, map[types.UID]string{}
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		pods, err := j.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + j.node})
		if err != nil {
			continue // the API server is away; what runs goes on
		}
		for _, pod := range pods.Items {
			var line string
			switch {
			case pod.DeletionTimestamp != nil:
				line = j.leave(&pod)
			case !running[pod.UID]:
				line, running[pod.UID] = j.enter(&pod)
			}
			if line != "" && line != said[pod.UID] {
				fmt.Printf("%s %s\n", pod.Name, line)
				said[pod.UID] = line
			}
		}
	}
	return nil
}

func (j *judge) enter(pod *v1.Pod) (line string, done bool) {
	j.kubelet.admit(pod)
	if err := j.kubelet.manager.PrepareResources(j.ctx, pod); err != nil {
		return "refused: " + err.Error(), false
	}
	info, err := j.kubelet.manager.GetResources(pod, &pod.Spec.Containers[0])
	if err != nil {
		return "refused: " + err.Error(), false
	}
	var names []string
	for _, device := range info.CDIDevices {
		names = append(names, device.Name)
	}
	pod.Status.Phase = v1.PodRunning
	pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue})
	if _, err := j.client.CoreV1().Pods(pod.Namespace).UpdateStatus(j.ctx, pod, metav1.UpdateOptions{}); err != nil {
		return "", false
	}
	return "prepared: " + strings.Join(names, " "), true
}

func (j *judge) leave(pod *v1.Pod) string {
	if err := j.kubelet.manager.UnprepareResources(j.ctx, pod); err != nil {
		return "kept: " + err.Error()
	}
	j.kubelet.forget(pod)
	now := int64(0)
	err := j.client.CoreV1().Pods(pod.Namespace).Delete(j.ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return "kept: " + err.Error()
	}
	return "unprepared"
}
