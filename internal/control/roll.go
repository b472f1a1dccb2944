package control

import (
	"context"
	"fmt"
	"maps"
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
func (r Roll) Absent() []int { return Absent(r.Store, r.others(), r.key) }

func (r Roll) others() []int {
	return slices.Delete(slices.Clone(r.Group.Ranks), r.Group.Rank, r.Group.Rank+1)
}

// Absent lists those of some ranks whose keys are not in the store, or, where it does not answer,
// the rank that serves it, if one does. It waits for none.
func Absent(store driver.Store, ranks []int, key func(rank int) string) []int {
	absent, _ := read(store, ranks, key)
	return absent
}

// read is Absent, and what the others have said: the values of their keys.
func read(
	store driver.Store, ranks []int, key func(rank int) string,
) (absent []int, said map[int]string) {
	s, ok := store.(comparer)
	if !ok {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), looking)
	defer cancel()
	said = map[int]string{}
	for _, rank := range ranks {
		// A comparison that stores nothing tells a missing key from an empty value.
		probe := []byte("?")
		got, err := s.CompareSet(ctx, key(rank), probe, probe)
		switch server, ok := store.(served); {
		case err == nil && string(got) == string(probe):
			absent = append(absent, rank)
		case err == nil:
			said[rank] = Printable(string(got))
		case ok && server.ServedBy() >= 0:
			rank = server.ServedBy()
			return []int{rank}, map[int]string{rank: "serves the store, which does not answer"}
		default:
			return absent, said
		}
	}
	return absent, said
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
// all have, of those that awaited returns, whom this rank waits for. Before it does so it tells the
// others whom it waits for, so that their warnings can say that. It goes on until stop is called,
// which waits for a warning that is under way.
func (r Roll) WarnLate(late driver.Late, awaited func() []int) (stop func()) {
	find := func() ([]int, map[int]string) {
		absent, said := read(r.Store, r.others(), r.key)
		if len(absent) == 0 {
			absent = awaited()
		}
		maps.DeleteFunc(said, func(rank int, text string) bool {
			return text == "" || !slices.Contains(absent, rank)
		})
		r.waitFor(absent)
		return absent, said
	}
	early := driver.Late{After: late.After / 2, Warn: func(driver.LateWarning) {}}
	warning := driver.LateWarning{
		Group: r.Group.Name(), Doing: "meeting the ranks of group " + r.Group.Name(),
		Members: r.Group.Ranks,
	}
	stopEarly := WarnLate(early, warning, find)
	stopLate := WarnLate(late, warning, find)
	return func() { stopEarly(); stopLate() }
}

// waitFor tells the others whom this rank waits for.
func (r Roll) waitFor(ranks []int) {
	text := ""
	if len(ranks) > 0 {
		text = "is joining the group, and waits for " + driver.RanksOf(ranks, r.Group.Ranks)
	}
	ctx, cancel := context.WithTimeout(context.Background(), looking)
	defer cancel()
	_ = r.Store.Set(ctx, r.key(r.Group.Ranks[r.Group.Rank]), []byte(text))
}

// WarnLate is Roll.WarnLate for ranks that are found in another way, with what they are doing. The
// warning gets the time and the ranks.
func WarnLate(
	late driver.Late, warning driver.LateWarning, find func() ([]int, map[int]string),
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
			if warning.Ranks, warning.Activity = find(); len(warning.Ranks) > 0 {
				warning.Waited = waited.Round(time.Millisecond)
				late.Warn(warning)
			}
			next = late.Next(waited, 0)
		}
	}()
	return func() { close(stopping); <-done }
}
