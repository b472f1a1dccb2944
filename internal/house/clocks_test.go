package house

import (
	"go/ast"
	"slices"
)

var clockRules = []rule{{
	name: "ranks do not exchange wall time",
	reason: "the clocks of machines differ and may be set while a job runs; only traces contain " +
		"wall time, which symmem export corrects",
	check: eachFile(func(f *file) []finding {
		var all []finding
		if f.isTest() || isWithin(f.folder(), "driver/drivertest") || !isWithin(f.folder(), "driver",
			"internal/control", "internal/handoff", "internal/launch", "internal/rendezvous") {
			return nil
		}

		ast.Inspect(f.syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) > 0 {
				return true
			}

			method, ok := call.Fun.(*ast.SelectorExpr)
			names := []string{"Unix", "UnixMicro", "UnixMilli", "UnixNano", "MarshalBinary"}
			if ok && slices.Contains(names, method.Sel.Name) {
				all = append(all, f.find(n.Pos(), "%s returns wall time: send a duration",
					method.Sel.Name))
			}

			return true
		})
		return all
	}),
	bad: []map[string]string{
		{"internal/control/tcp/a.go": "package a\n\nvar now = time.Now().UnixNano()\n"},
	},
	good: []map[string]string{
		{"internal/rendezvous/a.go": "package a\n\nvar past = time.Unix(1, 0)\n"},
		{"trace/a.go": "package a\n\nvar now = time.Now().UnixNano()\n"},
	},
}}
