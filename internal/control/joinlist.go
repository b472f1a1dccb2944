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
// them waits for.
type JoinList struct {
	Store driver.Store
	Group driver.GroupConfig
}

// lookupTimeout bounds lookups in the store, and the polling of Blockers.
const lookupTimeout = 500 * time.Millisecond

func (l JoinList) keyOf(rank int) string {
	return "joining/" + strconv.Quote(l.Group.ID) + "/" + strconv.Itoa(rank)
}

// Add records that this rank has begun to join. Call it before a wait for other ranks.
func (l JoinList) Add(ctx context.Context) error {
	key := l.keyOf(l.Group.Ranks[l.Group.Rank])
	if err := l.Store.Set(ctx, key, l.encodeAwaited(nil)); err != nil {
		return fmt.Errorf("storing that this rank joins group %s: %w", l.Group.Name(), err)
	}

	return nil
}

// AbsentRanks lists the world ranks (numbers in the whole job) of members that have not begun to
// join. See FindAbsentRanks.
func (l JoinList) AbsentRanks() []int { return FindAbsentRanks(l.Store, l.otherRanks(), l.keyOf) }

func (l JoinList) otherRanks() []int {
	return slices.Delete(slices.Clone(l.Group.Ranks), l.Group.Rank, l.Group.Rank+1)
}

// FindAbsentRanks lists the ranks without a key in the store. It does not wait for them. If the
// store does not answer, FindAbsentRanks returns the rank that serves it, or nil if that is no
// rank.
func FindAbsentRanks(store driver.Store, ranks []int, key func(rank int) string) []int {
	absent, _ := readJoinKeys(store, ranks, key)
	return absent
}

const storeNotAnswering = "serves the store, which does not answer"

