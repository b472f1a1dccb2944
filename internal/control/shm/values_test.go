package shm

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/spin"
)

// TestAValueThatCannotBeIsNotBelieved forges what rank 1 has in shared memory.
func TestAValueThatCannotBeIsNotBelieved(t *testing.T) {
	for name, forge := range map[string]func(s *valueSlot){
		"a step that is far ahead": func(s *valueSlot) {
			spin.StoreRelease64(&s.lines[1].step, math.MaxUint64)
		},
		"a line of another name": func(s *valueSlot) {
			spin.StoreRelease64(&s.lines[1].digest, 7)
			spin.StoreRelease64(&s.lines[1].step, 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDuo(t)
			d.join()
			for _, p := range d.planes {
				_, err := p.Named("batch", false)
				check(t, err)
			}
			forge(&d.planes[1].me.values[0])
			n, err := d.planes[0].Named("batch", false)
			check(t, err)
			err = n.Gather(d.ctx, driver.Words{}, make([]driver.Words, 2))
			if err == nil || !strings.Contains(err.Error(), "rank 1 has written what it cannot have") {
				t.Errorf("got %v", err)
			}
			if d.planes[0].Cause() == nil {
				t.Error("the plane goes on")
			}
		})
	}
}

// TestNamesThatCannotBeAreNotRead has rank 1 claim names that are longer than there is room.
func TestNamesThatCannotBeAreNotRead(t *testing.T) {
	d := newDuo(t)
	d.join()
	b := d.planes[1].me
	for i := range b.values {
		spin.StoreRelease64(&b.values[i].size, math.MaxUint64-uint64(i))
	}
	spin.StoreRelease64(&b.status.value, 5)
	n, err := d.planes[0].Named("batch", false)
	check(t, err)
	ctx, cancel := context.WithTimeout(d.ctx, 50*time.Millisecond)
	defer cancel()
	var late *driver.TimeoutError
	if err := n.Gather(ctx, driver.Words{}, make([]driver.Words, 2)); !errors.As(err, &late) {
		t.Errorf("got %v, want a TimeoutError", err)
	}
}

// TestALateRankIsSaidToWaitForAnotherValue: ranks that have gone different ways mostly wait under
// different names.
func TestALateRankIsSaidToWaitForAnotherValue(t *testing.T) {
	d := newDuo(t)
	d.join()
	errs := d.both(func(rank int) error {
		n, err := d.planes[rank].Named([]string{"prefill", "decode"}[rank], false)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(d.ctx, time.Duration(100+900*rank)*time.Millisecond)
		defer cancel()
		return n.Gather(ctx, driver.Words{}, make([]driver.Words, 2))
	})
	var late *driver.TimeoutError
	if !errors.As(errs[0], &late) || !strings.Contains(late.Activity[1], `in value "decode" for`) {
		t.Errorf("got %v", errs[0])
	}
	if !errors.Is(errs[1], driver.ErrFault) {
		t.Errorf("the other rank: got %v", errs[1])
	}
}
