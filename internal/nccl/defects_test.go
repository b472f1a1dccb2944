package nccl

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestDefectsApplyToVersionsAndGPUs(t *testing.T) {
	for _, c := range []struct {
		defect         *Defect
		version, major int
		want           bool
	}{
		{EarlyStart, 22802, 9, false},
		{EarlyStart, 22803, 9, true},
		{EarlyStart, 22803, 8, false},
		{EarlyStart, 23006, 10, true},
		{EarlyStart, 23007, 9, false},
		{ShiftedLoads, 22907, 8, true},
		{ShiftedLoads, 23003, 9, false},
		{AverageWithoutKernel, 23007, 9, true},
		{AverageWithoutKernel, 23008, 9, false},
		{LostByAbort, 99999, 9, true},
		{KeptByAbort, 22703, 8, true},
		{KeptByAbort, 22907, 9, false},
	} {
		if got := c.defect.Affects(c.version, c.major); got != c.want {
			t.Errorf("In(%d, %d) = %v for %q, want %v", c.version, c.major, got, c.defect.Effect, c.want)
		}
	}
}

func TestMultipliedCount(t *testing.T) {
	for _, c := range []struct{ count, elementBytes, want int64 }{
		{0, 4, 0},
		{1, 4, 1},
		{4096, 4, 4096},
		{4097, 4, 4096},
		{4098, 4, 4098},
		{70001, 4, 69984},
		{1 << 20, 2, 1 << 20},
		{1<<20 + 5, 8, 1 << 20},
		{1<<20 + 31, 1, 1 << 20},
	} {
		if got := MultipliedCount(c.count, c.elementBytes); got != c.want {
			t.Errorf("MultipliedCount(%d, %d) = %d, want %d", c.count, c.elementBytes, got, c.want)
		}
	}
}

func TestDefectsPageMatchesTable(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/nccl-defects.md")
	if err != nil {
		t.Fatal(err)
	}

	rows := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| ") {
			rows++
		}
	}

	if want := len(Defects) + 1; rows != want {
		t.Errorf("the table in nccl-defects.md has %d lines, want %d", rows, want)
	}

	for _, d := range Defects {
		gpus := "all"
		if d.Major > 0 {
			gpus = fmt.Sprintf("%d.0 and later", d.Major)
		}

		row := "| " + strings.Join([]string{
			d.Versions(), gpus, d.Effect, d.Workaround, d.Source,
		}, " | ") + " |\n"
		if !strings.Contains(string(text), row) {
			t.Errorf("nccl-defects.md lacks the row\n%s", row)
		}
	}
}
