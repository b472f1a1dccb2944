//go:build invariants && race

package ranked

import "runtime"

// hide and show hide the code between them from the race detector.
func hide() { runtime.RaceDisable() }
func show() { runtime.RaceEnable() }
