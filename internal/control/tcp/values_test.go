package tcp

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"symmem/driver"
)

func value(name string, step uint64) message {
	return message{kind: kindValue, step: step, payload: encodeWords(driver.Words{step}, name)}
}

func TestValuesComeOneAfterTheOther(t *testing.T) {
	tooMany := []message{}
	for i := range driver.MaxValueNames + 1 {
		tooMany = append(tooMany, value(fmt.Sprint(i), 1))
	}
	fault := message{kind: kindFail, step: 1, payload: make([]byte, failBytes)}
	for name, c := range map[string]struct {
		messages []message
		good     int // how many are taken
	}{
		"in order under each name":  {[]message{value("a", 1), value("b", 1), value("a", 2)}, 3},
		"a step that is left out":   {[]message{value("a", 1), value("a", 3)}, 1},
		"a step that comes twice":   {[]message{value("a", 1), value("a", 1)}, 1},
		"a first step that is none": {[]message{value("a", 0)}, 0},
		"a rank that runs ahead":    {[]message{value("a", 1), value("a", 2), value("a", 3)}, 2},
		"too many names":            {tooMany, driver.MaxValueNames},
		"after a fault":             {[]message{fault, value("a", 7)}, 2},
	} {
		t.Run(name, func(t *testing.T) { takes(t, c.messages, c.good) })
	}
}

// TestWhatARankHadSeenCompleteIsKnownAfterItsFault: who misses a third rank waits on for it then.
func TestWhatARankHadSeenCompleteIsKnownAfterItsFault(t *testing.T) {
	r := rankRecord{}
	for _, m := range []message{
		value("a", 1),
		{kind: kindComplete, step: 1, payload: []byte("a")},
		{kind: kindComplete, step: 9, payload: []byte(strings.Repeat("unknown", 9))},
		{kind: kindFail, step: 1, payload: make([]byte, failBytes)},
	} {
		if err := r.apply(m, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]bool{"a": true, "b": false} {
		if got := r.state(&waiting{name: name, step: 1}, time.Now()).Completed; got != want {
			t.Errorf("%s: completed is %v", name, got)
		}
	}
}
