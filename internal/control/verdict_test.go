package control

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"symmem/driver"
)

// ours is a group in which this rank is the first. World ranks differ from group ranks.
var ours = driver.GroupConfig{ID: " ours", Ranks: []int{7, 5, 3}}

// verdict is the expected error of a case: its kind, and the world ranks that it names.
type verdict struct {
	kind  string
	ranks []int
}

func verdictOf(err error) verdict {
	var lost *driver.RankLostError
	var peer *driver.PeerError
	var deadlock *driver.DeadlockError
	var late *driver.TimeoutError
	switch {
	case err == nil:
		return verdict{kind: "none"}
	case errors.As(err, &lost):
		return verdict{"lost", lost.Ranks}
	case errors.As(err, &peer) && peer.Aborted:
		return verdict{"aborted", peer.Ranks}
	case errors.As(err, &peer):
		return verdict{"peer", peer.Ranks}
	case errors.As(err, &deadlock):
		v := verdict{kind: "deadlock"}
		for _, r := range ours.Ranks {
			if deadlock.Elsewhere[r] != "" {
				v.ranks = append(v.ranks, r)
			}
		}
		return v
	case errors.As(err, &late):
		return verdict{"late", late.Missing}
	default:
		return verdict{kind: err.Error()}
	}
}

const (
	early  = time.Second
	tooFar = time.Minute
)

// judged is one case of TestVerdicts: a wait in collective 3, unless the case sets another.
type judged struct {
	name      string
	question  WaitStatus
	me, b, c  RankState // c has arrived unless a case changes it
	want      verdict
	elsewhere string
}

var none = verdict{kind: "none"}

var (
	atWork   = WaitStatus{Collective: 3, Work: true, FailedFor: -1}
	exchange = WaitStatus{Exchange: true}
)

func with(q WaitStatus, change func(*WaitStatus)) WaitStatus {
	change(&q)
	return q
}

