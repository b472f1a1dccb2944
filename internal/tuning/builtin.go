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

// h200 is derived from times that were measured side by side. The noise was not recorded, so only
// FloorPercent guards the limits, and above 64 MiB they are extrapolated.
func h200(device string) *Table {
	t := &Table{
		Origin: BuiltinOrigin, Device: device, Library: "NCCL 2.28.9", Date: "2026-11-20",
		Otherwise: Plain,
		Source: "measured on 2 and 4 NVIDIA H200 joined by NVLink, multicast off, driver 580.159, " +
			"bfloat16; medians of graph replays, 20 operations a graph; " + RuleOfDerive,
	}
	for _, m := range measuredH200 {
		t.Rules = append(t.Rules, Rule{
			Operation: m.operation, Shape: Shape{Ranks: m.ranks, Machines: 1},
			Steps: Derive(t.Otherwise, m.points),
		})
	}
	return t
}

const (
	kib Size = 1 << 10
	mib Size = 1 << 20
)

// measuredH200 are microseconds on the plain and on the window path.
var measuredH200 = []struct {
	operation string
	ranks     int
	points    []Point
}{
	{"AllReduce", 2, []Point{
		{1 * kib, 9.1, 6.6, 0},
		{16 * kib, 10.2, 7.4, 0},
		{64 * kib, 10.4, 10.9, 0},
		{128 * kib, 10.1, 14.0, 0},
		{256 * kib, 11.3, 11.3, 0},
		{512 * kib, 12.7, 16.3, 0},
		{1 * mib, 16.4, 18.9, 0},
		{4 * mib, 34.3, 31.0, 0},
		{16 * mib, 80.4, 82.4, 0},
		{64 * mib, 247.9, 311.0, 0},
	}},
	{"AllReduce", 4, []Point{
		{1 * kib, 13.0, 7.4, 0},
		{16 * kib, 13.7, 7.9, 0},
		{64 * kib, 14.0, 13.5, 0},
		{128 * kib, 14.8, 17.0, 0},
		{256 * kib, 14.5, 17.3, 0},
		{512 * kib, 17.3, 18.9, 0},
		{1 * mib, 20.7, 22.9, 0},
		{4 * mib, 42.8, 39.6, 0},
		{16 * mib, 100.5, 106.3, 0},
		{64 * mib, 323.8, 402.3, 0},
	}},
	{"AllGather", 4, []Point{
		{1 * kib, 9.9, 6.3, 0},
		{32 * kib, 11.7, 7.2, 0},
		{128 * kib, 12.3, 8.0, 0},
		{512 * kib, 15.4, 13.8, 0},
		{1 * mib, 17.6, 14.1, 0},
		{4 * mib, 40.6, 21.1, 0},
		{16 * mib, 68.8, 48.3, 0},
		{64 * mib, 190.6, 159.3, 0},
	}},
	{"ReduceScatter", 4, []Point{
		{1 * kib, 9.9, 6.9, 0},
		{32 * kib, 10.7, 7.8, 0},
		{128 * kib, 11.4, 8.8, 0},
		{512 * kib, 14.3, 22.8, 0},
		{1 * mib, 16.0, 14.8, 0},
		{4 * mib, 37.7, 31.6, 0},
		{16 * mib, 60.6, 70.7, 0},
		{64 * mib, 193.2, 261.1, 0},
	}},
}
