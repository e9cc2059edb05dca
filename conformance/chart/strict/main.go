// Reads rendered manifests from standard input as Kubernetes does, by the types of its API: a field that a type does not have, or of the wrong
// kind, is an error. Prints one JSON object a line, for the tests that look into them.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	stream "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

var kinds = map[string]func() any{
	"v1/ConfigMap":                             func() any { return new(core.ConfigMap) },
	"v1/Pod":                                   func() any { return new(core.Pod) },
	"v1/Secret":                                func() any { return new(core.Secret) },
	"v1/Service":                               func() any { return new(core.Service) },
	"v1/ServiceAccount":                        func() any { return new(core.ServiceAccount) },
	"apps/v1/StatefulSet":                      func() any { return new(apps.StatefulSet) },
	"batch/v1/Job":                             func() any { return new(batch.Job) },
	"networking.k8s.io/v1/NetworkPolicy":       func() any { return new(networking.NetworkPolicy) },
	"policy/v1/PodDisruptionBudget":            func() any { return new(policy.PodDisruptionBudget) },
	"rbac.authorization.k8s.io/v1/Role":        func() any { return new(rbac.Role) },
	"rbac.authorization.k8s.io/v1/RoleBinding": func() any { return new(rbac.RoleBinding) },
	"monitoring.coreos.com/v1/PodMonitor":      func() any { return new(monitoring.PodMonitor) },
	"monitoring.coreos.com/v1/PrometheusRule":  func() any { return new(monitoring.PrometheusRule) },
	"monitoring.coreos.com/v1/ServiceMonitor":  func() any { return new(monitoring.ServiceMonitor) },
}

func main() {
	documents := stream.NewYAMLReader(bufio.NewReader(os.Stdin))
	out := json.NewEncoder(os.Stdout)
	read, failed := 0, 0
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			var object any
			if object, err = typed(text); err == nil && object != nil {
				read++
				err = out.Encode(object)
			}
		}
		if err != nil {
			failed++
			fmt.Fprintf(os.Stderr, "%v\n%s\n", err, text)
		}
	}
	if failed > 0 || read == 0 {
		fmt.Fprintf(os.Stderr, "%d objects, %d wrong\n", read, failed)
		os.Exit(1)
	}
}

// typed is nil for a document without content.
func typed(text []byte) (any, error) {
	var head struct {
		meta.TypeMeta `json:",inline"`
		Metadata      meta.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal(text, &head); err != nil {
		return nil, err
	}
	if head.Kind == "" {
		return nil, nil
	}
	name := head.APIVersion + "/" + head.Kind
	made, ok := kinds[name]
	if !ok {
		return nil, fmt.Errorf("%s: no such kind is expected", name)
	}
	object := made()
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		return nil, fmt.Errorf("%s %s: %w", name, head.Metadata.Name, err)
	}
	return object, checked(head.Metadata, object)
}

// checked looks at what is no matter of types: names, labels, and, in a StatefulSet, whether its selector is of its pods.
func checked(head meta.ObjectMeta, object any) error {
	wrong := validation.IsDNS1123Subdomain(head.Name)
	for key, value := range head.Labels {
		wrong = append(wrong, validation.IsQualifiedName(key)...)
		wrong = append(wrong, validation.IsValidLabelValue(value)...)
	}
	for key := range head.Annotations {
		wrong = append(wrong, validation.IsQualifiedName(key)...)
	}
	switch object := object.(type) {
	case *apps.StatefulSet:
		for key, value := range object.Spec.Selector.MatchLabels {
			if object.Spec.Template.Labels[key] != value {
				wrong = append(wrong, "no pod has the selector's "+key)
			}
		}
		wrong = append(wrong, ofPod(object.Spec.Template.Spec)...)
	case *batch.Job:
		wrong = append(wrong, ofPod(object.Spec.Template.Spec)...)
	case *core.Pod:
		wrong = append(wrong, ofPod(object.Spec)...)
	case *core.Service:
		wrong = append(wrong, validation.IsDNS1035Label(head.Name)...)
		for _, port := range object.Spec.Ports {
			wrong = append(wrong, validation.IsDNS1123Label(port.Name)...)
			wrong = append(wrong, validation.IsValidPortNum(int(port.Port))...)
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s: %v", head.Name, wrong)
	}
	return nil
}

func ofPod(pod core.PodSpec) (wrong []string) {
	volumes := map[string]bool{}
	for _, volume := range pod.Volumes {
		volumes[volume.Name] = true
	}
	for _, container := range pod.Containers {
		for _, port := range container.Ports {
			wrong = append(wrong, validation.IsValidPortName(port.Name)...)
			wrong = append(wrong, validation.IsValidPortNum(int(port.ContainerPort))...)
		}
		for _, mount := range container.VolumeMounts {
			// The coordinator's is of a claim.
			if !volumes[mount.Name] && mount.Name != "state" {
				wrong = append(wrong, "no volume "+mount.Name)
			}
		}
		for name, limit := range container.Resources.Limits {
			if request, ok := container.Resources.Requests[name]; ok && request.Cmp(limit) > 0 {
				wrong = append(wrong, fmt.Sprintf("%s: more requested than allowed", name))
			}
			if limit.Cmp(resource.MustParse("0")) <= 0 {
				wrong = append(wrong, fmt.Sprintf("%s: none allowed", name))
			}
		}
	}
	return wrong
}
