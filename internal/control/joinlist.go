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

// JoinList records in the store which ranks have begun to join a group, and which ranks each of
// them waits for. If rank 0 waits for rank 1, which waits for rank 2, rank 0 can thus report that
// only rank 2 is missing.
type JoinList struct {
	Store driver.Store
	Group driver.GroupConfig
}

// lookupTimeout bounds each lookup in the store, and the time that Blockers polls.
const lookupTimeout = 500 * time.Millisecond

func (l JoinList) key(rank int) string {
	return "joining/" + strconv.Quote(l.Group.ID) + "/" + strconv.Itoa(rank)
}

// Add records that this rank has begun to join. Call it before waiting for other ranks.
func (l JoinList) Add(ctx context.Context) error {
	if err := l.Store.Set(ctx, l.key(l.Group.Ranks[l.Group.Rank]), l.entry(nil)); err != nil {
		return fmt.Errorf("storing that this rank joins group %s: %w", l.Group.Name(), err)
	}
	return nil
}

// Absent lists the world ranks of the other members that have not begun to join. If the store does
// not answer, the result is the rank that serves the store, if any.
func (l JoinList) Absent() []int { return Absent(l.Store, l.others(), l.key) }

func (l JoinList) others() []int {
	return slices.Delete(slices.Clone(l.Group.Ranks), l.Group.Rank, l.Group.Rank+1)
}

// Absent lists the ranks whose keys are not in the store, without waiting for them. If the store
// does not answer, the result is the rank that serves the store, if any.
func Absent(store driver.Store, ranks []int, key func(rank int) string) []int {
	absent, _ := readAbsent(store, ranks, key)
	return absent
}

const silentStore = "serves the store, which does not answer"

// readAbsent implements Absent, and returns the values of the existing keys by rank.
func readAbsent(
	store driver.Store, ranks []int, key func(rank int) string,
) (absent []int, stored map[int]string) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	stored = map[int]string{}
	for _, rank := range ranks {
		value, set, err := store.Peek(ctx, key(rank))
		switch server := store.ServedBy(); {
		case err != nil && server >= 0:
			return []int{server}, map[int]string{server: silentStore}
		case err != nil:
			return absent, stored
		case set:
			stored[rank] = Printable(string(value))
		default:
			absent = append(absent, rank)
		}
	}
	return absent, stored
}

// AbsentError returns the error of a join that timed out. The error lists the ranks that have not
// begun to join. If all have begun, the error lists the Blockers of the awaited ranks.
func (l JoinList) AbsentError(waited time.Duration, awaited []int, err error) error {
	absent := l.Absent()
	if len(absent) == 0 && len(awaited) > 0 {
		awaited = l.Blockers(awaited)
	}
	return AbsentError("joining group "+l.Group.Name(), l.groupWithMachines(), waited, absent,
		awaited, err)
}

// Blockers stores which ranks this rank awaits. It then follows the stored waits from the awaited
// ranks, and returns the ranks that wait for no other rank. If the waits form a cycle, Blockers
// returns awaited. All ranks time out at about the same time, so Blockers first waits briefly until
// the awaited ranks have stored their waits.
func (l JoinList) Blockers(awaited []int) []int {
	l.publishAwaited(awaited)
	deadline := time.Now().Add(lookupTimeout)
	for {
		_, stored := readAbsent(l.Store, l.others(), l.key)
		silent := func(rank int) bool { return len(l.parseWaits(stored[rank])) == 0 }
		if !slices.ContainsFunc(awaited, silent) || time.Now().After(deadline) {
			return l.follow(awaited, stored)
		}
		time.Sleep(lookupTimeout / 20)
	}
}

