package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

// wanted are the filters, and what a profile must have beside them.
var wanted = []string{
	names.NodeUnschedulable, names.NodeName, names.TaintToleration, names.NodeAffinity, names.NodeResourcesFit,
	names.PrioritySort, names.DefaultBinder,
}

// Refusal is the first filter that refuses a node, and why.
type Refusal struct {
	Filter  string   `json:"filter"`
	Reasons []string `json:"reasons"`
}

// Scheduler runs filters of the default profile in its order.
type Scheduler struct {
	framework framework.Framework
	lister    *lister
}

// lister is the snapshot of the question that is being answered.
type lister struct{ fwk.SharedLister }

func newScheduler(ctx context.Context) *Scheduler {
	metrics.Register()
	configuration, err := latest.Default()
	must(err)
	profile := configuration.Profiles[0]
	enabled := &profile.Plugins.MultiPoint.Enabled
	*enabled = slices.DeleteFunc(*enabled, func(each config.Plugin) bool { return !slices.Contains(wanted, each.Name) })
	current := &lister{}
	made, err := frameworkruntime.NewFramework(
		ctx, plugins.NewInTreeRegistry(), &profile,
		frameworkruntime.WithSnapshotSharedLister(current),
		frameworkruntime.WithInformerFactory(informers.NewSharedInformerFactory(nil, 0)),
	)
	must(err)
	return &Scheduler{made, current}
}

// refusals returns of each node what refuses the pod, nil if nothing does; `bound` are the pods that use the nodes.
func (s *Scheduler) refusals(ctx context.Context, pod *v1.Pod, nodes []*v1.Node, bound []*v1.Pod) (map[string]*Refusal, error) {
	running := slices.DeleteFunc(bound, func(each *v1.Pod) bool {
		return each.Status.Phase == v1.PodSucceeded || each.Status.Phase == v1.PodFailed // what its informer leaves out
	})
	for _, each := range running {
		legacyscheme.Scheme.Default(each)
	}
	s.lister.SharedLister = cache.NewSnapshot(running, nodes)
	state := framework.NewCycleState()
	only, status, by := s.framework.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() && !status.IsRejected() {
		return nil, status.AsError()
	}
	refused := make(map[string]*Refusal, len(nodes))
	for _, each := range nodes {
		node, err := s.lister.NodeInfos().Get(each.Name)
		if err != nil {
			return nil, err
		}
		found, filter := status, strings.Join(sets.List(by), ",")
		if found.IsSuccess() && !only.AllNodes() && !only.NodeNames.Has(each.Name) {
			found = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't satisfy plugin(s) ["+filter+"]")
		} else if found.IsSuccess() {
			found = s.framework.RunFilterPlugins(ctx, state, pod, node)
		}
		refused[each.Name] = nil
		if !found.IsSuccess() {
			refused[each.Name] = &Refusal{cmp.Or(found.Plugin(), filter), found.Reasons()}
		}
	}
	return refused, nil
}
