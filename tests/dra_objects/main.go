// What Kubernetes' own code says of our objects for DRA: does each decode strictly, does each CEL expression compile, which
// devices does a selector take, what does the admission policy decide. A question in JSON on stdin, the answer on stdout.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	policycel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

type request struct {
	Username  string                    `json:"username"`
	Extra     map[string][]string       `json:"extra"`
	Operation admission.Operation       `json:"operation"`
	Object    *resourcev1.ResourceSlice `json:"object"`
	Old       *resourcev1.ResourceSlice `json:"old"`
}

type question struct {
	Objects   []json.RawMessage   `json:"objects"`
	Selectors []string            `json:"selectors"`
	Driver    string              `json:"driver"`
	Devices   []resourcev1.Device `json:"devices"`
	Policy    json.RawMessage     `json:"policy"`
	Requests  []request           `json:"requests"`
}

type answer struct {
	Problems []string   `json:"problems"`
	Matching [][]string `json:"matching"`
	Denied   []string   `json:"denied"`
}

func main() {
	var asked question
	check(json.NewDecoder(os.Stdin).Decode(&asked))
	said := answer{Problems: []string{}, Matching: [][]string{}, Denied: []string{}}
	codec := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, text := range asked.Objects {
		if _, _, err := codec.Decode(text, nil, nil); err != nil {
			said.Problems = append(said.Problems, err.Error())
		}
	}
	for _, expression := range asked.Selectors {
		names, err := matching(expression, asked.Driver, asked.Devices)
		if err != nil {
			said.Problems = append(said.Problems, fmt.Sprintf("%s: %v", expression, err))
		}
		said.Matching = append(said.Matching, names)
	}
	if asked.Policy != nil {
		object, _, err := codec.Decode(asked.Policy, nil, nil)
		check(err)
		validator := compile(object.(*admissionv1.ValidatingAdmissionPolicy))
		for _, one := range asked.Requests {
			said.Denied = append(said.Denied, decide(validator, one))
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(said))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func matching(expression, driver string, devices []resourcev1.Device) ([]string, error) {
	names := []string{}
	compiled := dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, dracel.Options{})
	if compiled.Error != nil {
		return names, compiled.Error
	}
	for _, device := range devices {
		taken, _, err := compiled.DeviceMatches(context.Background(), dracel.Device{
			Driver: driver, AllowMultipleAllocations: device.AllowMultipleAllocations,
			Attributes: device.Attributes, Capacity: device.Capacity,
		})
		if err != nil {
			return names, fmt.Errorf("device %s: %w", device.Name, err)
		}
		if taken {
			names = append(names, device.Name)
		}
	}
	return names, nil
}

// As the API server's plugin does it, whose own function is private.
func compile(policy *admissionv1.ValidatingAdmissionPolicy) validating.Validator {
	compiler, err := policycel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	check(err)
	all := policycel.OptionalVariableDeclarations{HasAuthorizer: true}
	variables := []policycel.NamedExpressionAccessor{}
	for _, one := range policy.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: one.Name, Expression: one.Expression})
	}
	compiler.CompileAndStoreVariables(variables, all, environment.StoredExpressions)
	conditions, validations, messages := []policycel.ExpressionAccessor{}, []policycel.ExpressionAccessor{}, []policycel.ExpressionAccessor{}
	for i := range policy.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&policy.Spec.MatchConditions[i]))
	}
	for _, one := range policy.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: one.Expression, Message: one.Message, Reason: one.Reason})
		var message policycel.ExpressionAccessor
		if one.MessageExpression != "" {
			message = &validating.MessageExpressionCondition{MessageExpression: one.MessageExpression}
		}
		messages = append(messages, message)
	}
	matcher := matchconditions.NewMatcher(
		compiler.CompileCondition(conditions, all, environment.StoredExpressions),
		policy.Spec.FailurePolicy, "policy", "validate", policy.Name,
	)
	return validating.NewValidator(
		compiler.CompileCondition(validations, all, environment.StoredExpressions), matcher,
		compiler.CompileCondition(nil, all, environment.StoredExpressions),
		compiler.CompileCondition(messages, policycel.OptionalVariableDeclarations{}, environment.StoredExpressions),
		policy.Spec.FailurePolicy,
	)
}

// Empty where the request is allowed, else the first message.
func decide(validator validating.Validator, one request) string {
	kind := resourcev1.SchemeGroupVersion.WithKind("ResourceSlice")
	resource := resourcev1.SchemeGroupVersion.WithResource("resourceslices")
	object, old := typed(one.Object), typed(one.Old)
	who := &user.DefaultInfo{Name: one.Username, Extra: one.Extra}
	attributes := admission.NewAttributesRecord(object, old, kind, "", "slice", resource, "", one.Operation, nil, false, who)
	versioned := &admission.VersionedAttributes{
		Attributes: attributes, VersionedKind: kind, VersionedObject: object, VersionedOldObject: old,
	}
	result := validator.Validate(context.Background(), resource, versioned, nil, nil, cel.RuntimeCELCostBudget, nil)
	for _, decision := range result.Decisions {
		if decision.Action == validating.ActionDeny {
			return fmt.Sprintf("%s: %s", decision.Reason, decision.Message)
		}
	}
	return ""
}

func typed(slice *resourcev1.ResourceSlice) runtime.Object {
	if slice == nil {
		return nil
	}
	slice.UID = types.UID("u")
	return slice
}
