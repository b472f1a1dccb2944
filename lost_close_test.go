package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"symmem/driver"
	"symmem/internal/rendezvous"
)

// endedRanks is a rankWatcher for a world in which the given ranks have ended.
type endedRanks struct {
	rankWatcher
	ended []*rendezvous.EndedError
}

func (w *endedRanks) AwaitEnded(
	ctx context.Context, _ []int, enough func([]*rendezvous.EndedError) bool,
) []*rendezvous.EndedError {
	if !enough(w.ended) {
		<-ctx.Done()
	}

	return w.ended
}

// waitingDevice is a Device whose Close waits until a rank is lost, but at most for a duration.
type waitingDevice struct {
	driver.Device
	atMost time.Duration
	lost   chan []int
}

func (d *waitingDevice) RanksLost(ranks []int) { d.lost <- ranks }

func (d *waitingDevice) Close() error {
	select {
	case ranks := <-d.lost:
		return &driver.TimeoutError{InCall: fmt.Sprint("ending a group with rank ", ranks)}
	case <-time.After(d.atMost):
		return nil
	}
}

// TestCloseLearnsOfLostRanks closes a device that waits for other ranks. If one of them dies, Close
// must end with its name. If one leaves in order, Close must keep waiting.
func TestCloseLearnsOfLostRanks(t *testing.T) {
	for _, hasLeft := range []bool{false, true} {
		m := &rankMonitor{watcher: &endedRanks{ended: []*rendezvous.EndedError{
			{Rank: 1, HasLeft: hasLeft, Description: "rank 1 has ended"},
		}}}
		d := &waitingDevice{atMost: time.Minute, lost: make(chan []int, 1)}
		if hasLeft {
			d.atMost = 50 * time.Millisecond
		}

		err := m.closeDevice(d, 2)
		var lost *RankLostError
		switch {
		case hasLeft && err != nil:
			t.Errorf("rank 1 has left: Close = %v, want nil", err)
		case !hasLeft && (!errors.As(err, &lost) || !slices.Equal(lost.Ranks, []int{1})):
			t.Errorf("rank 1 has died: Close = %v, want a RankLostError that names it", err)
		}
	}
}
