package symmem

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"symmem/driver"
)

// rankLists compares the rank lists that ranks pass when they join a group.
type rankLists struct {
	store      driver.Store
	rank, size int // in the world
}

func ranksKey(id string, rank int) string {
	return fmt.Sprintf("ranks/%q/%d", id, rank)
}

// announce stores the rank list that this rank passes for a group, and compares it with the list
// that the lowest of these ranks has stored, if any. If the store does not respond within the
// timeout, the error names the rank that serves it.
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
		Doing: "storing which ranks join", Waited: time.Since(begun).Round(time.Millisecond),
		Ranks: []int{server}, Members: ranks, Err: err,
		Activity: map[int]string{server: "serves the store, which does not answer"},
	}
}

// differ returns an error if another rank has passed a different rank list for the group. It is
// called after a failure, because the backend may report this mistake as something else.
func (l *rankLists) differ(id string, ranks []int) error {
	ctx, cancel := context.WithTimeout(context.Background(), endDelay/2)
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
