//go:build race

package chaos

func init() { isRaceDetectorOn = true }
