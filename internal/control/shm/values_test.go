package shm

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/spin"
)

const unordered = false // argument of Named

// Tests in this file use newRankPair: two ranks in this process, whose planes are connected by
// join. Ranks gather the words of a named value in steps, from 1. For each name, a rank has a slot
// in memory that all ranks share. It writes its words for a step in one of two lines of the slot.

// TestGatherFailsOnInvalidData writes invalid data into the slot of rank 1 before rank 0 reads it.
// Rank 0 must report them, and must not wait for rank 1.
func TestGatherFailsOnInvalidData(t *testing.T) {
	for name, forge := range map[string]func(s *valueSlot){
		"a step far ahead": func(s *valueSlot) {
			spin.StoreRelease64(&s.lines[1].step, math.MaxUint64)
		},
		"a hash of a different name": func(s *valueSlot) {
			const wrongHash, step = 7, 1
			spin.StoreRelease64(&s.lines[step].digest, wrongHash)
			spin.StoreRelease64(&s.lines[step].step, step)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newRankPair(t)
			d.join()
			for _, p := range d.planes {
				_, err := p.Named("batch", unordered)
				check(t, err)
			}

			forge(&d.planes[1].ownBlock.values[0])
			n, err := d.planes[0].Named("batch", unordered)
			check(t, err)
			err = n.Gather(d.ctx, driver.Words{}, make([]driver.Words, 2))
			if err == nil || !strings.Contains(err.Error(), "rank 1 has written invalid data") {
				t.Errorf("got %v, want an error about invalid data of rank 1", err)
			}

			if d.planes[0].Cause() == nil {
				t.Error("Gather left the plane open, want it to fail")
			}
		})
	}
}

// TestInvalidNameSizesAreIgnored writes invalid sizes into all slots of rank 1. Rank 0 must not
// read beyond the names, but wait until its timeout.
func TestInvalidNameSizesAreIgnored(t *testing.T) {
	d := newRankPair(t)
	d.join()
	b := d.planes[1].ownBlock
	for i := range b.values {
		spin.StoreRelease64(&b.values[i].size, math.MaxUint64-uint64(i))
	}

	// Pretend that rank 1 waits for the value in slot 4. A status of 0 would mean none.
	spin.StoreRelease64(&b.status.value, 4+1)
	n, err := d.planes[0].Named("batch", unordered)
	check(t, err)
	ctx, cancel := context.WithTimeout(d.ctx, 50*time.Millisecond) // rank 1 never takes part
	defer cancel()
	err = n.Gather(ctx, driver.Words{}, make([]driver.Words, 2))
	var late *driver.TimeoutError
	if !errors.As(err, &late) {
		t.Errorf("Gather = %v, want a TimeoutError", err)
	}
}

// TestTimeoutMentionsValueOfLateRank lets the ranks wait for values with different names, as if
// their programs had diverged. Rank 0 times out. Its error must name the value for which rank 1
// waits, and rank 1 must fail because of this fault.
func TestTimeoutMentionsValueOfLateRank(t *testing.T) {
	d := newRankPair(t)
	d.join()
	names := [2]string{"prefill", "decode"} // by rank
	errs := d.runOnBoth(func(rank int) error {
		n, err := d.planes[rank].Named(names[rank], unordered)
		if err != nil {
			return err
		}

		ctx := d.ctx
		if rank == 0 {
			// Time out only after rank 1 has begun to wait.
			for d.planes[1].ownBlock.describeValue() == "" && ctx.Err() == nil {
				runtime.Gosched()
			}

			shortCtx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			ctx = shortCtx
		}

		return n.Gather(ctx, driver.Words{}, make([]driver.Words, 2))
	})
	var late *driver.TimeoutError
	if !errors.As(errs[0], &late) {
		t.Fatalf("rank 0 got %v, want a TimeoutError", errs[0])
	}

	if want := `in value "decode" for`; !strings.Contains(late.Activity[1], want) {
		t.Errorf("rank 0 reports that rank 1 is %q, want a text with %q", late.Activity[1], want)
	}

	if !errors.Is(errs[1], driver.ErrFault) {
		t.Errorf("rank 1 got %v, want ErrFault", errs[1])
	}
}
