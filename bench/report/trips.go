package report

// Trips holds the round trip between two cores before and after a run, in nanoseconds.
type Trips struct {
	Before float64 `json:"before_ns"`
	After  float64 `json:"after_ns"`
	// Mode classifies the two processors: "smt" (two threads of a core), "near" (they share a cache),
	// "far", "busy" (they run other work), "unknown" (there is only one), or "mixed" (the machine
	// changed during the run). Runs in the modes busy and mixed are not comparable.
	Mode string `json:"mode"`
}

// NewTrips classifies the machine by the round trips before and after a run.
func NewTrips(before, after float64) *Trips {
	mode := modeOf(before)
	if mode != modeOf(after) {
		mode = "mixed"
	}
	return &Trips{Before: before, After: after, Mode: mode}
}

// modeOf classifies a round trip. The limits are in the gaps between measured times: threads of one
// core take 46 to 82 ns, cores with a shared cache 91 to 160, others 230 to 540.
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
