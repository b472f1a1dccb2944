package launch

import (
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A supervisor decides when the ranks of a job get which signals. It handles events, and returns an
// order for each. The tests write both as text. For example, in a job with a grace period of 1 s:
//
//	event  order                   meaning
//	e1=7   "wait 1s"               Rank 1 exits with code 7. The grace period begins.
//	x      "terminated, wait 2s"   It has expired. The other ranks get SIGTERM, and 2 s to exit.
//	x      "killed"                These have expired, too. The other ranks get SIGKILL.
//	e0=137 ""                      Rank 0 exits. No order is needed.
//
// The other events are signals that the launcher itself receives, and the end of its context.

// handleEvent passes an event to a supervisor and returns its order. The events are:
//
//	e2=1  rank 2 exits with code 1; exitIndex is its position among the exits of ranks
//	x     the last wait expires
//	i     the launcher receives SIGINT
//	t     the launcher receives SIGTERM
//	c     the context is canceled
func handleEvent(t *testing.T, v *supervisor, event string, exitIndex int) order {
	t.Helper()
	switch event {
	case "x":
		return v.handleTimeout()
	case "c":
		return v.kill()
	case "i":
		return v.handleSignal(syscall.SIGINT)
	case "t":
		return v.handleSignal(syscall.SIGTERM)
	}

	e := Exit{exitIndex: exitIndex}
	if _, err := fmt.Sscanf(event, "e%d=%d", &e.Rank, &e.Code); err != nil {
		t.Fatal(err)
	}

	return v.handleExit(e)
}

// String returns the signal and the wait of an order. It omits the message.
func (o order) String() string {
	var words []string
	if o.signal != 0 {
		words = append(words, o.signal.String())
	}

	if o.wait != 0 {
		words = append(words, "wait "+o.wait.String())
	}

	return strings.Join(words, ", ")
}

// checkOrders passes events, separated by spaces, to a supervisor. It fails the test unless the
// supervisor returns the wanted order for each event, and all ranks have exited after the last one.
func checkOrders(t *testing.T, v *supervisor, events string, want []string) {
	t.Helper()
	for i, event := range strings.Fields(events) {
		if got := handleEvent(t, v, event, i).String(); got != want[i] {
			t.Fatalf("event %d, %s: got order %q, want %q", i, event, got, want[i])
		}
	}

	if v.phase != phaseDone {
		t.Fatalf("got phase %d after %s, want phase %d, done", v.phase, events, phaseDone)
	}
}

// TestSupervisor checks the orders for a job with three ranks. The grace period after the first
// failure is 1 s, and SIGKILL follows SIGTERM after 2 s.
func TestSupervisor(t *testing.T) {
	for name, c := range map[string]struct {
		events string
		want   []string // one order for each event
		code   int      // exit code of the job
	}{
		"no rank fails": {
			events: "e0=0 e1=0 e2=0",
			want:   []string{"", "", ""},
			code:   0,
		},
		"a failure starts the grace period": {
			events: "e1=7 e0=0 e2=0",
			want:   []string{"wait 1s", "", ""},
			code:   7,
		},
		"SIGTERM and SIGKILL follow the grace period": {
			events: "e1=7 x x e0=143 e2=137",
			want:   []string{"wait 1s", "terminated, wait 2s", "killed", "", ""},
			code:   7,
		},
		"a second failure does not restart the grace period": {
			events: "e1=7 e0=8 x e2=0",
			want:   []string{"wait 1s", "", "terminated, wait 2s", ""},
			code:   7,
		},
		"signals are forwarded": {
			events: "t i e0=0 e1=0 e2=0",
			want:   []string{"terminated", "interrupt", "", "", ""},
			code:   0,
		},
		"a second interrupt kills": {
			events: "i i e0=137 e1=137 e2=137",
			want:   []string{"interrupt", "killed", "", "", ""},
			code:   137,
		},
		"canceling the context kills": {
			events: "c e0=137 e1=137 e2=137",
			want:   []string{"killed", "", "", ""},
			code:   137,
		},
		"a wait that expires after the job does nothing": {
			events: "e0=0 e1=0 e2=0 x c",
			want:   []string{"", "", "", "", ""},
			code:   0,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newSupervisor(&Spec{Ranks: 3, Grace: time.Second, TermWait: 2 * time.Second})
			checkOrders(t, v, c.events, c.want)
			if got := v.result().Code; got != c.code {
				t.Fatalf("got exit code %d, want %d", got, c.code)
			}
		})
	}
}

