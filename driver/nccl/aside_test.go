package nccl

import (
	"context"
	"errors"
	"testing"
	"time"

	"symmem/internal/cuda"
)

// TestWorkOfTheDevicesOwnThatDoesNotComeIsLeft: it is waited for up to its limit, and what comes
// after it does not wait.
func TestWorkOfTheDevicesOwnThatDoesNotComeIsLeft(t *testing.T) {
	d := newTeam(t, 1, time.Minute).mates[0].device
	err := d.do(func() error {
		never, err := d.words.take(d.cuda)
		if err != nil {
			return err
		}
		defer never.set(1)
		err = d.aside.runFor(d, time.Millisecond, func(on cuda.Stream) error {
			return d.cuda.StreamWaitValue(on, never.address(), 1, cuda.WaitEqual)
		})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("work that does not come: %v", err)
		}
		next, err := d.words.take(d.cuda)
		if err != nil {
			return err
		}
		defer d.words.put(next)
		err = d.aside.run(d, func(on cuda.Stream) error {
			return d.cuda.StreamWriteValue(on, next.address(), 1)
		})
		if next.value() != 1 {
			t.Error("the word was not written")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