var verdicts = []judged{
	{name: "all ranks have arrived", want: none},
	{name: "a rank has not arrived yet", b: RankState{Missing: true}, want: none},
	{
		name: "a rank is late", question: WaitStatus{Waited: tooFar}, b: RankState{Missing: true},
		want: verdict{"late", []int{5}},
	},
	{
		name: "two ranks are late", question: WaitStatus{Waited: tooFar},
		b: RankState{Missing: true}, c: RankState{Missing: true},
		want: verdict{"late", []int{5, 3}},
	},
	{
		name: "the caller's deadline", question: WaitStatus{DeadlinePassed: true},
		b:    RankState{Missing: true},
		want: verdict{"late", []int{5}},
	},
	{
		name:     "the timeout has passed and all have arrived",
		question: WaitStatus{DeadlinePassed: true, Waited: tooFar},
		want:     none,
	},
	{
		name:     "messages of other ranks are unread",
		question: WaitStatus{Waited: tooFar, Stale: true},
		b:        RankState{Missing: true}, want: none,
	},
	{
		name: "a rank ends without leaving", b: RankState{Missing: true, Lost: true},
		want: verdict{"lost", []int{5}},
	},
	{
		name: "a rank arrives and ends", b: RankState{Lost: true}, c: RankState{Missing: true},
		want: none,
	},
	{
		name: "a rank leaves without arriving", b: RankState{Missing: true, Left: true},
		want: verdict{"deadlock", []int{5}}, elsewhere: "has left the group",
	},
	{
		name: "a rank leaves without coming, and its process ends",
		b:    RankState{Missing: true, Left: true, Lost: true},
		want: verdict{"deadlock", []int{5}}, elsewhere: "has left the group",
	},
	{
		name: "a rank leaves without coming, and another dies",
		b:    RankState{Missing: true, Left: true}, c: RankState{Missing: true, Lost: true},
		want: verdict{"lost", []int{3}},
	},
	{
		name: "a rank arrives and leaves", b: RankState{Left: true, Lost: true},
		c:    RankState{Missing: true},
		want: none,
	},
	{
		name: "a rank is late and another has failed", question: WaitStatus{Waited: tooFar},
		b: RankState{Missing: true}, c: RankState{Failed: FailedItself},
		want: verdict{"peer", []int{3}},
	},
	{
		name: "a rank has failed and another ends", b: RankState{Missing: true, Lost: true},
		c: RankState{Failed: FailedItself}, want: verdict{"lost", []int{5}},
	},
	{
		name: "a rank that has failed has left",
		b:    RankState{Missing: true, Failed: FailedItself, Left: true},
		want: verdict{"peer", []int{5}},
	},
	{
		name: "a rank has failed after another rank's fault",
		b:    RankState{Missing: true, Failed: FailedAfterPeer},
		c:    RankState{Missing: true, Failed: FailedItself}, want: verdict{"peer", []int{3}},
	},
	{
		name: "the first fault is unknown",
		b:    RankState{Missing: true, Failed: FailedAfterPeer},
		want: verdict{"peer", []int{5}},
	},
	{
		name: "a rank was told to abort", b: RankState{Missing: true, Failed: Aborted},
		want: verdict{"aborted", []int{5}},
	},
	{
		name: "a rank aborts and its process ends",
		b:    RankState{Missing: true, Failed: Aborted, Lost: true},
		want: verdict{"aborted", []int{5}},
	},
	{
		name: "a rank has failed and all have arrived", b: RankState{Failed: FailedItself}, want: none,
	},
	{
		name: "a rank that has failed had seen this step complete",
		b:    RankState{Failed: FailedItself, Completed: true}, c: RankState{Missing: true},
		want: none,
	},
	{
		name: "this rank has failed", question: WaitStatus{Cause: errors.New("ours")},
		b: RankState{Missing: true, Lost: true}, want: verdict{kind: "ours"},
	},
	{
		name:     "this rank failed in a step that another had seen complete",
		question: WaitStatus{Cause: errors.New("ours")},
		b:        RankState{Failed: FailedItself, Completed: true}, c: RankState{Missing: true},
		want: none,
	},
	{
		name:     "this rank left in a step that another had seen complete",
		question: WaitStatus{Cause: errors.New("ours"), Closed: true},
		b:        RankState{Failed: FailedItself, Completed: true}, c: RankState{Missing: true},
		want: verdict{kind: "ours"},
	},
	{
		name: "here in a collective, there in an exchange", me: RankState{Exchanges: 1},
		b: RankState{Missing: true, InExchange: 2, Submitted: 2}, want: verdict{"deadlock", []int{5}},
		elsewhere: "in an agreement for 0s, after 2 collectives",
	},
	{
		name: "this rank has reached the exchange", me: RankState{Exchanges: 2},
		b: RankState{Missing: true, InExchange: 2, Submitted: 2}, want: none,
	},
	{
		name: "there in an exchange after the collective", me: RankState{Exchanges: 1},
		b: RankState{Missing: true, InExchange: 2, Submitted: 3}, want: none,
	},
	{
		name: "here in an exchange, there in a collective", question: exchange,
		me: RankState{Submitted: 3},
		b: RankState{
			Missing: true, InCollective: 4, Operation: driver.AllGather, Waited: 2 * time.Second,
		},
		want: verdict{"deadlock", []int{5}}, elsewhere: "in AllGather 4 for 2s",
	},
	{
		name: "this rank has launched the collective", question: exchange,
		me: RankState{Submitted: 4}, b: RankState{Missing: true, InCollective: 4}, want: none,
	},
	{
		name:     "a tolerant wait continues after faults",
		question: WaitStatus{IgnoreFaults: true, Cause: errors.New("ours")},
		b:        RankState{Missing: true, Failed: FailedItself}, want: none,
	},
	{
		name: "a tolerant wait ignores lost ranks", question: WaitStatus{IgnoreFaults: true},
		b: RankState{Missing: true, Lost: true}, want: verdict{"lost", []int{5}},
	},
	{
		name: "work: all have launched it and one ends", question: atWork, b: RankState{Lost: true},
		want: verdict{"lost", []int{5}},
	},
	{
		name: "work: a rank that has launched it has left and ended", question: atWork,
		b: RankState{Left: true, Lost: true}, want: none,
	},
	{
		name: "work: a rank has left without it and ended", question: atWork,
		b: RankState{Missing: true, Left: true, Lost: true}, want: verdict{"deadlock", []int{5}},
	},
	{
		name: "work: a rank that has launched it has just failed", question: atWork,
		b: RankState{Failed: FailedItself}, want: none,
	},
	{
		name:     "work: a rank that has launched it failed some time ago",
		question: with(atWork, func(q *WaitStatus) { q.FailedFor = Grace }),
		b:        RankState{Failed: FailedItself}, want: verdict{"peer", []int{5}},
	},
	{
		name: "work: a rank has failed without it", question: atWork,
		b: RankState{Missing: true, Failed: FailedItself}, want: verdict{"peer", []int{5}},
	},
	{
		name: "work that needs no other rank", question: WaitStatus{Work: true, Waited: tooFar},
		b: RankState{Missing: true, Lost: true, Failed: FailedItself}, want: none,
	},
	{
		name:     "work that needs no other rank, and a fault of this one",
		question: WaitStatus{Work: true, Cause: errors.New("ours")}, want: verdict{kind: "ours"},
	},
}

