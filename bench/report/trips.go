package report

// Trips holds the round-trip times between two cores before and after a run, in nanoseconds.
type Trips struct {
	Before float64 `json:"before_ns"`
	After  float64 `json:"after_ns"`
	// Mode is "smt" if the processors are threads of one core, "near" if they share a cache, "far"
	// if they share none, "busy" if they do other work, "unknown" if there is only one processor, or
	// "mixed" if it changed during the run.
	Mode string `json:"mode"`
}

// NewTrips determines the mode.
func NewTrips(before, after float64) *Trips {
	mode := modeOf(before)
	if mode != modeOf(after) {
		mode = "mixed"
	}

	return &Trips{Before: before, After: after, Mode: mode}
}

// modeOf relies on measured times: 46 to 82 ns between threads of one core, 91 to 160 ns with a
// shared cache, and 230 to 540 ns without one.
func modeOf(ns float64) string {
	switch {
	case ns <= 0:
		return "unknown"
	case ns < 82:
		return "smt"
	case ns < 200:
		return "near"
	case ns < 700:
		return "far"
	default:
		return "busy"
	}
}
