package control

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"symmem/driver"
)

// Roll is the list of the ranks that have come to join a group, in the store: a rank that waits
// for one that waits for a third can name the third alone.
type Roll struct {
	// Store is shared by all ranks of the group.
	Store driver.Store
	// Group is the group.
	Group driver.GroupConfig
}

// looking bounds how long it may take to look who has come.
const looking = 500 * time.Millisecond

// comparer is a store that can be asked without waiting.
type comparer interface {
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)
}

// served is a store that may know which rank serves it.
type served interface{ ServedBy() int }

func (r Roll) key(rank int) string {
	return "roll/" + strconv.Quote(r.Group.ID) + "/" + strconv.Itoa(rank)
}

// Come notes that this rank has come. It is called before the rank waits for others.
func (r Roll) Come(ctx context.Context) error {
	if err := r.Store.Set(ctx, r.key(r.Group.Ranks[r.Group.Rank]), nil); err != nil {
		return fmt.Errorf("calling the roll of group %s: %w", r.Group.Name(), err)
	}
	return nil
}

// Absent lists the other world ranks of the group that have not come. It waits for none. Where the
// store does not answer it lists the rank that serves it, if one does.
func (r Roll) Absent() []int {
	me := r.Group.Ranks[r.Group.Rank]
	return slices.DeleteFunc(Absent(r.Store, r.Group.Ranks, r.key), func(rank int) bool {
		return rank == me
	})
}

// Absent lists those of some ranks whose keys are not in the store, or, where it does not answer,
// the rank that serves it, if one does. It waits for none.
func Absent(store driver.Store, ranks []int, key func(rank int) string) (absent []int) {
	s, ok := store.(comparer)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), looking)
	defer cancel()
	for _, rank := range ranks {
		// A comparison that stores nothing tells a missing key from an empty value.
		probe := []byte("?")
		got, err := s.CompareSet(ctx, key(rank), probe, probe)
		if err != nil {
			if server, ok := store.(served); ok && server.ServedBy() >= 0 {
				return []int{server.ServedBy()}
			}
			break
		}
		if string(got) == string(probe) {
			absent = append(absent, rank)
		}
	}
	return absent
}

// Absence is the error of a joining whose time is up: it names the ranks that have not come, or,
// if all have, those that this rank has waited for.
func (r Roll) Absence(waited time.Duration, awaited []int, err error) error {
	return Absence("meeting the ranks of group "+r.Group.Name(), r.Group.Ranks, waited, r.Absent(),
		awaited, err)
}

// Absence is the error of a wait whose time is up: it names the ranks that are known to be absent,
// or, if none is, those that were waited for.
func Absence(
	doing string, members []int, waited time.Duration, absent, awaited []int, err error,
) error {
	if len(absent) == 0 {
		absent = awaited
	}
	if len(absent) == 0 {
		return err
	}
	return &driver.AbsentError{
		Doing: doing, Waited: waited.Round(time.Millisecond), Ranks: absent, Members: members, Err: err,
	}
}

// WarnLate warns, at the times that late says, of the ranks of the group that have not come, or, if
// all have, of the one that awaited returns, which is negative for none. It goes on until
// stop is called, which waits for a warning that is under way.
func (r Roll) WarnLate(late driver.Late, awaited func() int) (stop func()) {
	return WarnLate(late, driver.LateWarning{
		Group: r.Group.Name(), Doing: "meeting the ranks of group " + r.Group.Name(),
		Members: r.Group.Ranks,
	}, func() []int {
		absent := r.Absent()
		if rank := awaited(); len(absent) == 0 && rank >= 0 {
			absent = []int{rank}
		}
		return absent
	})
}

// WarnLate is Roll.WarnLate for ranks that are found in another way. The warning gets the time and
// the ranks.
func WarnLate(
	late driver.Late, warning driver.LateWarning, absent func() []int,
) (stop func()) {
	next := late.Next(0, -1)
	if next < 0 {
		return func() {}
	}
	stopping, done, begin := make(chan struct{}), make(chan struct{}), time.Now()
	go func() {
		defer close(done)
		for {
			select {
			case <-stopping:
				return
			case <-time.After(next):
			}
			waited := time.Since(begin)
			if warning.Ranks = absent(); len(warning.Ranks) > 0 {
				warning.Waited = waited.Round(time.Millisecond)
				late.Warn(warning)
			}
			next = late.Next(waited, 0)
		}
	}()
	return func() { close(stopping); <-done }
}
