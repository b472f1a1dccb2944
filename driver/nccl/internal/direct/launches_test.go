package direct

import (
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// TestReportsFindCallsInCaptures: kernels that another library replays have numbers of their own,
// so digests have to do.
func TestReportsFindCallsInCaptures(t *testing.T) {
	var l Launches
	of := func(digest uint64) *driver.Call { return &driver.Call{Digest: digest} }
	const calls = recordedRemembered + 10
	for n := range uint64(calls) {
		l.Record(of(1000 + n))
	}
	l.Note(of(7), 1)
	for _, row := range []struct{ epoch, digest, wantDigest, wantTicket uint64 }{
		{1, 7, 7, 1},
		{5, 7, 7, 0}, // replays came between
		{1, 1000 + calls - 1, 1000 + calls - 1, 0},
		{9, 1010, 1010, 0},
		{9, 1009, 0, 0}, // forgotten
	} {
		call, ticket := l.Culprit(&kernels.Report{Epoch: row.epoch, Digest: row.digest})
		if call.Digest != row.wantDigest || ticket != row.wantTicket {
			t.Errorf("report %d of digest %d: found %d, ticket %d", row.epoch, row.digest, call.Digest,
				ticket)
		}
	}
}