func TestVerdicts(t *testing.T) {
	for _, c := range verdicts {
		t.Run(c.name, func(t *testing.T) {
			q := c.question
			q.Group, q.Timeout = ours, tooFar
			q.Doing = func() string { return "the wait" }
			if !q.Exchange && !q.Work {
				q.Collective = 3
			}
			err := Judge(&q, []RankState{c.me, c.b, c.c}).Err
			got := verdictOf(err)
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(verdict{})); diff != "" {
				t.Fatalf("%v: %s", err, diff)
			}
			var deadlock *driver.DeadlockError
			if errors.As(err, &deadlock) && c.elsewhere != "" && deadlock.Elsewhere[5] != c.elsewhere {
				t.Errorf("world rank 5 %q, want %q", deadlock.Elsewhere[5], c.elsewhere)
			}
		})
	}
}

// TestWarningsOfLateRanks calls Judge with given times instead of waiting.
func TestWarningsOfLateRanks(t *testing.T) {
	enabled := driver.Late{After: 30 * time.Second, Warn: func(driver.LateWarning) {}}
	missing, minute := RankState{Missing: true}, time.Minute
	for _, c := range []struct {
		name               string
		waited, warned     time.Duration
		late               driver.Late
		row                RankState
		ignoreFaults, want bool
	}{
		{"not yet", 29 * time.Second, -1, enabled, missing, false, false},
		{"after half a minute", 30 * time.Second, -1, enabled, missing, false, true},
		{"not again at once", 31 * time.Second, time.Second, enabled, missing, false, false},
		{"not within a minute", 89 * time.Second, 59 * time.Second, enabled, missing, false, false},
		{"a minute later", 90 * time.Second, minute, enabled, missing, false, true},
		{"an earlier wait caused a warning", 30 * time.Second, minute, enabled, missing, false, true},
		{"not if no rank is missing", minute, -1, enabled, RankState{}, false, false},
		{"not without a callback", minute, -1, driver.Late{After: 1}, missing, false, false},
		{"not if disabled", minute, -1, driver.Late{Warn: enabled.Warn}, missing, false, false},
		{"not if ranks may be absent", minute, -1, enabled, missing, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := WaitStatus{
				Group: ours, Collective: 3,
				Doing:  func() string { return "AllReduce 3 of group ours" },
				Waited: c.waited, Timeout: time.Hour, Late: c.late, Warned: c.warned,
				IgnoreFaults: c.ignoreFaults,
			}
			v := Judge(&q, []RankState{{}, c.row, {}})
			if v.Err != nil || (v.Warning != nil) != c.want {
				t.Fatalf("got %+v, want a warning: %v", v, c.want)
			}
			if !c.want {
				return
			}
			want := &driver.LateWarning{
				Group: "ours", Doing: "AllReduce 3 of group ours", Waited: c.waited,
				Ranks:    []int{5},
				Activity: map[int]string{5: "in no call of this group, after 0 collectives"},
				Members:  ours.Ranks,
			}
			if diff := cmp.Diff(want, v.Warning); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTimeUntilTheNextWarning(t *testing.T) {
	l := driver.Late{After: 30 * time.Second, Warn: func(driver.LateWarning) {}}
	for _, c := range []struct{ waited, since, want time.Duration }{
		{0, -1, 30 * time.Second},
		{31 * time.Second, -1, 0},
		{40 * time.Second, 10 * time.Second, 50 * time.Second},
		{time.Second, 2 * time.Second, 29 * time.Second},
	} {
		if got := l.Next(c.waited, c.since); got != c.want {
			t.Errorf("after %v, %v since the last: %v, want %v", c.waited, c.since, got, c.want)
		}
	}
}

func TestActivities(t *testing.T) {
	for want, r := range map[string]RankState{
		"in no call of this group, after 7 collectives": {Submitted: 7},
		"in an agreement for 3s, after 7 collectives": {
			Submitted: 7, InExchange: 4, Waited: 3 * time.Second,
		},
		"in Broadcast 7 for 3s": {
			Submitted: 7, InCollective: 7, Operation: driver.Broadcast, InExchange: 4,
			Waited: 3 * time.Second,
		},
		"has left the group":       {Submitted: 7, InExchange: 4, Left: true},
		"in Operation(?) 9 for 3s": {InCollective: 9, Operation: 200, Waited: 3 * time.Second},
	} {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestInterruptedWaitNamesMissingRanks(t *testing.T) {
	q := WaitStatus{Group: ours, Doing: func() string { return "work" }, Waited: early}
	states := []RankState{{}, {Missing: true}, {}}
	err := Interrupted(&q, states, context.DeadlineExceeded)
	if got := verdictOf(err); got.kind != "late" || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a deadline: %v", err)
	}
	const cancelled = "work: waited 1s for world rank 5 (rank 1 of the group); " +
		"world rank 5: in no call of this group, after 0 collectives: context canceled"
	if err := Interrupted(&q, states, context.Canceled); err.Error() != cancelled ||
		verdictOf(err).kind == "late" {
		t.Errorf("cancelled: %v", err)
	}
	err = Interrupted(&q, make([]RankState, 3), context.Canceled)
	if err.Error() != "work: context canceled" {
		t.Errorf("with no rank missing: %v", err)
	}
}

func TestPeerFailure(t *testing.T) {
	for name, c := range map[string]struct {
		row  RankState
		want verdict
	}{
		"dead":              {RankState{Lost: true, Failed: FailedItself}, verdict{"lost", []int{5}}},
		"failed":            {RankState{Failed: FailedItself}, verdict{"peer", []int{5}}},
		"aborted and ended": {RankState{Failed: Aborted, Lost: true}, verdict{"aborted", []int{5}}},
		"left and ended":    {RankState{Left: true, Lost: true}, verdict{"deadlock", []int{5}}},
	} {
		err := PeerFailure(ours, []RankState{{}, c.row, {}}, "launching")
		if diff := cmp.Diff(c.want, verdictOf(err), cmp.AllowUnexported(verdict{})); diff != "" {
			t.Errorf("%s: %v: %s", name, err, diff)
		}
	}
}

func TestReasonOf(t *testing.T) {
	for want, err := range map[Reason]error{
		NotFailed: nil, FailedItself: errors.New("a GPU"), Aborted: driver.ErrAborted,
		FailedAfterPeer: &driver.PeerError{Aborted: true},
	} {
		if got := ReasonOf(err); got != want {
			t.Errorf("%v: reason %d, want %d", err, got, want)
		}
	}
}
