package symmem

import (
	"testing"

	"symmem/internal/tuning"
)

func TestMachineCount(t *testing.T) {
	for _, c := range []struct {
		name     string
		machines []string
		want     tuning.Shape
	}{
		{"a rank alone", []string{"a"}, tuning.Shape{Ranks: 1, Machines: 1}},
		{"ranks on one machine", []string{"a", "a"}, tuning.Shape{Ranks: 2, Machines: 1}},
		{"ranks on two machines", []string{"a", "b", "a"}, tuning.Shape{Ranks: 3, Machines: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var all []groupSettings
			for _, m := range c.machines {
				all = append(all, groupSettings{Machine: m})
			}

			if got := groupShape(all); got != c.want {
				t.Errorf("shapeOf(%v) = %v, want %v", all, got, c.want)
			}
		})
	}
}

func TestFakeMachineNames(t *testing.T) {
	if a, b := machineName(), machineName(); a != b || a == "" {
		t.Errorf("machineName() = %q, then %q; want the same name, not empty", a, b)
	}

	t.Setenv("NCCL_HOSTID", "fake-1")
	if got := machineName(); got != "fake-1" {
		t.Errorf("machineName() = %q, want fake-1", got)
	}
}

func TestTableFileNames(t *testing.T) {
	for device, want := range map[string]string{
		"NVIDIA H100 80GB HBM3": "nvidia-h100-80gb-hbm3",
		"../etc/passwd":         "etc-passwd",
		"2 processors, amd64":   "2-processors-amd64",
	} {
		if got := fileNamePart(device); got != want {
			t.Errorf("slug(%q) = %q, want %q", device, got, want)
		}
	}
}