// readJoinKeys is FindAbsentRanks with the values of existing keys.
func readJoinKeys(
	store driver.Store, ranks []int, key func(rank int) string,
) (absent []int, stored map[int]string) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	stored = map[int]string{}
	for _, rank := range ranks {
		value, set, err := store.Peek(ctx, key(rank))
		switch server := store.ServedBy(); {
		case err != nil && server >= 0:
			return []int{server}, map[int]string{server: storeNotAnswering}
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

// TimeoutError returns the error of a join that timed out, about the ranks that have not begun to
// join. If all have begun, it lists the Blockers of the awaited ranks.
func (l JoinList) TimeoutError(waited time.Duration, awaited []int, err error) error {
	if isTooShort(waited, l.Group) {
		return AbsentError("joining group "+l.Group.Name(), l.Group, waited, nil, awaited, err)
	}

	absent := l.AbsentRanks()
	if len(absent) == 0 && len(awaited) > 0 {
		awaited = l.Blockers(awaited)
	}

	return AbsentError("joining group "+l.Group.Name(), l.groupWithMachines(), waited, absent,
		awaited, err)
}

// Blockers follows the stored waits from the awaited ranks, and returns the ranks that wait for no
// other rank or, for a cycle, awaited. All ranks time out at about the same time, so it waits
// briefly until the awaited ranks have stored their waits.
func (l JoinList) Blockers(awaited []int) []int {
	l.publishAwaited(awaited)
	deadline := time.Now().Add(lookupTimeout)
	for {
		_, stored := readJoinKeys(l.Store, l.otherRanks(), l.keyOf)
		hasNoWaits := func(rank int) bool { return len(l.parseWaits(stored[rank])) == 0 }
		if !slices.ContainsFunc(awaited, hasNoWaits) || time.Now().After(deadline) {
			return l.followWaits(awaited, stored)
		}

		time.Sleep(lookupTimeout / 20)
	}
}

func (l JoinList) followWaits(awaited []int, stored map[int]string) []int {
	var blockers []int
	visited := map[int]bool{l.Group.Ranks[l.Group.Rank]: true}
	for toVisit := slices.Clone(awaited); len(toVisit) > 0; toVisit = toVisit[1:] {
		rank := toVisit[0]
		if visited[rank] {
			continue
		}

		visited[rank] = true
		awaitedByRank := l.parseWaits(stored[rank])
		if len(awaitedByRank) == 0 {
			blockers = append(blockers, rank)
		}

		toVisit = append(toVisit, awaitedByRank...)
	}

	if len(blockers) == 0 {
		return awaited
	}

	slices.Sort(blockers)
	return blockers
}

// AbsentError returns the error of a wait that timed out, about the absent or else the awaited
// ranks, unless they had no time to arrive. If both lists are empty, it returns err.
func AbsentError(
	callText string, group driver.GroupConfig, waited time.Duration,
	absent, awaited []int, err error,
) error {
	if len(absent) == 0 {
		absent = awaited
	}

	if len(absent) == 0 {
		return err
	}

	if isTooShort(waited, group) {
		return fmt.Errorf("%w: %w", lateStartError(callText, waited, group), err)
	}

	return &driver.AbsentError{
		InCall: callText, Waited: waited.Round(time.Millisecond), Ranks: absent,
		Machines: group.MachinesOf(absent), Members: group.Ranks, Err: err,
	}
}

// StartWarnings warns of ranks that have not begun to join, at the times that schedule.Next
// returns. When all have begun, it warns of the awaited ranks. It stores these waits before each
// warning. stop waits for a warning in progress.
func (l JoinList) StartWarnings(schedule driver.Late, awaited func() []int) (stop func()) {
	findLate := func() ([]int, map[int]string) {
		absent, stored := readJoinKeys(l.Store, l.otherRanks(), l.keyOf)
		if len(absent) == 0 {
			absent = awaited()
		}

		l.publishAwaited(absent)
		return absent, l.describeActivities(absent, stored)
	}
	// Store this rank's waits before other ranks warn.
	early := driver.Late{After: schedule.After / 2, Warn: func(driver.LateWarning) {}}
	warning := driver.LateWarning{
		Group: l.Group.Name(), InCall: "joining group " + l.Group.Name(),
		Members: l.Group.Ranks,
	}
	stopStoring := WarnLate(early, warning, findLate)
	stopWarning := WarnLate(schedule, warning, findLate)
	return func() { stopStoring(); stopWarning() }
}

func (l JoinList) describeActivities(absent []int, stored map[int]string) map[int]string {
	activities := map[int]string{}
	for _, rank := range absent {
		if waits := l.parseWaits(stored[rank]); len(waits) > 0 {
			activities[rank] = "is joining the group, and waits for " +
				driver.RanksOf(waits, l.Group.Ranks)
		} else if rank == l.Store.ServedBy() && stored[rank] == storeNotAnswering {
			activities[rank] = storeNotAnswering
		}
	}

	return activities
}

func (l JoinList) publishAwaited(ranks []int) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	_ = l.Store.Set(ctx, l.keyOf(l.Group.Ranks[l.Group.Rank]), l.encodeAwaited(ranks))
}

const machinePrefix = "@"

func (l JoinList) encodeAwaited(awaited []int) []byte {
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
		_, stored := readJoinKeys(l.Store, l.otherRanks(), l.keyOf)
		for i, rank := range group.Ranks {
			group.Machines[i] = parseMachine(stored[rank])
		}
	}

	return group
}

// Machine returns the host name that a world rank has stored, or "".
func (l JoinList) Machine(rank int) string {
	_, stored := readJoinKeys(l.Store, []int{rank}, l.keyOf)
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

// WarnLate issues copies of warning, with the results of findLate and the time waited, at the times
// that schedule.Next returns until stop is called.
func WarnLate(
	schedule driver.Late, warning driver.LateWarning, findLate func() ([]int, map[int]string),
) (stop func()) {
	delay := schedule.Next(0, -1)
	if delay < 0 {
		return func() {}
	}

	stopping, done, begin := make(chan struct{}), make(chan struct{}), time.Now()
	go func() {
		defer close(done)
		for {
			select {
			case <-stopping:
				return
			case <-time.After(delay):
			}

			waited := time.Since(begin)
			if warning.Ranks, warning.Activity = findLate(); len(warning.Ranks) > 0 {
				warning.Waited = waited.Round(time.Millisecond)
				schedule.Warn(warning)
			}

			delay = schedule.Next(waited, 0)
		}
	}()
	return func() { close(stopping); <-done }
}
