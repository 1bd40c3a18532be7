package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

const soon = 15 * time.Second

type one struct {
	name   string
	always bool // what later cases stand on
	run    func() (string, error)
}

func (j *judge) cases() []one {
	return []one{
		{"kubelet first, then the driver: registered", true, j.register},
		{"slices are offered", true, j.offers},
		{"one claim is prepared, CDI knows its devices", false, j.prepare},
		{"the same claim again, from a kubelet without a state file", false, j.twice},
		{"several claims in one call", false, j.several},
		{"two pods on one claim: files stay until the last one", false, j.twoPods},
		{"two claims on one HCA", false, j.oneHCA},
		{"answers per claim: one of two is unknown to the API server", false, j.perClaim},
		{"a claim that was deleted and made again under its name", false, j.anotherUID},
		{"a claim without an allocation", false, j.notAllocated},
		{"a claim on a device that the node has not", false, j.noSuchDevice},
		{"unprepare a claim that was never prepared", false, j.unknown},
		{"unprepare twice", false, j.unprepareTwice},
		{"an empty request", false, j.empty},
		{"driver killed with a prepared claim", false, func() (string, error) { return j.driverRestarts(syscall.SIGKILL) }},
		{"driver stopped with a prepared claim", false, func() (string, error) { return j.driverRestarts(syscall.SIGTERM) }},
		{"claim deleted while the driver is away", false, j.deletedWhileAway},
		{"kubelet restarts with a prepared claim", false, j.kubeletRestarts},
		{"health: each device reported, refreshed, a port down within 1 s", false, j.healthStream},
		{"nothing is left: CDI folder, kubelet's state", false, j.nothingLeft},
		{"driver stopped for good: unregistered", false, j.unregistered},
	}
}

func (j *judge) register() (string, error) {
	if err := j.deviceClass(); err != nil {
		return "", err
	}
	k, err := j.startKubelet("state")
	if err != nil {
		return "", err
	}
	j.kubelet = k
	start := time.Now()
	if err := j.daemon.start(); err != nil {
		return "", err
	}
	if err := j.registered(30 * time.Second); err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f s after the driver's start", time.Since(start).Seconds()), nil
}

