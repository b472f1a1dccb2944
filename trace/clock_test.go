package trace

import (
	"testing"
	"time"
)

func (c *clock) countsTicks() bool { return c.maxTicksUntilReading > 0 }

// TestClockFollowsSystem compares the clock with the system's clock for long enough that the clock
// begins to count ticks.
func TestClockFollowsSystem(t *testing.T) {
	c := clock{start: time.Now()}
	var before, previous uint64
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		before = uint64(time.Since(c.start))
		got := c.now()
		after := uint64(time.Since(c.start))
		const tolerance = 5000
		if got+tolerance < before || got > after+tolerance {
			t.Fatalf("now() = %d ns; want %d to %d", got, before, after)
		}

		if got+tolerance < previous {
			t.Fatalf("now() = %d ns after %d ns; want no less", got, previous)
		}

		previous = got
	}
}

// TestClockMeasuresAnew simulates a jump of the processor's tick counter, which happens when a
// virtual machine is resumed.
func TestClockMeasuresAnew(t *testing.T) {
	c := clock{start: time.Now()}
	base := clockReading{ticks: 1000, elapsed: 0}
	c.addReading(base)
	c.addReading(clockReading{ticks: base.ticks + 20_000_000, elapsed: 10_000_000})
	if !c.countsTicks() || c.nanoseconds(2000) != 1000 {
		t.Fatalf("2,000 ticks at 2 GHz last %d ns with countsTicks() = %v; want 1,000 ns with true",
			c.nanoseconds(2000), c.countsTicks())
	}

	c.addReading(clockReading{ticks: base.ticks + 20_200_000, elapsed: 10_100_000})
	if !c.countsTicks() {
		t.Error("countsTicks() = false after even ticks; want true")
	}

	for name, ticks := range map[string]uint64{"forwards": 1 << 40, "backwards": 500} {
		moved := c
		moved.addReading(clockReading{ticks: ticks, elapsed: 10_200_000})
		if moved.countsTicks() {
			t.Errorf("countsTicks() = true after the counter jumped %s; want false", name)
		}
	}

	c.addReading(clockReading{ticks: base.ticks + 20_200_000, elapsed: 10_100_000})
	if !c.countsTicks() {
		t.Error("countsTicks() = false after the same reading twice; want true")
	}
}
