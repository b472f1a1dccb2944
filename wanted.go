package symmem

import (
	"context"

	"symmem/driver"
)

// useWindows makes the windows of the backend's library, if calls may take them. It is collective,
// and depends on nothing but the group's terms and SetPath.
func (g *Group) useWindows(ctx context.Context) error {
	lazy, ok := g.comm.(driver.LazyWindows)
	if !ok || !g.takesWindows() {
		return nil
	}
	return lazy.UseWindows(ctx)
}

func (g *Group) takesWindows() bool {
	switch PathChoice(g.choice.Load()) {
	case PathWindow:
		return true
	case PathPlain:
		return false
	default:
		barrier := driver.Call{Operation: driver.Barrier}
		return g.tuning.TakesWindows(g.shape, g.comm.Direct(&barrier) == nil)
	}
}
