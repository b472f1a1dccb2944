package direct

import (
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// TestCallOfFindsCapturedCalls looks up calls by digest. Replays by another library change the
// kernels' count, so the number does not help.
func TestCallOfFindsCapturedCalls(t *testing.T) {
	var l Launches
	callOf := func(digest uint64) *driver.Call { return &driver.Call{Digest: digest} }
	const calls = maxRecorded + 10
	for n := range uint64(calls) {
		l.Record(callOf(1000 + n))
	}
	l.Note(callOf(7), 1, 1)
	for _, row := range []struct{ epoch, digest, wantDigest, wantTicket uint64 }{
		{1, 7, 7, 1},
		{5, 7, 7, 0}, // replays have advanced the count
		{1, 1000 + calls - 1, 1000 + calls - 1, 0},
		{9, 1010, 1010, 0},
		{9, 1009, 0, 0}, // too old
	} {
		call, ticket := l.CallOf(&kernels.Report{Epoch: row.epoch, Digest: row.digest})
		if call.Digest != row.wantDigest || ticket != row.wantTicket {
			t.Errorf("report with epoch %d and digest %d: got digest %d and ticket %d, want %d and %d",
				row.epoch, row.digest, call.Digest, ticket, row.wantDigest, row.wantTicket)
		}
	}
}

// TestCallOfFindsSplitCalls looks up calls that were split into several launches. Each launch has a
// separate number.
func TestCallOfFindsSplitCalls(t *testing.T) {
	var l Launches
	large, small := &driver.Call{Digest: 1}, &driver.Call{Digest: 2}
	l.Note(small, 1, 1)
	l.Note(large, 2, 3*maxLatest)
	l.Note(small, 3, 1)
	l.Note(large, 4, 3)
	const last = 1 + 3*maxLatest + 1 + 3
	for epoch, want := range map[uint64]uint64{
		last: 4, last - 2: 4, last - 3: 3, last - 4: 2, last - maxLatest + 1: 2,
	} {
		digest := large.Digest
		if want == 3 {
			digest = small.Digest
		}
		call, ticket := l.CallOf(&kernels.Report{Epoch: epoch, Digest: digest})
		if call.Digest != digest || ticket != want {
			t.Errorf("launch %d: got digest %d and ticket %d, want %d and %d", epoch, call.Digest, ticket,
				digest, want)
		}
	}
}
