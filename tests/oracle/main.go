// What the API server and the scheduler of Kubernetes themselves say about a pod, so that tests need not say it again.
//
// Each line of the input is a world, each line of the output its answer, both JSON:
//
//	{"namespace", "pod", "limitRanges": [], "resourceQuotas": [], "nodes": [], "bound": []}
//	{"code", "message", "instead": [], "reviewed", "pod", "nodes": {name: null | {"filter", "reasons": []}}}
//
// tests/oracle/__init__.py says what the fields mean, and builds it by the module of the control plane.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

type World struct {
	Namespace      string             `json:"namespace"`
	Pod            json.RawMessage    `json:"pod"`
	LimitRanges    []json.RawMessage  `json:"limitRanges"`
	ResourceQuotas []v1.ResourceQuota `json:"resourceQuotas"`
	Nodes          []*v1.Node         `json:"nodes"`
	Bound          []*v1.Pod          `json:"bound"`
}

type Answer struct {
	Code     int32               `json:"code"`
	Message  string              `json:"message"`
	Instead  []string            `json:"instead"`
	Reviewed *v1.Pod             `json:"reviewed"`
	Pod      *v1.Pod             `json:"pod"`
	Nodes    map[string]*Refusal `json:"nodes"`
}

func main() {
	var flags flag.FlagSet
	klog.InitFlags(&flags)
	must(flags.Parse([]string{"-logtostderr=false", "-stderrthreshold=FATAL"}))
	ctx := context.Background()
	server, scheduler := newServer(), newScheduler(ctx)
	input, output := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		if answer, err := answered(ctx, server, scheduler, line); err != nil {
			must(output.Encode(map[string]string{"error": err.Error()}))
		} else {
			must(output.Encode(answer))
		}
	}
}

func answered(ctx context.Context, server *Server, scheduler *Scheduler, line []byte) (*Answer, error) {
	var world World
	if err := json.Unmarshal(line, &world); err != nil {
		return nil, err
	}
	limitRanges, err := server.limitRanges(ctx, world)
	if err != nil {
		return nil, fmt.Errorf("no API server takes a LimitRange of this world: %w", err)
	}
	answer := &Answer{Code: 201}
	answer.Reviewed, answer.Pod, err = server.create(ctx, world, limitRanges)
	if err != nil {
		answer.Code, answer.Message, answer.Instead = status(err)
		return answer, nil
	}
	answer.Nodes, err = scheduler.refusals(ctx, answer.Pod, world.Nodes, world.Bound)
	return answer, err
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
