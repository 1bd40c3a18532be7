package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

const namespace = "default"

// offer is a device of a slice, and whose HCA it is a part of.
type offer struct {
	pool, name, hca string
	shared          bool
	capacity        map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
}

// slices reads what the driver offers on this node. A pool whose newest generation is not complete has no devices, as for the
// scheduler.
func (j *judge) slices() ([]offer, error) {
	selector := fmt.Sprintf("%s=%s,%s=%s", resourceapi.ResourceSliceSelectorNodeName, j.node,
		resourceapi.ResourceSliceSelectorDriver, j.driver)
	list, err := j.client.ResourceV1().ResourceSlices().List(j.ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, err
	}
	newest := map[string]int64{}
	for _, slice := range list.Items {
		newest[slice.Spec.Pool.Name] = max(newest[slice.Spec.Pool.Name], slice.Spec.Pool.Generation)
	}
	var found []offer
	have, want := map[string]int64{}, map[string]int64{}
	for _, slice := range list.Items {
		pool := slice.Spec.Pool
		if pool.Generation != newest[pool.Name] {
			continue
		}
		have[pool.Name]++
		want[pool.Name] = pool.ResourceSliceCount
		for _, device := range slice.Spec.Devices {
			shared := device.AllowMultipleAllocations != nil && *device.AllowMultipleAllocations
			hca, _, _ := strings.Cut(device.Name, "-u")
			if name := device.Attributes["name"].StringValue; name != nil {
				hca = *name
			}
			found = append(found, offer{pool.Name, device.Name, hca, shared, device.Capacity})
		}
	}
	for pool := range want {
		if have[pool] != want[pool] {
			return nil, fmt.Errorf("pool %s: %d of %d slices of generation %d", pool, have[pool], want[pool], newest[pool])
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no device is offered")
	}
	return found, nil
}

// two are two ways to one HCA: the shared device twice, or two of its units.
func (j *judge) two() (first, second offer, err error) {
	for _, one := range j.offered {
		if one.shared {
			return one, one, nil
		}
		for _, other := range j.offered {
			if other.hca == one.hca && other.name != one.name {
				return one, other, nil
			}
		}
	}
	return first, second, errors.New("no HCA is offered twice")
}

func (j *judge) result(request string, device offer) resourceapi.DeviceRequestAllocationResult {
	made := resourceapi.DeviceRequestAllocationResult{Request: request, Driver: j.driver, Pool: device.pool, Device: device.name}
	if device.shared {
		share := types.UID(uuid.NewString())
		made.ShareID = &share
		made.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{}
		for name, capacity := range device.capacity {
			made.ConsumedCapacity[name] = capacity.Value
			if policy := capacity.RequestPolicy; policy != nil && policy.Default != nil {
				made.ConsumedCapacity[name] = *policy.Default
			}
		}
	}
	return made
}

// claim makes a claim that is allocated these devices, one request each.
func (j *judge) claim(name string, devices ...offer) (*resourceapi.ResourceClaim, error) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	status := &resourceapi.AllocationResult{}
	for number, device := range devices {
		request := fmt.Sprintf("rail-%d", number)
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: request,
			Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: j.class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}})
		status.Devices.Results = append(status.Devices.Results, j.result(request, device))
	}
	made, err := j.client.ResourceV1().ResourceClaims(namespace).Create(j.ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	made.Status.Allocation = status
	return j.client.ResourceV1().ResourceClaims(namespace).UpdateStatus(j.ctx, made, metav1.UpdateOptions{})
}

// pod makes a pod on the node whose one container uses all of the claims, for which the claims are reserved.
func (j *judge) pod(name string, claims ...string) (*v1.Pod, error) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: v1.PodSpec{NodeName: j.node, Containers: []v1.Container{{Name: "main", Image: "none"}}}}
	for _, claim := range claims {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: claim, ResourceClaimName: &claim})
		pod.Spec.Containers[0].Resources.Claims = append(pod.Spec.Containers[0].Resources.Claims, v1.ResourceClaim{Name: claim})
	}
	pod, err := j.client.CoreV1().Pods(namespace).Create(j.ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	for _, name := range claims {
		// The controller of claims reserves too: whoever comes second has nothing to do.
		err := within(10*time.Second, func() error {
			claim, err := j.client.ResourceV1().ResourceClaims(namespace).Get(j.ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			mine := resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID}
			if slices.Contains(claim.Status.ReservedFor, mine) {
				return nil
			}
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, mine)
			_, err = j.client.ResourceV1().ResourceClaims(namespace).UpdateStatus(j.ctx, claim, metav1.UpdateOptions{})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return pod, nil
}

// remove takes pods and claims away; the kubelet has been told before.
func (j *judge) remove(pod *v1.Pod, claims ...string) error {
	now := int64(0)
	err := j.client.CoreV1().Pods(namespace).Delete(j.ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return j.removeClaims(claims...)
}

func (j *judge) removeClaims(claims ...string) error {
	for _, name := range claims {
		err := within(20*time.Second, func() error {
			claim, err := j.client.ResourceV1().ResourceClaims(namespace).Get(j.ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			} else if err != nil {
				return err
			}
			claim.Status.ReservedFor, claim.Status.Allocation = nil, nil
			claim, err = j.client.ResourceV1().ResourceClaims(namespace).UpdateStatus(j.ctx, claim, metav1.UpdateOptions{})
			if err != nil {
				return err
			}
			if len(claim.Finalizers) > 0 {
				claim.Finalizers = nil
				if _, err := j.client.ResourceV1().ResourceClaims(namespace).Update(j.ctx, claim, metav1.UpdateOptions{}); err != nil {
					return err
				}
			}
			err = j.client.ResourceV1().ResourceClaims(namespace).Delete(j.ctx, name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("claim %s: %w", name, err)
		}
	}
	return nil
}

// handed is what the kubelet would tell the runtime for the pod's container; each name must be known to CDI.
func (j *judge) handed(pod *v1.Pod) ([]string, error) {
	info, err := j.kubelet.manager.GetResources(pod, &pod.Spec.Containers[0])
	if err != nil {
		return nil, err
	}
	// A restarted kubelet asks again for what its state file has, and names each device twice.
	var names []string
	for _, device := range info.CDIDevices {
		if !slices.Contains(names, device.Name) {
			names = append(names, device.Name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("the kubelet has no CDI devices for the container")
	}
	return names, j.resolved(names...)
}

// resolved reads the CDI folder as containerd does.
func (j *judge) resolved(names ...string) error {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(j.cdi), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	for file, errs := range cache.GetErrors() {
		return fmt.Errorf("%s: %w", file, errors.Join(errs...))
	}
	for _, name := range names {
		if cache.GetDevice(name) == nil {
			return fmt.Errorf("CDI device %s is in no spec of %s", name, j.cdi)
		}
	}
	return nil
}

// paths are the device files that containers with these CDI devices get.
func (j *judge) paths(names ...string) []string {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(j.cdi), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil
	}
	var found []string
	for _, name := range names {
		device := cache.GetDevice(name)
		if device == nil {
			continue
		}
		for _, node := range append(device.ContainerEdits.DeviceNodes, device.GetSpec().ContainerEdits.DeviceNodes...) {
			found = append(found, node.Path)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// files are the CDI folder's files.
func (j *judge) files() []string {
	entries, _ := os.ReadDir(j.cdi)
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
