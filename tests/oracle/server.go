package main

import (
	"context"
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/resourcequota"
	"k8s.io/apiserver/pkg/endpoints/request"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	evaluator "k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/limitranger"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/utils/clock"
)

// Server admits as the API server does between the request and its storage: defaults, the plugins that change pods by default
// (but for ServiceAccount, whose volumes are of no use here), validation, and the plugins that validate.
type Server struct {
	limits      limitranger.DefaultLimitRangerActions
	priority    *priority.Plugin
	tolerations *defaulttolerationseconds.Plugin
	usage       quota.Evaluator
}

func newServer() *Server {
	server := &Server{
		priority:    priority.NewPlugin(),
		tolerations: defaulttolerationseconds.NewDefaultTolerationSeconds(),
		usage:       evaluator.NewPodEvaluator(nil, clock.RealClock{}), // lists nothing to measure one pod
	}
	server.priority.SetExternalKubeInformerFactory(informers.NewSharedInformerFactory(nil, 0)) // no PriorityClasses
	server.tolerations.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	return server
}

// create returns the pod as webhooks see it, and as it is stored; the latter is nil, with the API server's error, if it is refused.
// Of a workload it is the pod that its controller makes.
func (s *Server) create(ctx context.Context, world World, limitRanges []*v1.LimitRange) (*v1.Pod, *v1.Pod, error) {
	object, err := decoded(world.Pod, world.Namespace, "Pod")
	if err != nil {
		return nil, nil, err
	}
	created, isPod := object.(*core.Pod)
	if !isPod {
		if created, err = podOf(ctx, object); err != nil {
			return nil, nil, err
		}
	}
	attributes := admission.NewAttributesRecord(
		created, nil, v1.SchemeGroupVersion.WithKind("Pod"), world.Namespace, created.Name,
		v1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, &metav1.CreateOptions{}, false, nil,
	)
	for _, each := range limitRanges {
		if err := s.limits.MutateLimit(each, "pods", created); err != nil {
			return nil, nil, admission.NewForbidden(attributes, err)
		}
	}
	for _, plugin := range []admission.MutationInterface{s.priority, s.tolerations} {
		if err := plugin.Admit(ctx, attributes, nil); err != nil {
			return nil, nil, err
		}
	}
	reviewed := external(created, &v1.Pod{})
	if err := before(ctx, pod.Strategy, created); err != nil {
		return reviewed, nil, err
	}
	var refused refusedByLimits
	for _, each := range limitRanges {
		if err := s.limits.ValidateLimit(each, "pods", created); err != nil {
			refused = append(refused, admission.NewForbidden(attributes, err))
		}
	}
	if len(refused) > 0 {
		return reviewed, nil, refused
	}
	if _, err := resourcequota.CheckRequest(world.ResourceQuotas, attributes, s.usage, nil); err != nil {
		return reviewed, nil, err
	}
	kept := external(created, &v1.Pod{})
	legacyscheme.Scheme.Default(kept) // as whatever is read from the storage
	return reviewed, kept, nil
}

func (s *Server) limitRanges(ctx context.Context, world World) ([]*v1.LimitRange, error) {
	var all []*v1.LimitRange
	for _, each := range world.LimitRanges {
		object, err := decoded(each, world.Namespace, "LimitRange")
		if err != nil {
			return nil, err
		}
		if _, ok := object.(*core.LimitRange); !ok {
			return nil, fmt.Errorf("%T is no LimitRange", object)
		}
		if err := before(ctx, limitrange.Strategy, object); err != nil {
			return nil, err
		}
		all = append(all, external(object, &v1.LimitRange{}))
	}
	return all, nil
}

// decoded returns the object with defaults, in the internal version, as the handler of a POST makes it; `kind` is one of v1 that
// is meant where the object names none.
func decoded(body json.RawMessage, namespace, kind string) (runtime.Object, error) {
	gvk := v1.SchemeGroupVersion.WithKind(kind)
	object, found, err := legacyscheme.Codecs.UniversalDecoder().Decode(body, &gvk, nil)
	if err != nil {
		if found != nil {
			gvk = *found
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, gvk.Version, gvk.Kind, err))
	}
	accessor := object.(metav1.ObjectMetaAccessor).GetObjectMeta()
	rest.WipeObjectMetaSystemFields(accessor)
	return object, rest.EnsureObjectNamespaceMatchesRequestNamespace(namespace, accessor)
}

// before does what the store does before it writes the object, where validation is.
func before(ctx context.Context, strategy rest.RESTCreateStrategy, object runtime.Object) error {
	accessor := object.(metav1.ObjectMetaAccessor).GetObjectMeta()
	rest.FillObjectMetaSystemFields(accessor)
	if accessor.GetName() == "" && accessor.GetGenerateName() != "" {
		accessor.SetName(strategy.GenerateName(accessor.GetGenerateName()))
	}
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(object)
	must(err)
	versions := legacyscheme.Scheme.PrioritizedVersionsForGroup(kinds[0].Group)
	// Validation by tags of the versioned types asks for the version of the request.
	of := &request.RequestInfo{APIGroup: kinds[0].Group, APIVersion: versions[0].Version}
	ctx = request.WithRequestInfo(request.WithNamespace(ctx, accessor.GetNamespace()), of)
	return rest.BeforeCreate(strategy, ctx, object)
}

// external returns a copy of v1. (What the conversion returns shares memory with the object.)
func external[T runtime.Object](object runtime.Object, into T) T {
	must(legacyscheme.Scheme.Convert(object, into, nil))
	made := into.DeepCopyObject().(T)
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(made)
	must(err)
	made.GetObjectKind().SetGroupVersionKind(kinds[0])
	return made
}

// refusedByLimits has the error of each LimitRange that refuses the pod. LimitRanger stops at the first, in an order of a Go map.
type refusedByLimits []error

func (r refusedByLimits) Error() string { return r[0].Error() }

// status returns the code, the message, and those that the API server may give instead.
func status(err error) (code int32, message string, instead []string) {
	if all, ok := err.(refusedByLimits); ok {
		for _, each := range all[1:] {
			instead = append(instead, each.Error())
		}
		err = all[0]
	}
	if refused, ok := err.(apierrors.APIStatus); ok {
		return refused.Status().Code, refused.Status().Message, instead
	}
	return 500, err.Error(), nil
}
