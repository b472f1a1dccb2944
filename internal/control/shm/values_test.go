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

// Ranks gather words (numbers) under a name: each rank posts its words to a slot in shared memory
// and reads the other ranks' words.

const unordered = false // argument of Named: collectives may run during a Gather

const lateTimeout = 50 * time.Millisecond // of a Gather that another rank never joins

// gather takes part in the next step of the value "batch" on a rank.
func (pair *rankPair) gather(ctx context.Context, rank int) error {
	pair.t.Helper()
	value, err := pair.planes[rank].Named("batch", unordered)
	check(pair.t, err)
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
			pair := newRankPair(t)
			pair.join()
			for _, p := range pair.planes {
				_, err := p.Named("batch", unordered) // takes values[0]
				check(t, err)
			}

			slot := &pair.planes[1].ownBlock.values[0]
			forge(&slot.lines[firstStep])
			err := pair.gather(pair.ctx, 0)
			if err == nil || !strings.Contains(err.Error(), "rank 1 has written invalid data") {
				t.Errorf("got %v, want an error about invalid data of rank 1", err)
			}

			if pair.planes[0].Cause() == nil {
				t.Error("Gather left the plane open, want it to fail")
			}
		})
	}
}

// A rank with invalid sizes does not make another rank read beyond a name.
func TestInvalidNameSizesAreIgnored(t *testing.T) {
	pair := newRankPair(t)
	pair.join()
	block := pair.planes[1].ownBlock
	for i := range block.values {
		wrongSize := math.MaxUint64 - uint64(i)
		spin.StoreRelease64(&block.values[i].size, wrongSize)
	}

	const anySlot = 4
	spin.StoreRelease64(&block.status.value, 1+anySlot) // 0 means that rank 1 awaits no value
	ctx, cancel := context.WithTimeout(pair.ctx, lateTimeout)
	defer cancel()
	err := pair.gather(ctx, 0)
	var late *driver.TimeoutError
	if !errors.As(err, &late) {
		t.Errorf("Gather = %v, want a TimeoutError", err)
	}
}

// The ranks wait for different values, as if their programs had diverged.
func TestTimeoutMentionsValueOfLateRank(t *testing.T) {
	pair := newRankPair(t)
	pair.join()
	names := [2]string{"prefill", "decode"} // by rank
	errs := pair.runOnBoth(func(rank int) error {
		value, err := pair.planes[rank].Named(names[rank], unordered)
		if err != nil {
			return err
		}

		ctx := pair.ctx
		if rank == 0 {
			pair.awaitValueWait()
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, lateTimeout)
			defer cancel()
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

// awaitValueWait returns when rank 1 waits for a value or pair.ctx is done.
func (pair *rankPair) awaitValueWait() {
	for pair.planes[1].ownBlock.describeValue() == "" && pair.ctx.Err() == nil {
		runtime.Gosched()
	}
}
