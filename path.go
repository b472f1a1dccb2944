package symmem

import (
	"context"
	"fmt"
	"strings"

	"symmem/driver"
	"symmem/internal/tuning"
)

// PathChoice says who chooses the path of collectives whose buffers lie in windows.
type PathChoice int

// The path choices.
const (
	// PathDefault is what SYMMEM_PATH says, else PathAuto.
	PathDefault PathChoice = iota
	// PathAuto leaves it to the tuning table.
	PathAuto
	// PathPlain takes the plain path always.
	PathPlain
	// PathWindow takes the window path wherever it can be taken.
	PathWindow
)

var pathNames = []string{"default", "auto", "plain", "window"}

// String returns the choice's name.
func (c PathChoice) String() string {
	if c >= 0 && int(c) < len(pathNames) {
		return pathNames[c]
	}
	return "PathChoice(?)"
}

// ParsePathChoice reads a name as String writes it.
func ParsePathChoice(name string) (PathChoice, error) {
	for i, n := range pathNames {
		if n == name {
			return PathChoice(i), nil
		}
	}
	return 0, invalid("path %q is none of %s", name, strings.Join(pathNames, ", "))
}

// SetPath changes who chooses the path of the group's collectives from now on, for benchmarks and
// for finding out what is slow; Options.Path is what a group starts with. Graphs that were captured
// before keep their paths. It is collective over the group, and every rank gives the same choice.
func (g *Group) SetPath(ctx context.Context, c PathChoice) error {
	if c <= PathDefault || c > PathWindow {
		return invalid("path choice %v on group %s", c, g.id)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.agree(ctx, "path "+c.String()); err != nil {
		return fmt.Errorf("setting the path of group %s: %w", g.id, err)
	}
	g.choice.Store(int32(c))
	g.state.Lock()
	defer g.state.Unlock()
	g.epoch.Add(1) // every prepared plan is stale
	return nil
}

// reason is what decided on a path. It is made without work; String does it.
type reason struct {
	where string         // where the buffers lie, if they lie in windows
	text  string         // the rest, or what links it to the table's
	table *tuning.Reason // if the table decided
}

// String is the reason as a sentence.
func (r reason) String() string {
	if r.table == nil {
		return r.where + r.text
	}
	return r.where + r.text + r.table.String()
}

// prefer chooses the path of a call whose buffers lie in windows. The choice depends only on the
// call, on the terms that ranks connected on, and on SetPath, so all ranks choose alike. Whether it
// works in place is alike on all ranks, too, where its buffers lie at the same places: a part that
// lies at one place on all ranks is in place on one rank at most, and check refuses the overlap on
// the others.
func (g *Group) prefer(call *driver.Call) (driver.Path, reason) {
	if err := g.comm.Windowed(call); err != nil {
		return driver.PathPlain, reason{text: "but they cannot take the window path: " + err.Error()}
	}
	switch choice := PathChoice(g.choice.Load()); choice {
	case PathPlain:
		return driver.PathPlain, reason{text: "but the group is set to the plain path"}
	case PathWindow:
		return driver.PathWindow, reason{text: "and the group is set to the window path"}
	default:
	}
	send, recv := call.Spans(len(g.ranks))
	path, why := g.tuning.Choose(
		call.Operation.String(), g.inPlace(call), g.shape, max(send, recv))
	if path == tuning.Window {
		return driver.PathWindow, reason{text: "and ", table: &why}
	}
	return driver.PathPlain, reason{text: "but ", table: &why}
}
