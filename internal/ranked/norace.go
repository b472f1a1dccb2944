//go:build invariants && !race

package ranked

func disableRaceDetector() {}
func enableRaceDetector()  {}
