//go:build invariants && race

package ranked

import "runtime"

// disableRaceDetector hides the following code from the race detector, until enableRaceDetector is
// called.
func disableRaceDetector() { runtime.RaceDisable() }
func enableRaceDetector()  { runtime.RaceEnable() }
