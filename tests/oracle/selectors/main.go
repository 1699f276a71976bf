// Which devices a CEL selector selects, by the scheduler's own package, so that tests need not say it again.
//
// A line of the input has devices, or an expression to try on the last devices; only an expression has an answer. All are JSON:
//
//	{"devices": [{"driver", "allowMultipleAllocations", "attributes", "capacity"}]}
//	{"expression"}
//	{"error", "selected": [true | false | null]}
//
// An error is the compiler's: the API server refuses the expression. The scheduler stops at null.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

type Line struct {
	Devices    []Device `json:"devices"`
	Expression string   `json:"expression"`
}

type Device struct {
	Driver                   string                                                     `json:"driver"`
	AllowMultipleAllocations *bool                                                      `json:"allowMultipleAllocations"`
	Attributes               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity  `json:"capacity"`
}

type Answer struct {
	Error    string  `json:"error"`
	Selected []*bool `json:"selected"`
}

func main() {
	// The defaults of 1.37.
	compiler := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true})
	input, output := bufio.NewReader(os.Stdin), json.NewEncoder(os.Stdout)
	var devices []Device
	for {
		text, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var line Line
		if err := json.Unmarshal(text, &line); err != nil {
			panic(err)
		}
		if line.Devices != nil {
			devices = line.Devices
			continue
		}
		answer := Answer{Selected: []*bool{}}
		compiled := compiler.CompileCELExpression(line.Expression, cel.Options{})
		if compiled.Error != nil {
			answer.Error = compiled.Error.Error()
		} else if compiled.MaxCost > resourceapi.CELSelectorExpressionMaxCost {
			answer.Error = "too complex"
		} else {
			for _, device := range devices {
				answer.Selected = append(answer.Selected, selected(compiled, device))
			}
		}
		if err := output.Encode(answer); err != nil {
			panic(err)
		}
	}
}

func selected(compiled cel.CompilationResult, device Device) *bool {
	matches, _, err := compiled.DeviceMatches(context.Background(), cel.Device(device))
	if err != nil {
		return nil
	}
	return &matches
}
