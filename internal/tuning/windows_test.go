package tuning

import "testing"

func TestCanUseWindows(t *testing.T) {
	group := Shape{Ranks: 4, Machines: 1}
	windows := Rule{Calls: Calls{Operation: "AllReduce", Shape: group}, Steps: []Step{
		{MaxBytes: 1 << 20, Path: Window}, {Path: Plain},
	}}
	otherRanks := windows
	otherRanks.Ranks = 2
	direct := func(maxBytes Size) Rule {
		return Rule{
			Calls: Calls{Operation: "AllReduce", Shape: group, Memory: Symmetric},
			Steps: []Step{{MaxBytes: maxBytes, Path: Direct}, {Path: NotDirect}},
		}
	}
	for name, row := range map[string]struct {
		rules     []Rule
		hasDirect bool
		want      bool
	}{
		"a rule chooses window":                     {[]Rule{windows}, false, true},
		"direct has precedence at these sizes":      {[]Rule{windows, direct(1 << 20)}, true, false},
		"direct ends at a smaller size than window": {[]Rule{windows, direct(1 << 19)}, true, true},
		"direct has precedence, but is unavailable": {[]Rule{windows, direct(1 << 20)}, false, true},
		"a rule about other ranks chooses window":   {[]Rule{otherRanks}, false, false},
		"no rule": {nil, true, false},
	} {
		table := &Table{Device: "x", DefaultPath: Plain, Rules: row.rules}
		if got := table.CanUseWindows(group, row.hasDirect); got != row.want {
			t.Errorf("%s: CanUseWindows = %v, want %v", name, got, row.want)
		}
	}

	windowTable := &Table{Device: "x", DefaultPath: Window}
	if !windowTable.CanUseWindows(group, true) {
		t.Error("CanUseWindows = false for a table with otherwise window, want true")
	}
}

func TestGroupsOnMeasuredMachineNeedNoWindows(t *testing.T) {
	table := Builtin("nccl", "NVIDIA H200")
	for _, ranks := range []int{2, 4} {
		if table.CanUseWindows(Shape{Ranks: ranks, Machines: 1}, true) {
			t.Errorf("CanUseWindows = true for %d ranks, want false", ranks)
		}
	}
}
