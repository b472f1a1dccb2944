package direct

import (
	"testing"

	"symmem/driver"
	"symmem/driver/nccl/kernels"
)

// TestCallOfFindsCapturedCalls looks up calls by their digest alone, as CallOf does after replays
// by another library have advanced the kernels' count.
func TestCallOfFindsCapturedCalls(t *testing.T) {
	var l Launches
	newCall := func(digest uint64) *driver.Call { return &driver.Call{Digest: digest} }
	const calls = maxCapturedCalls + 10
	for n := range uint64(calls) {
		l.AddCaptured(newCall(1000 + n))
	}

	l.Add(newCall(7), 1, 1)
	for _, row := range []struct{ epoch, digest, wantDigest, wantTicket uint64 }{
		{1, 7, 7, 1},
		{5, 7, 7, 0}, // replays have advanced the count
		{1, 1000 + calls - 1, 1000 + calls - 1, 0},
		{9, 1010, 1010, 0},
		{9, 1009, 0, 0}, // too old
	} {
		call, ticket := l.CallOf(&kernels.Report{Epoch: row.epoch, Digest: row.digest})
		if call.Digest != row.wantDigest || ticket != row.wantTicket {
			t.Errorf("CallOf(epoch %d, digest %d) = digest %d, ticket %d; want digest %d, ticket %d",
				row.epoch, row.digest, call.Digest, ticket, row.wantDigest, row.wantTicket)
		}
	}
}

// TestCallOfFindsSplitCalls looks up calls that were split into several launches, each of which has
// its own number.
func TestCallOfFindsSplitCalls(t *testing.T) {
	var l Launches
	large, small := &driver.Call{Digest: 1}, &driver.Call{Digest: 2}
	l.Add(small, 1, 1)
	l.Add(large, 2, 3*lastLaunchCount)
	l.Add(small, 3, 1)
	l.Add(large, 4, 3)
	const last = 1 + 3*lastLaunchCount + 1 + 3
	for epoch, want := range map[uint64]uint64{
		last: 4, last - 2: 4, last - 3: 3, last - 4: 2, last - lastLaunchCount + 1: 2,
	} {
		digest := large.Digest
		if want == 3 {
			digest = small.Digest
		}

		call, ticket := l.CallOf(&kernels.Report{Epoch: epoch, Digest: digest})
		if call.Digest != digest || ticket != want {
			t.Errorf("CallOf(epoch %d, digest %d) = digest %d, ticket %d; want ticket %d", epoch, digest,
				call.Digest, ticket, want)
		}
	}
}
