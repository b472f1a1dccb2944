//go:build invariants && !race

package ranked

// disableRaceDetector and enableRaceDetector do nothing without the race detector.
func disableRaceDetector() {}
func enableRaceDetector()  {}
