package tuning

import "testing"

func TestTakesWindows(t *testing.T) {
	four := Shape{Ranks: 4, Machines: 1}
	windows := Rule{Calls: Calls{Operation: "AllReduce", Shape: four}, Steps: []Step{
		{UpTo: 1 << 20, Path: Window}, {Path: Plain},
	}}
	otherRanks := windows
	otherRanks.Ranks = 2
	upTo := func(bytes Size) Rule {
		return Rule{
			Calls: Calls{Operation: "AllReduce", Shape: four, Memory: Symmetric},
			Steps: []Step{{UpTo: bytes, Path: Direct}, {Path: Other}},
		}
	}
	for name, row := range map[string]struct {
		rules  []Rule
		direct bool
		want   bool
	}{
		"a rule chooses window":                            {[]Rule{windows}, false, true},
		"direct is chosen first at all of these sizes":     {[]Rule{windows, upTo(1 << 20)}, true, false},
		"direct ends at a smaller size than window":        {[]Rule{windows, upTo(1 << 19)}, true, true},
		"direct would be chosen first, but is unavailable": {[]Rule{windows, upTo(1 << 20)}, false, true},
		"a rule about other ranks chooses window":          {[]Rule{otherRanks}, false, false},
		"no rule": {nil, true, false},
	} {
		table := &Table{Device: "x", Otherwise: Plain, Rules: row.rules}
		if got := table.TakesWindows(four, row.direct); got != row.want {
			t.Errorf("%s: TakesWindows = %v, want %v", name, got, row.want)
		}
	}
	windowTable := &Table{Device: "x", Otherwise: Window}
	if !windowTable.TakesWindows(four, true) {
		t.Error("TakesWindows = false for a table with otherwise window, want true")
	}
}

func TestGroupsOnMeasuredMachineNeedNoWindows(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	for _, ranks := range []int{2, 4} {
		if table.TakesWindows(Shape{Ranks: ranks, Machines: 1}, true) {
			t.Errorf("TakesWindows = true for %d ranks, want false", ranks)
		}
	}
}