func (j *judge) deviceClass() error {
	expression := fmt.Sprintf("device.driver == %q", j.driver)
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: j.class}, Spec: resourceapi.DeviceClassSpec{
		Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}}}
	_, err := j.client.ResourceV1().DeviceClasses().Create(j.ctx, class, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (j *judge) offers() (string, error) {
	err := within(2*time.Minute, func() (err error) { j.offered, err = j.slices(); return err })
	if err != nil {
		return "", err
	}
	hcas := map[string]bool{}
	form := "units"
	for _, device := range j.offered {
		hcas[device.hca] = true
		if device.shared {
			form = "shared devices"
		}
	}
	return fmt.Sprintf("%d %s of %d HCAs", len(j.offered), form, len(hcas)), nil
}

// start prepares a pod's claims and returns the CDI devices of its container. While a driver that came back registers, the
// kubelet knows none for a moment; its pod worker tries again.
func (j *judge) start(pod *v1.Pod) ([]string, error) {
	j.kubelet.admit(pod)
	var refused error
	err := within(soon, func() error {
		refused = j.kubelet.manager.PrepareResources(j.ctx, pod)
		if refused != nil && strings.Contains(refused.Error(), "is not registered") {
			return refused
		}
		return nil
	})
	if err := errors.Join(err, refused); err != nil {
		return nil, err
	}
	return j.handed(pod)
}

func (j *judge) finish(pod *v1.Pod, claims ...string) error {
	if err := j.kubelet.manager.UnprepareResources(j.ctx, pod); err != nil {
		return err
	}
	j.kubelet.forget(pod)
	return j.remove(pod, claims...)
}

// running makes claims on one device each and a pod with all of them, prepared.
func (j *judge) running(name string, devices ...offer) (*v1.Pod, []string, []string, error) {
	var claims []string
	for number, device := range devices {
		claim := fmt.Sprintf("%s-%d", name, number)
		if _, err := j.claim(claim, device); err != nil {
			return nil, nil, nil, err
		}
		claims = append(claims, claim)
	}
	pod, err := j.pod(name, claims...)
	if err != nil {
		return nil, nil, nil, err
	}
	names, err := j.start(pod)
	return pod, claims, names, err
}

func (j *judge) prepare() (string, error) {
	pod, claims, names, err := j.running("plain", j.offered[0])
	if err != nil {
		return "", err
	}
	paths := j.paths(names...)
	if !slices.Contains(paths, "/dev/infiniband/rdma_cm") {
		return "", fmt.Errorf("the container would get %v", paths)
	}
	if err := j.finish(pod, claims...); err != nil {
		return "", err
	}
	return strings.Join(paths, " "), j.gone(names...)
}

// gone is an error while CDI still knows one of the devices.
func (j *judge) gone(names ...string) error {
	for _, name := range names {
		if j.resolved(name) == nil {
			return fmt.Errorf("CDI device %s is still there", name)
		}
	}
	return nil
}

func (j *judge) twice() (string, error) {
	pod, claims, names, err := j.running("twice", j.offered[0])
	if err != nil {
		return "", err
	}
	before := j.files()
	j.kubelet.end()
	forgetful, err := j.startKubelet("state-lost")
	if err != nil {
		return "", err
	}
	real := j.kubelet
	j.kubelet = forgetful
	if err := j.registered(soon); err != nil {
		return "", err
	}
	again, err := j.start(pod)
	if err != nil {
		return "", err
	}
	if !slices.Equal(names, again) || !slices.Equal(before, j.files()) {
		return "", fmt.Errorf("first %v in %v, then %v in %v", names, before, again, j.files())
	}
	if err := j.kubelet.manager.UnprepareResources(j.ctx, pod); err != nil {
		return "", err
	}
	if err := j.gone(names...); err != nil {
		return "", err
	}
	j.kubelet.end()
	// The first kubelet's file still knows the claim: it unprepares what is unprepared already.
	k, err := j.startKubelet("state")
	if err != nil {
		return "", err
	}
	for _, pod := range real.active() {
		k.admit(pod)
	}
	j.kubelet = k
	if err := j.registered(soon); err != nil {
		return "", err
	}
	return "same devices, same files", j.finish(pod, claims...)
}

func (j *judge) several() (string, error) {
	devices := j.offered[:min(4, len(j.offered))]
	pod, claims, names, err := j.running("several", devices...)
	if err != nil {
		return "", err
	}
	if len(names) < len(devices) {
		return "", fmt.Errorf("%d claims, CDI devices %v", len(devices), names)
	}
	return fmt.Sprintf("%d claims, %d CDI devices", len(devices), len(names)), j.finish(pod, claims...)
}

func (j *judge) twoPods() (string, error) {
	first, claims, names, err := j.running("shared-claim", j.offered[0])
	if err != nil {
		return "", err
	}
	second, err := j.pod("shared-claim-too", claims...)
	if err != nil {
		return "", err
	}
	again, err := j.start(second)
	if err != nil {
		return "", err
	}
	if !slices.Equal(names, again) {
		return "", fmt.Errorf("%v and %v", names, again)
	}
	if err := j.finish(first); err != nil {
		return "", err
	}
	if err := j.resolved(names...); err != nil {
		return "", fmt.Errorf("after the first pod's end: %w", err)
	}
	if err := j.finish(second, claims...); err != nil {
		return "", err
	}
	return names[0], j.gone(names...)
}

func (j *judge) oneHCA() (string, error) {
	one, other, err := j.two()
	if err != nil {
		return "", err
	}
	first, firstClaims, names, err := j.running("one", one)
	if err != nil {
		return "", err
	}
	second, secondClaims, others, err := j.running("other", other)
	if err != nil {
		return "", err
	}
	if slices.Equal(names, others) {
		return "", fmt.Errorf("both claims have %v: the end of one would take the other's files", names)
	}
	paths := j.paths(others...)
	if !slices.Equal(j.paths(names...), paths) {
		return "", fmt.Errorf("files of %s: %v; of %s: %v", one.name, j.paths(names...), other.name, paths)
	}
	if err := j.finish(first, firstClaims...); err != nil {
		return "", err
	}
	if err := j.resolved(others...); err != nil {
		return "", fmt.Errorf("after the end of the first claim: %w", err)
	}
	return fmt.Sprintf("%s and %s: %s", one.name, other.name, strings.Join(paths, " ")), j.finish(second, secondClaims...)
}

func request(claims ...*resourceapi.ResourceClaim) []*drapb.Claim {
	var asked []*drapb.Claim
	for _, claim := range claims {
		asked = append(asked, &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)})
	}
	return asked
}

