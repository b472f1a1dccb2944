package direct

import (
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// TestReportsFindCallsInCaptures looks up calls by digest, since replays of another library have
// changed the kernels' count.
func TestReportsFindCallsInCaptures(t *testing.T) {
	var l Launches
	of := func(digest uint64) *driver.Call { return &driver.Call{Digest: digest} }
	const calls = recordedRemembered + 10
	for n := range uint64(calls) {
		l.Record(of(1000 + n))
	}
	l.Note(of(7), 1, 1)
	for _, row := range []struct{ epoch, digest, wantDigest, wantTicket uint64 }{
		{1, 7, 7, 1},
		{5, 7, 7, 0}, // replays came between
		{1, 1000 + calls - 1, 1000 + calls - 1, 0},
		{9, 1010, 1010, 0},
		{9, 1009, 0, 0}, // forgotten
	} {
		call, ticket := l.CallOf(&kernels.Report{Epoch: row.epoch, Digest: row.digest})
		if call.Digest != row.wantDigest || ticket != row.wantTicket {
			t.Errorf("report with epoch %d and digest %d: got digest %d, ticket %d", row.epoch,
				row.digest, call.Digest, ticket)
		}
	}
}

// TestReportsFindCallsInPieces looks up calls that were split into several launches, each with its
// own number.
func TestReportsFindCallsInPieces(t *testing.T) {
	var l Launches
	large, small := &driver.Call{Digest: 1}, &driver.Call{Digest: 2}
	l.Note(small, 1, 1)
	l.Note(large, 2, 3*remembered)
	l.Note(small, 3, 1)
	l.Note(large, 4, 3)
	const last = 1 + 3*remembered + 1 + 3
	for epoch, want := range map[uint64]uint64{
		last: 4, last - 2: 4, last - 3: 3, last - 4: 2, last - remembered + 1: 2,
	} {
		digest := large.Digest
		if want == 3 {
			digest = small.Digest
		}
		call, ticket := l.CallOf(&kernels.Report{Epoch: epoch, Digest: digest})
		if call.Digest != digest || ticket != want {
			t.Errorf("launch %d: got digest %d and ticket %d, want %d", epoch, call.Digest, ticket, want)
		}
	}
}
