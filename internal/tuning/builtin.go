package tuning

import (
	_ "embed"
	"slices"
)

// BuiltinOrigin is the Origin of the tables of Builtin.
const BuiltinOrigin = "built-in table"

// sxm are the devices that the built-in figures stand for: those of the measured box, and its
// predecessor with the same links.
var sxm = []string{"NVIDIA H200", "NVIDIA H100 80GB HBM3"}

// ampere are devices that have the same kind of links, half as fast.
var ampere = []string{"NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"}

// Builtin returns the table of a device that nobody has tuned, by the names of its backend and of
// itself. The host backend takes the window path always; a device of which nothing is known takes
// the plain path, which is never slower than no windows at all. Devices with the same links as one
// that was measured take the table of that one.
func Builtin(backend, device string) *Table {
	switch {
	case backend == "host":
		return &Table{
			Origin: BuiltinOrigin, Device: "the host backend", Otherwise: Window,
			Source: "the host backend goes through staging by itself where that is faster",
		}
	case slices.Contains(sxm, device):
		return h200()
	case slices.Contains(ampere, device):
		return &Table{
			Origin: BuiltinOrigin, Device: device, Otherwise: Plain, Rules: h200().General(),
			Source: "nothing was measured on this device; symmem tune does it; direct as on the H200",
		}
	default:
		return &Table{
			Origin: BuiltinOrigin, Device: device, Otherwise: Plain,
			Source: "nothing was measured on this device; symmem tune does it",
		}
	}
}

//go:embed tables/h200.json
var encodedH200 []byte

// h200 is what symmem tune wrote on a box of 4 H200, and says so on other devices, too. Every call
// makes a table of its own, since tables can be changed.
func h200() *Table {
	t, err := Decode(encodedH200)
	if err != nil {
		panic("tuning: the built-in table is broken: " + err.Error()) // a test decodes it
	}
	t.Origin = BuiltinOrigin
	return t
}