// call asks the driver through the kubelet's client; the answers are per claim.
func (j *judge) call(claims ...*drapb.Claim) (map[string]*drapb.NodePrepareResourceResponse, error) {
	plugin, err := j.kubelet.plugin(j.driver)
	if err != nil {
		return nil, err
	}
	answer, err := plugin.NodePrepareResources(j.ctx, &drapb.NodePrepareResourcesRequest{Claims: claims})
	if err != nil {
		return nil, err
	}
	if len(answer.Claims) != len(claims) {
		return nil, fmt.Errorf("%d claims asked, %d answered", len(claims), len(answer.Claims))
	}
	return answer.Claims, nil
}

func (j *judge) undo(claims ...*drapb.Claim) error {
	plugin, err := j.kubelet.plugin(j.driver)
	if err != nil {
		return err
	}
	answer, err := plugin.NodeUnprepareResources(j.ctx, &drapb.NodeUnprepareResourcesRequest{Claims: claims})
	if err != nil {
		return err
	}
	for _, claim := range claims {
		result, found := answer.Claims[claim.Uid]
		if !found {
			return fmt.Errorf("no answer for claim %s", claim.Name)
		}
		if result.Error != "" {
			return errors.New(result.Error)
		}
	}
	return nil
}

func (j *judge) perClaim() (string, error) {
	good, err := j.claim("good", j.offered[0])
	if err != nil {
		return "", err
	}
	asked := append(request(good), &drapb.Claim{Namespace: namespace, Name: "absent", Uid: "00000000-0000-0000-0000-000000000000"})
	answers, err := j.call(asked...)
	if err != nil {
		return "", err
	}
	if answer := answers[asked[0].Uid]; answer.Error != "" || len(answer.Devices) != 1 {
		return "", fmt.Errorf("the good claim: %v", answer)
	}
	if err := j.undo(asked...); err != nil {
		return "", err
	}
	return j.complaint(answers[asked[1].Uid], "absent", "good")
}

// complaint is the error of an answer, which names the claim.
func (j *judge) complaint(answer *drapb.NodePrepareResourceResponse, name string, claims ...string) (string, error) {
	if answer.Error == "" {
		return "", fmt.Errorf("no error, devices %v", answer.Devices)
	}
	if !strings.Contains(answer.Error, name) {
		return "", fmt.Errorf("the error does not name %s: %s", name, answer.Error)
	}
	return answer.Error, j.removeClaims(claims...)
}

func (j *judge) anotherUID() (string, error) {
	claim, err := j.claim("again", j.offered[0])
	if err != nil {
		return "", err
	}
	asked := &drapb.Claim{Namespace: namespace, Name: "again", Uid: "11111111-1111-1111-1111-111111111111"}
	answers, err := j.call(asked)
	if err != nil {
		return "", err
	}
	return j.complaint(answers[asked.Uid], claim.Name, "again")
}

func (j *judge) notAllocated() (string, error) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "waiting", Namespace: namespace}}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "rail", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: j.class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}}}
	claim, err := j.client.ResourceV1().ResourceClaims(namespace).Create(j.ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	asked := request(claim)
	answers, err := j.call(asked...)
	if err != nil {
		return "", err
	}
	return j.complaint(answers[asked[0].Uid], "waiting", "waiting")
}

func (j *judge) noSuchDevice() (string, error) {
	claim, err := j.claim("nowhere", offer{pool: j.offered[0].pool, name: "mlx5-99"})
	if err != nil {
		return "", err
	}
	pod, err := j.pod("nowhere", "nowhere")
	if err != nil {
		return "", err
	}
	before := j.files()
	_, err = j.start(pod)
	if err == nil {
		return "", errors.New("it was prepared")
	}
	said := err.Error()
	if !strings.Contains(said, "mlx5-99") {
		return "", fmt.Errorf("the error does not name the device: %s", said)
	}
	if !slices.Equal(before, j.files()) {
		return "", fmt.Errorf("it left files: %v", j.files())
	}
	// The kubelet unprepares what it could not prepare.
	return said, j.finish(pod, claim.Name)
}

func (j *judge) unknown() (string, error) {
	return "no error", j.undo(&drapb.Claim{Namespace: namespace, Name: "never", Uid: "22222222-2222-2222-2222-222222222222"})
}