func (l JoinList) follow(awaited []int, stored map[int]string) []int {
	var blockers []int
	seen := map[int]bool{l.Group.Ranks[l.Group.Rank]: true}
	for next := slices.Clone(awaited); len(next) > 0; next = next[1:] {
		rank := next[0]
		if seen[rank] {
			continue
		}
		seen[rank] = true
		waits := l.parseWaits(stored[rank])
		if len(waits) == 0 {
			blockers = append(blockers, rank)
		}
		next = append(next, waits...)
	}
	if len(blockers) == 0 {
		return awaited
	}
	slices.Sort(blockers)
	return blockers
}

// AbsentError returns the error of a wait that timed out. The error lists the absent ranks or, if
// there are none, the awaited ranks. If both lists are empty, AbsentError returns err.
func AbsentError(
	doing string, group driver.GroupConfig, waited time.Duration, absent, awaited []int, err error,
) error {
	if len(absent) == 0 {
		absent = awaited
	}
	if len(absent) == 0 {
		return err
	}
	return &driver.AbsentError{
		InCall: doing, Waited: waited.Round(time.Millisecond), Ranks: absent,
		Machines: group.MachinesOf(absent), Members: group.Ranks, Err: err,
	}
}

// WarnLate warns of ranks that have not begun to join, at the times that late determines. When all
// have begun, WarnLate warns of the ranks that awaited returns. Before each warning, WarnLate
// stores which ranks this rank waits for. stop waits for a warning in progress.
func (l JoinList) WarnLate(late driver.Late, awaited func() []int) (stop func()) {
	find := func() ([]int, map[int]string) {
		absent, stored := readAbsent(l.Store, l.others(), l.key)
		if len(absent) == 0 {
			absent = awaited()
		}
		l.publishAwaited(absent)
		return absent, l.activities(absent, stored)
	}
	early := driver.Late{After: late.After / 2, Warn: func(driver.LateWarning) {}}
	warning := driver.LateWarning{
		Group: l.Group.Name(), InCall: "joining group " + l.Group.Name(),
		Members: l.Group.Ranks,
	}
	stopEarly := WarnLate(early, warning, find)
	stopLate := WarnLate(late, warning, find)
	return func() { stopEarly(); stopLate() }
}

func (l JoinList) activities(absent []int, stored map[int]string) map[int]string {
	doing := map[int]string{}
	for _, rank := range absent {
		if waits := l.parseWaits(stored[rank]); len(waits) > 0 {
			doing[rank] = "is joining the group, and waits for " +
				driver.RanksOf(waits, l.Group.Ranks)
		} else if rank == l.Store.ServedBy() && stored[rank] == silentStore {
			doing[rank] = silentStore
		}
	}
	return doing
}

func (l JoinList) publishAwaited(ranks []int) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	_ = l.Store.Set(ctx, l.key(l.Group.Ranks[l.Group.Rank]), l.entry(ranks))
}

const machinePrefix = "@"

func (l JoinList) entry(awaited []int) []byte {
	return []byte(machinePrefix + HostName() + " " + strings.Trim(fmt.Sprint(awaited), "[]"))
}

func parseMachine(text string) string {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return ""
	}
	name, _ := strings.CutPrefix(fields[0], machinePrefix)
	return name
}

func (l JoinList) groupWithMachines() driver.GroupConfig {
	group := l.Group
	if group.Machines == nil {
		group.Machines = make([]string, len(group.Ranks))
		_, stored := readAbsent(l.Store, l.others(), l.key)
		for i, rank := range group.Ranks {
			group.Machines[i] = parseMachine(stored[rank])
		}
	}
	return group
}

// Machine returns the host name that a world rank has stored, or "".
func (l JoinList) Machine(rank int) string {
	_, stored := readAbsent(l.Store, []int{rank}, l.key)
	return parseMachine(stored[rank])
}

func (l JoinList) parseWaits(text string) (ranks []int) {
	for _, field := range strings.Fields(text) {
		rank, err := strconv.Atoi(field)
		if err == nil && slices.Contains(l.Group.Ranks, rank) {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// WarnLate issues warnings at the times that late determines, until stop is called. Each warning is
// a copy of warning with the results of find and the time waited.
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