// TestExternalSIGTERMIsFollowedBySIGKILL lets the launcher of two ranks receive SIGTERM. SIGKILL
// must follow after KillDelay, which is 3 s, unless all ranks exit before.
func TestExternalSIGTERMIsFollowedBySIGKILL(t *testing.T) {
	for name, c := range map[string]struct {
		events string
		want   []string // one order for each event
	}{
		"before a rank fails": {
			events: "t e1=143 x e0=137",
			want:   []string{"terminated, wait 3s", "", "killed", ""},
		},
		"after a rank has failed": {
			events: "e1=7 t t x e0=137",
			want:   []string{"wait 1s", "terminated, wait 3s", "terminated", "killed", ""},
		},
		"no rank fails": {
			events: "t e0=0 e1=0",
			want:   []string{"terminated, wait 3s", "", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := newSupervisor(&Spec{
				Ranks:     2,
				Grace:     time.Second,
				TermWait:  time.Second,
				KillDelay: 3 * time.Second,
			})
			checkOrders(t, v, c.events, c.want)
		})
	}
}

// TestRunningRanksAreAnnounced makes two of three ranks fail. The supervisor must print a message
// that announces the signals for the last rank, and then a message with each signal.
func TestRunningRanksAreAnnounced(t *testing.T) {
	v := newSupervisor(&Spec{Ranks: 3, Grace: 10 * time.Second, TermWait: 5 * time.Second})
	for i, step := range []struct {
		event string
		want  order
	}{
		{"e1=7", order{wait: announceDelay}},
		{"e0=2", order{}},
		{"x", order{
			wait: 8 * time.Second, // Grace without announceDelay
			message: "rank 1 (process 0) failed with code 7; other ranks are still running: they get " +
				"SIGTERM in 8s and SIGKILL 5s later",
		}},
		{"x", order{
			signal: syscall.SIGTERM, wait: 5 * time.Second,
			message: "sending SIGTERM to the remaining ranks",
		}},
		{"x", order{signal: syscall.SIGKILL, message: "sending SIGKILL to the remaining ranks"}},
	} {
		if got := handleEvent(t, v, step.event, i); got != step.want {
			t.Fatalf("event %d, %s: got %+v, want %+v", i, step.event, got, step.want)
		}
	}
}

// TestFirstExternalSignalIsRecorded checks that the result contains the first signal that the
// launcher received. A signal that it only sent to ranks does not count.
func TestFirstExternalSignalIsRecorded(t *testing.T) {
	v := newSupervisor(&Spec{Ranks: 2, Grace: time.Second, TermWait: time.Second})
	handleEvent(t, v, "e1=7", 0)
	handleEvent(t, v, "x", 1) // orders SIGTERM for rank 0
	if got := v.result().Signal; got != 0 {
		t.Errorf("Signal = %v without an external signal, want 0", got)
	}

	handleEvent(t, v, "i", 2)
	handleEvent(t, v, "t", 3)
	if got := v.result().Signal; got != syscall.SIGINT {
		t.Errorf("Signal = %v, want SIGINT", got)
	}
}

// TestFirstFailureDeterminesResult lets rank 1 exit with code 7, and then rank 0 with code 1: the
// exitIndex of rank 1 is smaller. The supervisor handles the exit of rank 0 first. The result must
// nevertheless have the code of rank 1.
func TestFirstFailureDeterminesResult(t *testing.T) {
	v := newSupervisor(&Spec{Ranks: 3})
	v.handleExit(Exit{Rank: 0, Code: 1, exitIndex: 2})
	v.handleExit(Exit{Rank: 1, Code: 7, exitIndex: 1})
	v.handleExit(Exit{Rank: 2, Code: 0, exitIndex: 0})
	if r := v.result(); r.FirstFailed != 1 || r.Code != 7 {
		t.Fatalf("result = %+v, want FirstFailed 1 and Code 7", r)
	}
}

// TestLinesKeepAllOutput writes parts of random length to a lineWriter, which puts the prefix "> "
// before each line. Its output must contain all lines that were written.
func TestLinesKeepAllOutput(t *testing.T) {
	// A lineWriter keeps at most maxPending bytes of an unfinished line.
	lengths := rapid.SampledFrom([]int{
		0, 1, 2, maxPending / 2, maxPending - 1, maxPending, maxPending + 1, 2*maxPending + 1,
	})
	ends := rapid.SampledFrom([]string{"", "\n", "\n\n", "\r\nx"})
	rapid.Check(t, func(t *rapid.T) {
		var out strings.Builder
		s := &sink{mu: &sync.Mutex{}, delay: testTimeout, destination: &out}
		l := &lineWriter{sink: s, prefix: "> "}
		text := "" // all parts
		for range rapid.IntRange(0, 4).Draw(t, "parts") {
			length := lengths.Draw(t, "length")
			part := strings.Repeat("y", length) + ends.Draw(t, "end")
			text += part
			if got, err := l.Write([]byte(part)); got != len(part) || err != nil {
				t.Fatalf("Write = %d, %v; want %d bytes and no error", got, err, len(part))
			}
		}

		l.flush()
		if want := wholeLines(text); out.String() != want {
			t.Fatalf("got %d bytes %.100q, want %d bytes %.100q",
				out.Len(), out.String(), len(want), want)
		}
	})
}

// wholeLines returns the lines of text with the prefix "> ". Each ends with a line feed.
func wholeLines(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("> " + strings.TrimSuffix(line, "\n") + "\n")
	}

	return b.String()
}