func (j *judge) unprepareTwice() (string, error) {
	claim, err := j.claim("undone", j.offered[0])
	if err != nil {
		return "", err
	}
	asked := request(claim)
	if _, err := j.call(asked...); err != nil {
		return "", err
	}
	if err := errors.Join(j.undo(asked...), j.undo(asked...)); err != nil {
		return "", err
	}
	return "no error", j.removeClaims("undone")
}

func (j *judge) empty() (string, error) {
	if _, err := j.call(); err != nil {
		return "", err
	}
	return "empty answers", j.undo()
}

// usable waits until the restarted driver answers the kubelet and its slices are back.
func (j *judge) usable() error {
	err := within(soon, func() error { return j.undo() })
	if err != nil {
		return fmt.Errorf("driver after its restart: %w", err)
	}
	return within(10*time.Second, func() error { _, err := j.slices(); return err })
}

// slowest runs rounds and says how long the slowest took.
func (j *judge) slowest(round func() error) (string, error) {
	var worst time.Duration
	for number := range j.rounds {
		start := time.Now()
		if err := round(); err != nil {
			return "", fmt.Errorf("round %d: %w", number+1, err)
		}
		worst = max(worst, time.Since(start))
	}
	return fmt.Sprintf("%d rounds, the slowest %.1f s", j.rounds, worst.Seconds()), nil
}

func (j *judge) driverRestarts(how syscall.Signal) (string, error) {
	pod, claims, names, err := j.running("outlives-driver", j.offered[0])
	if err != nil {
		return "", err
	}
	before := j.files()
	offered, err := j.slices()
	if err != nil {
		return "", err
	}
	seen, err := j.slowest(func() error {
		if err := j.daemon.end(how); err != nil {
			return err
		}
		if err := j.resolved(names...); err != nil {
			return fmt.Errorf("while the driver is away: %w", err)
		}
		if err := j.daemon.start(); err != nil {
			return err
		}
		if err := errors.Join(j.registered(soon), j.usable()); err != nil {
			return err
		}
		now, err := j.slices()
		if err != nil {
			return err
		}
		if len(now) != len(offered) || !slices.Equal(before, j.files()) {
			return fmt.Errorf("%d devices, %d before; files %v, before %v", len(now), len(offered), j.files(), before)
		}
		return j.resolved(names...)
	})
	if err != nil {
		return "", err
	}
	if err := j.finish(pod, claims...); err != nil {
		return "", err
	}
	return seen, j.gone(names...)
}

func (j *judge) deletedWhileAway() (string, error) {
	pod, claims, names, err := j.running("leaves", j.offered[0])
	if err != nil {
		return "", err
	}
	j.daemon.kill()
	if err := j.kubelet.manager.UnprepareResources(j.ctx, pod); err == nil {
		return "", errors.New("the kubelet unprepared without a driver")
	}
	if err := j.remove(pod, claims...); err != nil {
		return "", err
	}
	if err := j.daemon.start(); err != nil {
		return "", err
	}
	if err := errors.Join(j.registered(soon), j.usable()); err != nil {
		return "", err
	}
	// The kubelet's pod worker tries again; the claim is not in the API server any more.
	err = within(soon, func() error { return j.kubelet.manager.UnprepareResources(j.ctx, pod) })
	if err != nil {
		return "", err
	}
	j.kubelet.forget(pod)
	return "unprepared after its return", j.gone(names...)
}

