package tuning

import (
	_ "embed"
	"slices"
)

// BuiltinOrigin is the Origin of the tables that Builtin returns.
const BuiltinOrigin = "built-in table"

// The H100 has the same links as the H200.
var h200Devices = []string{"NVIDIA H200", "NVIDIA H100 80GB HBM3"}

// These devices have links of the same kind at half the speed.
var a100Devices = []string{"NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"}

// Builtin returns the table for a device that has not been tuned. An unknown device uses the plain
// path, so that windows never make calls slower.
func Builtin(backend, device string) *Table {
	switch {
	case backend == "host":
		return &Table{
			Origin: BuiltinOrigin, Device: "the host backend", DefaultPath: Window,
			Source: "the host backend uses staging where that is faster",
		}
	case slices.Contains(h200Devices, device):
		return h200()
	case slices.Contains(a100Devices, device):
		return &Table{
			Origin: BuiltinOrigin, Device: device, DefaultPath: Plain, Rules: h200().General(),
			Source: "symmem tune has not measured this device; direct as on the H200",
		}
	default:
		return &Table{
			Origin: BuiltinOrigin, Device: device, DefaultPath: Plain,
			Source: "symmem tune has not measured this device",
		}
	}
}

//go:embed tables/h200.json
var encodedH200 []byte

// h200 returns the table that symmem tune wrote on a machine with 4 H200 GPUs.
func h200() *Table {
	t, err := Decode(encodedH200)
	if err != nil {
		panic("tuning: the built-in table is broken: " + err.Error()) // A test decodes it.
	}

	t.Origin = BuiltinOrigin
	return t
}
