package binding

import (
	"encoding/binary"
	"testing"
)

// TestReportsOutsidePadAreIgnored reads reports that a wrong kernel of some rank has overwritten.
// Their peers and channels are indexes.
func TestReportsOutsidePadAreIgnored(t *testing.T) {
	const ranks = 4
	for _, c := range []struct {
		name          string
		failure       padFailure
		peer, channel uint32
		want          int
	}{
		{"whole", padTimedOut, ranks - 1, padChannels - 1, 1},
		{"peer beyond the group", padTimedOut, ranks, 0, 0},
		{"channel beyond the pad", padTimedOut, 0, padChannels, 0},
		{"arguments that the report is about", padBadArgument, 1 << 31, 1 << 31, 1},
	} {
		memory := make(padMemory, padArrivalsOffset)
		report := memory[padReportsOffset+2*padReportBytes:]
		binary.NativeEndian.PutUint32(report, uint32(c.failure))
		binary.NativeEndian.PutUint32(report[4:], c.peer)
		binary.NativeEndian.PutUint32(report[24:], c.channel)
		if got := memory.reports(ranks); len(got) != c.want {
			t.Errorf("%s: got %v, want %d reports", c.name, got, c.want)
		}
	}
}
