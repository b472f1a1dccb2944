//go:build invariants && race

package ranked

import "runtime"

// disableRaceDetector hides the code between it and a call of enableRaceDetector from the race
// detector.
func disableRaceDetector() { runtime.RaceDisable() }
func enableRaceDetector()  { runtime.RaceEnable() }