func (j *judge) kubeletRestarts() (string, error) {
	pod, claims, names, err := j.running("outlives-kubelet", j.offered[0])
	if err != nil {
		return "", err
	}
	before := j.files()
	seen, err := j.slowest(func() error {
		old, err := j.generation()
		if err != nil {
			return err
		}
		if err := j.restartKubelet(); err != nil {
			return err
		}
		if err := j.registered(soon); err != nil {
			return err
		}
		// A starting kubelet wipes its node's slices: they must be back within 10 s, all of them.
		err = within(10*time.Second, func() error {
			now, err := j.generation()
			if err == nil && now == old {
				return errors.New("the slices were not wiped")
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("slices: %w", err)
		}
		again, err := j.start(pod)
		if err != nil {
			return err
		}
		if !slices.Equal(names, again) || !slices.Equal(before, j.files()) {
			return fmt.Errorf("%v in %v, before %v in %v", again, j.files(), names, before)
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	if err := j.finish(pod, claims...); err != nil {
		return "", err
	}
	return seen, j.gone(names...)
}

// generation tells one set of slices from the next: the UIDs of the objects.
func (j *judge) generation() (string, error) {
	if _, err := j.slices(); err != nil {
		return "", err
	}
	list, err := j.client.ResourceV1().ResourceSlices().List(j.ctx, metav1.ListOptions{
		FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + j.node})
	if err != nil {
		return "", err
	}
	var names []string
	for _, slice := range list.Items {
		names = append(names, string(slice.UID))
	}
	if len(names) == 0 {
		return "", errors.New("no slice is there any more") // wiped between the two questions
	}
	slices.Sort(names)
	return strings.Join(names, " "), nil
}

func (j *judge) healthStream() (string, error) {
	if !j.health || len(j.state) == 0 {
		return "not verified: needs ResourceHealthStatus=true and -port-state", nil
	}
	hca := j.offered[0]
	for _, device := range j.offered {
		if strings.Contains(j.state[0], "/"+device.hca+"/") {
			hca = device
			break
		}
	}
	pod, claims, _, err := j.running("watched", hca)
	if err != nil {
		return "", err
	}
	current := func() (v1.ResourceHealthStatus, error) {
		status := v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "main"}}}
		seen := pod.DeepCopy() // the kubelet looks for claims where those made from templates are named
		for _, claim := range claims {
			seen.Status.ResourceClaimStatuses = append(seen.Status.ResourceClaimStatuses,
				v1.PodResourceClaimStatus{Name: claim, ResourceClaimName: &claim})
		}
		j.kubelet.manager.UpdateAllocatedResourcesStatus(seen, &status)
		for _, resource := range status.ContainerStatuses[0].AllocatedResourcesStatus {
			for _, one := range resource.Resources {
				return one.Health, nil
			}
		}
		return "", errors.New("the pod's status has no resource")
	}
	expect := func(want v1.ResourceHealthStatus, limit time.Duration) (float64, error) {
		start := time.Now()
		err := within(limit, func() error {
			if seen, err := current(); err != nil {
				return err
			} else if seen != want {
				return fmt.Errorf("%s instead of %s", seen, want)
			}
			return nil
		})
		return time.Since(start).Seconds(), err
	}
	if _, err := expect(v1.ResourceHealthStatusHealthy, soon); err != nil {
		return "", err
	}
	time.Sleep(33 * time.Second) // the kubelet forgets what is older than 30 s
	if _, err := expect(v1.ResourceHealthStatusHealthy, 0); err != nil {
		return "", fmt.Errorf("after 33 s: %w", err)
	}
	if err := j.write("1: DOWN"); err != nil {
		return "", err
	}
	down, err := expect(v1.ResourceHealthStatusUnhealthy, 3*time.Second)
	if err != nil {
		return "", fmt.Errorf("port down: %w", err)
	}
	if err := j.write("4: ACTIVE"); err != nil {
		return "", err
	}
	up, err := expect(v1.ResourceHealthStatusHealthy, soon)
	if err != nil {
		return "", fmt.Errorf("port up: %w", err)
	}
	if down > 1 {
		return "", fmt.Errorf("down after %.2f s", down)
	}
	return fmt.Sprintf("down %.2f s, up %.2f s", down, up), j.finish(pod, claims...)
}

func (j *judge) write(text string) error {
	for _, path := range j.state {
		if err := os.WriteFile(path+".new", []byte(text+"\n"), 0o644); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return nil
}

func (j *judge) nothingLeft() (string, error) {
	if files := j.files(); len(files) > 0 {
		return "", fmt.Errorf("CDI folder: %v", files)
	}
	state, err := os.ReadFile(j.folder("state/dra_manager_state"))
	if err != nil {
		return "", err
	}
	if strings.Contains(string(state), "ClaimUID") {
		return "", fmt.Errorf("the kubelet's state: %s", state)
	}
	return "both empty", nil
}

func (j *judge) unregistered() (string, error) {
	start := time.Now()
	if err := j.daemon.end(syscall.SIGTERM); err != nil {
		return "", err
	}
	ended := time.Since(start).Seconds()
	err := within(soon, func() error {
		if _, err := j.kubelet.plugin(j.driver); err == nil {
			return errors.New("the kubelet still knows the driver")
		}
		return nil
	})
	entries, _ := os.ReadDir(j.folder("plugins_registry"))
	if len(entries) > 0 {
		err = errors.Join(err, fmt.Errorf("left in plugins_registry: %v", entries))
	}
	return fmt.Sprintf("ended in %.1f s", ended), err
}
