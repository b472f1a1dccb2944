package report

// Trips holds the round-trip times between two cores before and after a run, in nanoseconds.
type Trips struct {
	Before float64 `json:"before_ns"`
	After  float64 `json:"after_ns"`
	// Mode classifies the two processors. They may be two threads of one core ("smt"), share a
	// cache ("near"), share no cache ("far"), or be busy with other work ("busy"). "unknown" means
	// that there is only one processor, and "mixed" that the class changed during the run. Busy and
	// mixed runs are not comparable.
	Mode string `json:"mode"`
}

// NewTrips returns Trips whose mode is derived from the times before and after a run.
func NewTrips(before, after float64) *Trips {
	mode := modeOf(before)
	if mode != modeOf(after) {
		mode = "mixed"
	}
	return &Trips{Before: before, After: after, Mode: mode}
}

// modeOf classifies a round-trip time. The limits lie between the measured ranges: 46 to 82 ns for
// threads of one core, 91 to 160 ns for cores that share a cache, and 230 to 540 ns for cores that
// do not.
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
