package main

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/batch"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controller"
	daemon "k8s.io/kubernetes/pkg/controller/daemon/util"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
)

// podOf returns the pod that a controller sends to the API server for the workload, once that has taken the workload.
func podOf(ctx context.Context, workload runtime.Object) (*core.Pod, error) {
	strategy, template := templateOf(workload)
	if strategy == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("%T has no pods", workload))
	}
	if err := before(ctx, strategy, workload); err != nil {
		return nil, err
	}
	written := &external(&core.PodTemplate{Template: *template}, &v1.PodTemplate{}).Template
	if _, ok := workload.(*apps.DaemonSet); ok {
		*written = daemon.CreatePodTemplate(*written, nil, "") // with the tolerations of its controller
	}
	sent, err := controller.GetPodFromTemplate(written, workload, nil)
	if err != nil {
		return nil, err
	}
	sent.Namespace = workload.(metav1.ObjectMetaAccessor).GetObjectMeta().GetNamespace()
	legacyscheme.Scheme.Default(sent)
	pod := &core.Pod{}
	return pod, legacyscheme.Scheme.Convert(sent, pod, nil)
}

// templateOf returns nothing of a kind that has no pods.
func templateOf(workload runtime.Object) (rest.RESTCreateStrategy, *core.PodTemplateSpec) {
	switch object := workload.(type) {
	case *apps.DaemonSet:
		return daemonset.Strategy, &object.Spec.Template
	case *apps.Deployment:
		return deployment.Strategy, &object.Spec.Template
	case *apps.ReplicaSet:
		return replicaset.Strategy, &object.Spec.Template
	case *apps.StatefulSet:
		return statefulset.Strategy, &object.Spec.Template
	case *batch.CronJob:
		return cronjob.Strategy, &object.Spec.JobTemplate.Spec.Template
	case *batch.Job:
		return job.Strategy, &object.Spec.Template
	case *core.ReplicationController:
		return replicationcontroller.Strategy, object.Spec.Template
	}
	return nil, nil
}
