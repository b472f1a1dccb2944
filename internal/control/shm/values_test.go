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

// Ranks of a group gather small data, called words, under a name. Suppose that ranks 0 and 1 gather
// the words of the value "batch":
//
//   - Each rank has slots in memory that both ranks share. Each rank uses its slot 0 for "batch".
//   - In step 1, each rank writes its words into its slot, with the number of the step and a hash
//     of the name. Then it waits until the other's slot contains the same number, and reads the
//     words.
//   - In step 2, each rank does so again. It uses one of two lines of its slot for odd steps, and
//     the other for even steps.
//
// The tests use newRankPair: two ranks in this process, whose planes are connected by join.

const unordered = false // argument of Named

// gather takes part in the next step of the value "batch" on a rank, with words that are zero.
func (d *rankPair) gather(ctx context.Context, rank int) error {
	d.t.Helper()
	value, err := d.planes[rank].Named("batch", unordered)
	check(d.t, err)
	return value.Gather(ctx, driver.Words{}, make([]driver.Words, 2))
}

// TestGatherFailsOnInvalidData writes invalid data into the slot of rank 1 before rank 0 reads it.
// Rank 0 must report them, and must not wait for rank 1.
func TestGatherFailsOnInvalidData(t *testing.T) {
	for name, forge := range map[string]func(s *valueSlot){
		"a step far ahead": func(s *valueSlot) {
			spin.StoreRelease64(&s.lines[1].step, math.MaxUint64)
		},
		"a hash of a different name": func(s *valueSlot) {
			const wrongHash, step = 7, 1
			line := &s.lines[step]
			spin.StoreRelease64(&line.digest, wrongHash)
			spin.StoreRelease64(&line.step, step)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newRankPair(t)
			d.join()
			for _, p := range d.planes { // writes the name into the slots
				_, err := p.Named("batch", unordered)
				check(t, err)
			}

			forge(&d.planes[1].ownBlock.values[0])
			err := d.gather(d.ctx, 0)
			if err == nil || !strings.Contains(err.Error(), "rank 1 has written invalid data") {
				t.Errorf("got %v, want an error about invalid data of rank 1", err)
			}

			if d.planes[0].Cause() == nil {
				t.Error("Gather left the plane open, want it to fail")
			}
		})
	}
}

// TestInvalidNameSizesAreIgnored writes invalid sizes of names into all slots of rank 1. Rank 0
// must not read beyond the names, but wait until its timeout.
func TestInvalidNameSizesAreIgnored(t *testing.T) {
	d := newRankPair(t)
	d.join()
	block := d.planes[1].ownBlock
	for i := range block.values {
		spin.StoreRelease64(&block.values[i].size, math.MaxUint64-uint64(i))
	}

	// The status says for which slot rank 1 waits: 1 plus its number, or 0 for none.
	const awaitedSlot = 4
	spin.StoreRelease64(&block.status.value, awaitedSlot+1)
	ctx, cancel := context.WithTimeout(d.ctx, 50*time.Millisecond) // rank 1 never takes part
	defer cancel()
	err := d.gather(ctx, 0)
	var late *driver.TimeoutError
	if !errors.As(err, &late) {
		t.Errorf("Gather = %v, want a TimeoutError", err)
	}
}

// TestTimeoutMentionsValueOfLateRank lets rank 0 wait for the value "prefill" and rank 1 for the
// value "decode", as if their programs had diverged. Rank 0 times out. Its error must name the
// value for which rank 1 waits, and rank 1 must fail because of this fault.
func TestTimeoutMentionsValueOfLateRank(t *testing.T) {
	d := newRankPair(t)
	d.join()
	names := [2]string{"prefill", "decode"} // by rank
	errs := d.runOnBoth(func(rank int) error {
		value, err := d.planes[rank].Named(names[rank], unordered)
		if err != nil {
			return err
		}

		ctx := d.ctx
		if rank == 0 {
			d.awaitValueWait()
			shortCtx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			ctx = shortCtx
		}

		return value.Gather(ctx, driver.Words{}, make([]driver.Words, 2))
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

// awaitValueWait returns when rank 1 waits for a value, or when d.ctx has ended.
func (d *rankPair) awaitValueWait() {
	for d.planes[1].ownBlock.describeValue() == "" && d.ctx.Err() == nil {
		runtime.Gosched()
	}
}
