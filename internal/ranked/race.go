//go:build invariants && race

package ranked

import "runtime"

// hide hides the code between it and a call of show from the race detector.
func hide() { runtime.RaceDisable() }
func show() { runtime.RaceEnable() }
