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

// Ranks gather words (numbers) under a name. Each rank posts its words to a slot in shared memory.

const unordered = false // argument of Named

// gather takes part in the next step of the value "batch" on a rank.
func (d *rankPair) gather(ctx context.Context, rank int) error {
	d.t.Helper()
	value, err := d.planes[rank].Named("batch", unordered)
	check(d.t, err)
	return value.Gather(ctx, driver.Words{}, make([]driver.Words, 2))
}

func TestGatherFailsOnInvalidData(t *testing.T) {
	const firstStep = 1
	for name, forge := range map[string]func(l *line){
		"a step far ahead": func(l *line) {
			spin.StoreRelease64(&l.step, math.MaxUint64)
		},
		"a hash of a different name": func(l *line) {
			const wrongHash = 7
			spin.StoreRelease64(&l.digest, wrongHash)
			spin.StoreRelease64(&l.step, firstStep)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newRankPair(t)
			d.join()
			for _, p := range d.planes {
				_, err := p.Named("batch", unordered) // uses the first slot
				check(t, err)
			}

			slot := &d.planes[1].ownBlock.values[0]
			forge(&slot.lines[firstStep])
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

// An invalid size must not make another rank read beyond the name.
func TestInvalidNameSizesAreIgnored(t *testing.T) {
	d := newRankPair(t)
	d.join()
	block := d.planes[1].ownBlock
	for i := range block.values {
		spin.StoreRelease64(&block.values[i].size, math.MaxUint64-uint64(i))
	}

	const awaitedSlot = 4
	spin.StoreRelease64(&block.status.value, awaitedSlot+1) // 0 means none
	ctx, cancel := context.WithTimeout(d.ctx, 50*time.Millisecond)
	defer cancel()
	err := d.gather(ctx, 0)
	var late *driver.TimeoutError
	if !errors.As(err, &late) {
		t.Errorf("Gather = %v, want a TimeoutError", err)
	}
}

// The ranks wait for different values, as if their programs had diverged.
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

// awaitValueWait returns when rank 1 waits for a value or d.ctx is done.
func (d *rankPair) awaitValueWait() {
	for d.planes[1].ownBlock.describeValue() == "" && d.ctx.Err() == nil {
		runtime.Gosched()
	}
}
