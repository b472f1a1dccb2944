package control

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"symmem/driver"
)

// JoinList is the list, in the store, of the ranks that have begun to join a group. With it a rank
// that waits for a second one, which waits for a third, can name the third alone.
type JoinList struct {
	// Store is shared by all ranks of the group.
	Store driver.Store
	// Group is the group.
	Group driver.GroupConfig
}

// lookupTimeout bounds how long it may take to look who has come.
const lookupTimeout = 500 * time.Millisecond

func (r JoinList) key(rank int) string {
	return "joining/" + strconv.Quote(r.Group.ID) + "/" + strconv.Itoa(rank)
}

// Add stores that this rank has begun to join. It is called before the rank waits for others.
func (r JoinList) Add(ctx context.Context) error {
	if err := r.Store.Set(ctx, r.key(r.Group.Ranks[r.Group.Rank]), nil); err != nil {
		return fmt.Errorf("storing that this rank joins group %s: %w", r.Group.Name(), err)
	}
	return nil
}

// Absent lists the other world ranks of the group that have not come. It waits for none. Where the
// store does not answer it lists the rank that serves it, if one does.
func (r JoinList) Absent() []int { return Absent(r.Store, r.others(), r.key) }

func (r JoinList) others() []int {
	return slices.Delete(slices.Clone(r.Group.Ranks), r.Group.Rank, r.Group.Rank+1)
}

// Absent lists those of some ranks whose keys are not in the store, or, where it does not answer,
// the rank that serves it, if one does. It waits for none.
func Absent(store driver.Store, ranks []int, key func(rank int) string) []int {
	absent, _ := readAbsent(store, ranks, key)
	return absent
}

// readAbsent is Absent, and returns the values of the keys of the others, too.
func readAbsent(
	store driver.Store, ranks []int, key func(rank int) string,
) (absent []int, said map[int]string) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	said = map[int]string{}
	for _, rank := range ranks {
		value, there, err := store.Peek(ctx, key(rank))
		switch server := store.ServedBy(); {
		case err != nil && server >= 0:
			return []int{server}, map[int]string{server: "serves the store, which does not answer"}
		case err != nil:
			return absent, said
		case there:
			said[rank] = Printable(string(value))
		default:
			absent = append(absent, rank)
		}
	}
	return absent, said
}

// AbsentError returns the error of a joining whose time is up: it names the ranks that have not
// come, or, if all have, the ranks that hold up those that this rank has waited for.
func (r JoinList) AbsentError(waited time.Duration, awaited []int, err error) error {
	absent := r.Absent()
	if len(absent) == 0 && len(awaited) > 0 {
		awaited = r.Blockers(awaited)
	}
	return AbsentError("meeting the ranks of group "+r.Group.Name(), r.Group.Ranks, waited, absent,
		awaited, err)
}

// Blockers follows the waits that ranks have stored from some ranks to those that wait for no
// other: these hold up the rest. Where ranks wait for each other it returns the ranks it was given.
// It first stores that this rank waits for them, and waits a moment for them to do the same, since
// the time of all of them is up at about once.
func (r JoinList) Blockers(awaited []int) []int {
	r.publishAwaited(awaited)
	deadline := time.Now().Add(lookupTimeout)
	for {
		_, said := readAbsent(r.Store, r.others(), r.key)
		silent := func(rank int) bool { return len(r.waitsIn(said[rank])) == 0 }
		if !slices.ContainsFunc(awaited, silent) || time.Now().After(deadline) {
			return r.follow(awaited, said)
		}
		time.Sleep(lookupTimeout / 20)
	}
}

// follow returns the ranks at the ends of the waits that begin at some ranks.
func (r JoinList) follow(from []int, said map[int]string) []int {
	var ends []int
	seen := map[int]bool{r.Group.Ranks[r.Group.Rank]: true}
	for next := slices.Clone(from); len(next) > 0; next = next[1:] {
		rank := next[0]
		if seen[rank] {
			continue
		}
		seen[rank] = true
		waits := r.waitsIn(said[rank])
		if len(waits) == 0 {
			ends = append(ends, rank)
		}
		next = append(next, waits...)
	}
	if len(ends) == 0 {
		return from
	}
	slices.Sort(ends)
	return ends
}

// AbsentError returns the error of a wait whose time is up: it names the ranks that are known to be
// absent, or, if none is, those that were waited for.
func AbsentError(
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

// WarnLate warns, at the times that late gives, of the ranks of the group that have not come. If
// all have, it warns of those that awaited returns, for which this rank waits. Before a warning it
// stores for which ranks it waits, so that the warnings of others can say that. It warns until stop
// is called, which waits for a warning that is under way.
func (r JoinList) WarnLate(late driver.Late, awaited func() []int) (stop func()) {
	find := func() ([]int, map[int]string) {
		absent, said := readAbsent(r.Store, r.others(), r.key)
		if len(absent) == 0 {
			absent = awaited()
		}
		r.publishAwaited(absent)
		return absent, r.activities(absent, said)
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

// activities returns what absent ranks have stored about their own waits, in words.
func (r JoinList) activities(absent []int, said map[int]string) map[int]string {
	doing := map[int]string{}
	for _, rank := range absent {
		if waits := r.waitsIn(said[rank]); len(waits) > 0 {
			doing[rank] = "is joining the group, and waits for " +
				driver.RanksOf(waits, r.Group.Ranks)
		} else if rank == r.Store.ServedBy() && said[rank] != "" {
			doing[rank] = said[rank]
		}
	}
	return doing
}

// publishAwaited stores for which ranks this rank waits, as their numbers with spaces in between.
func (r JoinList) publishAwaited(ranks []int) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	text := strings.Trim(fmt.Sprint(ranks), "[]")
	_ = r.Store.Set(ctx, r.key(r.Group.Ranks[r.Group.Rank]), []byte(text))
}

// waitsIn reads what publishAwaited has stored. It skips what is no rank of the group.
func (r JoinList) waitsIn(text string) (ranks []int) {
	for _, field := range strings.Fields(text) {
		rank, err := strconv.Atoi(field)
		if err == nil && slices.Contains(r.Group.Ranks, rank) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// WarnLate is JoinList.WarnLate for ranks that are found in another way, with what they are doing.
// The warning gets the time and the ranks.
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
