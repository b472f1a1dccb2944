package report

import "testing"

func TestNewTripsMode(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after float64
		want          string
	}{
		{"two threads of one core", 50, 81, "smt"},
		{"shared cache", 105, 110, "near"},
		{"separate caches", 260, 460, "far"},
		{"other work", 900, 5000, "busy"},
		{"changed processors", 105, 460, "mixed"},
		{"one processor", 0, 0, "unknown"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := NewTrips(c.before, c.after).Mode; got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
