package tuning

import "slices"

// BuiltinOrigin is the Origin of the tables of Builtin.
const BuiltinOrigin = "built-in table"

// sxm are the devices that the built-in figures stand for: those of the measured box, and its
// predecessor with the same links.
var sxm = []string{"NVIDIA H200", "NVIDIA H100 80GB HBM3"}

// Builtin returns the table of a device that nobody has tuned, by the names of its backend and of
// itself. The host backend takes the window path always; a device of which nothing is known takes
// the plain path, which is never slower than no windows at all.
func Builtin(backend, device string) *Table {
	switch {
	case backend == "host":
		return &Table{
			Origin: BuiltinOrigin, Device: "the host backend", Otherwise: Window,
			Source: "the host backend goes through staging by itself where that is faster",
		}
	case slices.Contains(sxm, device):
		return h200(device)
	default:
		return &Table{
			Origin: BuiltinOrigin, Device: device, Otherwise: Plain,
			Source: "nothing was measured on this device; symmem tune does it",
		}
	}
}

// h200 is derived from times that were measured side by side. On 2 ranks nothing was measured in
// place: the rule there is about both halves all the same, as NCCL reduces alike in both.
func h200(device string) *Table {
	t := &Table{
		Origin: BuiltinOrigin, Device: device, Library: "NCCL 2.28.9", Date: "2026-11-20",
		Otherwise: Plain, Source: sourceH200,
	}
	for i := range measuredH200 {
		m := &measuredH200[i]
		group := Shape{Ranks: m.ranks, Machines: 1}
		rules := DeriveRules(t.Otherwise, m.operation, group, m.outOfPlace, m.inPlace)
		if len(m.inPlace) == 0 {
			rules[0].Half = BothHalves
		}
		t.Rules = append(t.Rules, rules...)
	}
	return t
}
