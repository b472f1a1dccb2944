package nccl

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestDefectsApplyToVersionsAndGPUs(t *testing.T) {
	const futureVersion = 99999
	for _, c := range []struct {
		defect  *Defect
		version int // 22803 is NCCL 2.28.3
		major   int // major compute capability, such as 9 for an H200
		want    bool
	}{
		{defect: EarlyStart, version: 22802, major: 9, want: false},
		{defect: EarlyStart, version: 22803, major: 9, want: true},
		{defect: EarlyStart, version: 22803, major: 8, want: false},
		{defect: EarlyStart, version: 23006, major: 10, want: true},
		{defect: EarlyStart, version: 23007, major: 9, want: false},
		{defect: ShiftedLoads, version: 22907, major: 8, want: true},
		{defect: ShiftedLoads, version: 23003, major: 9, want: false},
		{defect: AverageWithoutKernel, version: 23007, major: 9, want: true},
		{defect: AverageWithoutKernel, version: 23008, major: 9, want: false},
		{defect: LostByAbort, version: futureVersion, major: 9, want: true},
		{defect: KeptByAbort, version: 22703, major: 8, want: true},
		{defect: KeptByAbort, version: 22907, major: 9, want: false},
	} {
		if got := c.defect.Affects(c.version, c.major); got != c.want {
			t.Errorf("Affects(%d, %d) = %v for the defect %q, want %v",
				c.version, c.major, got, c.defect.Effect, c.want)
		}
	}
}

// NCCL versions with SkippedTail write only the first elements of some reductions. They divide the
// elements among at most 32 blocks of threads, and round each part to 16 bytes.
func TestMultipliedCount(t *testing.T) {
	for _, c := range []struct {
		count        int64
		elementBytes int64
		want         int64 // number of written elements
	}{
		{count: 0, elementBytes: 4, want: 0},
		{count: 1, elementBytes: 4, want: 1},
		{count: 4096, elementBytes: 4, want: 4096},          // one block
		{count: 4097, elementBytes: 4, want: 4096},          // two blocks of 2048
		{count: 4098, elementBytes: 4, want: 4098},          // two blocks of 2049, rounded to 2052
		{count: 70001, elementBytes: 4, want: 69984},        // 18 blocks of 3888
		{count: 1 << 20, elementBytes: 2, want: 1 << 20},    // no remainder
		{count: 1<<20 + 5, elementBytes: 8, want: 1 << 20},  // 32 blocks, remainder 5
		{count: 1<<20 + 31, elementBytes: 1, want: 1 << 20}, // 32 blocks, largest remainder
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

	rowCount := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| ") {
			rowCount++
		}
	}

	const headerRows = 1
	if want := headerRows + len(Defects); rowCount != want {
		t.Errorf("the table in nccl-defects.md has %d rows, want %d", rowCount, want)
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
