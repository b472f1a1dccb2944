//go:build race

package chaos

func init() { raceDetector = true }
