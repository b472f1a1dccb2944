package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem/driver"
)

type rankLists struct {
	store      driver.Store
	rank, size int // in the world
}

func ranksKey(id string, rank int) string {
	return fmt.Sprintf("ranks/%q/%d", id, rank)
}

// announce stores this rank's list for a group and compares it with that of the lowest rank, if
// stored. If the store does not respond in time, the AbsentError names the rank that serves it.
func (l *rankLists) announce(
	ctx context.Context, id string, ranks []int, timeout time.Duration,
) error {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := l.store.Set(ctx, ranksKey(id, l.rank), []byte(fmt.Sprint(ranks)))
	if err == nil {
		return l.compare(ctx, id, ranks, slices.Min(ranks))
	}

	server := l.store.ServedBy()
	if server < 0 || !errors.Is(err, context.DeadlineExceeded) {
		return nil // joining the group reports the cause
	}

	return &AbsentError{
		InCall: "storing which ranks join", Waited: time.Since(begun).Round(time.Millisecond),
		Ranks: []int{server}, Members: ranks, Err: err,
		Activity: map[int]string{server: "serves the store, which does not answer"},
	}
}

// findDifference returns an error if another rank has passed a different list.
func (l *rankLists) findDifference(id string, ranks []int) error {
	ctx, cancel := context.WithTimeout(context.Background(), endDetectionDelay/2)
	defer cancel()
	for rank := range l.size {
		if err := l.compare(ctx, id, ranks, rank); err != nil {
			return err
		}
	}

	return nil
}

func (l *rankLists) compare(ctx context.Context, id string, ranks []int, rank int) error {
	stored, ok, err := l.store.Peek(ctx, ranksKey(id, rank))
	if own := fmt.Sprint(ranks); err == nil && ok && string(stored) != own {
		return invalid("rank %d passed the ranks %.1000s, but this rank passed %s: all must pass "+
			"the same ranks in the same order", rank, stored, own)
	}

	return nil
}
