package symmem_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"symmem"
	"symmem/driver"
)

// directTable writes a table in which sums on symmetric buffers go direct up to 16 KiB and others
// up to 4 KiB, and all else takes the window path up to 32 KiB.
func directTable(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "direct.json")
	text := `{"version": 4, "device": "box", "otherwise": "plain", "rules": [
		{"operation": "AllReduce", "ranks": 2, "machines": 1, "memory": "symmetric", "steps": [
			{"up_to": "16KiB", "path": "direct"}, {"path": "other"}]},
		{"memory": "any", "steps": [{"up_to": "4KiB", "path": "direct"}, {"path": "other"}]},
		{"operation": "AllReduce", "ranks": 2, "machines": 1, "steps": [
			{"up_to": "32KiB", "path": "window"}, {"path": "plain"}]}]}`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// exchange answers as a backend does whose exchange memory holds 8 KiB: longer messages go direct
// over windows alone, and products not at all.
func exchange(call *driver.Call) error {
	send, _ := call.Spans(2)
	switch windows := call.SendWindow != nil && call.RecvWindow != nil; {
	case call.ReduceOp == driver.Prod:
		return fmt.Errorf("no kernel for prod: %w", driver.ErrUnsupported)
	case send > 8<<10 && !windows:
		return fmt.Errorf("8KiB of exchange memory: %w", driver.ErrUnsupported)
	}
	return nil
}

// everything can take a path.
func everything(*driver.Call) error { return nil }

// directRow is a call, the path that it takes and why; TABLE stands for what the table says.
type directRow struct {
	name   string
	choice symmem.PathChoice
	// windows reports whether both buffers lie in some.
	windows   bool
	op        symmem.ReduceOp
	bytes     int64
	path, why string
}

const (
	inside  = "both buffers lie in windows of the group, "
	outside = "the send buffer is in no window of the group"
	says    = "TABLE says "
	none    = ": not supported by this backend"
)

var directRows = []directRow{
	{
		"symmetric buffers up to the limit", symmem.PathDefault, true, symmem.Sum, 16 << 10, "direct",
		inside + "and " + says + "direct up to 16KiB for AllReduce on 2 ranks, symmetric buffers",
	},
	{
		"symmetric buffers above it take the best of the others, and it is told that they could",
		symmem.PathDefault, true, symmem.Sum, 32 << 10, "window",
		inside + "and " + says + "window up to 32KiB for AllReduce on 2 ranks; not direct: " +
			says + "another path than direct above 16KiB for AllReduce on 2 ranks, symmetric buffers",
	},
	{
		"any buffers have a limit of their own", symmem.PathDefault, false, symmem.Sum, 4 << 10,
		"direct", outside + ", and " + says + "direct up to 4KiB for all operations, any buffers",
	},
	{
		"above it they take the plain path", symmem.PathDefault, false, symmem.Sum, 5 << 10, "plain",
		outside + "; not direct: " + says + "another path than direct above 4KiB for all " +
			"operations, any buffers",
	},
	{
		"a call that cannot go takes the others, and it is told why", symmem.PathDefault, true,
		symmem.Prod, 4 << 10, "window", inside + "and " + says +
			"window up to 32KiB for AllReduce on 2 ranks; not direct: no kernel for prod" + none,
	},
	{
		"a call that neither should nor can go says nothing of it", symmem.PathDefault, true,
		symmem.Prod, 32 << 10, "window",
		inside + "and " + says + "window up to 32KiB for AllReduce on 2 ranks",
	},
	{
		"a call that asks for it goes where the table would not", symmem.PathDirect, true, symmem.Sum,
		64 << 10, "direct", inside + "and the call asks for the direct path",
	},
	{
		"on any buffers, too", symmem.PathDirect, false, symmem.Sum, 8 << 10, "direct",
		outside + ", and the call asks for the direct path",
	},
	{
		"a call that asks where there is no kernel takes what auto takes", symmem.PathDirect, true,
		symmem.Prod, 64 << 10, "plain", inside + "but " + says +
			"plain above 32KiB for AllReduce on 2 ranks; not direct: no kernel for prod" + none,
	},
	{
		"and outside of windows the plain path", symmem.PathDirect, false, symmem.Sum, 16 << 10,
		"plain", outside + "; not direct: 8KiB of exchange memory" + none,
	},
	{
		"the window path is what it was", symmem.PathWindow, true, symmem.Sum, 4 << 10, "window",
		inside + "and the call asks for the window path",
	},
	{
		"and the plain path", symmem.PathPlain, true, symmem.Sum, 4 << 10, "plain",
		inside + "but the call asks for the plain path",
	},
	{
		"nothing moves on the plain path", symmem.PathDirect, true, symmem.Sum, 0, "plain",
		"the operation works without windows",
	},
}

func TestDirectPathIsPreferred(t *testing.T) {
	file := directTable(t)
	runRanks(t, 2, symmem.Options{Tuning: file}, func(r *rank) {
		in := r.window(r.pool(), 128<<10).Memory()
		out := r.alloc(r.pool(), 128<<10).Memory()
		g := symmem.Narrowed(r.World(), everything, exchange)
		for _, row := range directRows {
			m := out
			if row.windows {
				m = in
			}
			path, why, _ := symmem.Route(g, symmem.Call{
				Type: symmem.Float32, Op: row.op, Count: row.bytes / 4, Send: m, Recv: m,
				Path: row.choice,
			})
			want := strings.ReplaceAll(row.why, "TABLE", "the table "+file+" of box")
			if path != row.path || why != want {
				r.failf("%s: the %s path: %s", row.name, path, why)
			}
		}
	})
}

func TestBarriersPreferDirectPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: directTable(t)}, func(r *rank) {
		can := symmem.Narrowed(r.World(), nil, everything)
		cannot := symmem.Narrowed(r.World(), nil, func(*driver.Call) error {
			return fmt.Errorf("a link is missing: %w", driver.ErrUnsupported)
		})
		const without = "the operation works without windows"
		for _, row := range []struct {
			g         *symmem.Group
			choice    symmem.PathChoice
			path, why string
		}{
			{
				can, symmem.PathAuto, "direct",
				without + ", and barriers take the direct path whenever they can",
			},
			{can, symmem.PathDirect, "direct", without + ", and the call asks for the direct path"},
			{can, symmem.PathPlain, "plain", without},
			{can, symmem.PathWindow, "plain", without},
			{cannot, symmem.PathAuto, "plain", without},
			{
				cannot, symmem.PathDirect, "plain",
				without + "; not direct: a link is missing: not supported by this backend",
			},
		} {
			call := symmem.Call{Operation: symmem.OpBarrier, Path: row.choice}
			if path, why, _ := symmem.Route(row.g, call); path != row.path || why != row.why {
				r.failf("asked for %v: the %s path: %s", row.choice, path, why)
			}
			call = symmem.Call{
				Operation: symmem.OpSend, Type: symmem.Uint8, Count: 1, Root: 1, Path: row.choice,
			}
			if path, _, _ := symmem.Route(row.g, call); path != "plain" {
				r.failf("a message takes the %s path", path)
			}
		}
	})
}

// TestDirectPathComparesOffsetsInWindows looks at what ranks compare of a call.
func TestDirectPathComparesOffsetsInWindows(t *testing.T) {
	runRanks(t, 2, symmem.Options{}, func(r *rank) {
		p, other := r.pool(), r.pool()
		a, b := r.window(p, 4096).Memory(), r.window(p, 4096).Memory()
		c, d := r.alloc(other, 4096).Memory(), r.alloc(other, 4096).Memory()
		g := symmem.Narrowed(r.World(), everything, everything)
		digest := func(send, recv symmem.Memory) uint64 {
			path, _, d := symmem.Route(g, symmem.Call{
				Type: symmem.Float32, Count: 64, Send: send, Recv: recv, Path: symmem.PathDirect,
			})
			if path != "direct" {
				r.failf("the %s path", path)
			}
			return d
		}
		if digest(a, b) == digest(b, a) || digest(a, b) == digest(a, a) {
			r.failf("other places in windows have one digest")
		}
		if digest(c, d) != digest(d, c) || digest(c, d) != digest(c, c) {
			r.failf("places in no windows are compared")
		}
		if digest(a, b) == digest(c, d) {
			r.failf("windows and none have one digest")
		}
		if digest(a, c) != digest(c, d) {
			r.failf("one buffer in a window and one in none are compared by place")
		}
	})
}

func TestRegistrableMemoryTakesDirectPath(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: directTable(t)}, func(r *rank) {
		g := symmem.Narrowed(r.World(), everything, exchange)
		m := r.alloc(r.pool(), 16<<10).Memory()
		e, err := g.Explain(symmem.OpAllReduce, m, m, 4096, symmem.Float32)
		r.ok(err)
		want := "AllReduce: direct path, after registering: both buffers belong to pools that the " +
			"group can register, and the table "
		if got := e.String(); !strings.HasPrefix(got, want) {
			r.failf("%s", got)
		}
	})
}

func TestForcedDirectPathFallsBack(t *testing.T) {
	runRanks(t, 2, symmem.Options{Tuning: tableOf(t, "1MiB"), Path: symmem.PathDirect}, func(r *rank) {
		b := r.window(r.pool(), 64<<10)
		if got := r.World().Stats().Tuning.Path; got != "direct" {
			r.failf("the statistics say %s", got)
		}
		r.ok(r.World().SetPath(r.ctx, symmem.PathPlain))
		r.ok(r.World().SetPath(r.ctx, symmem.PathDirect))
		path, why := r.taken(b), r.explained(b, 16<<10)
		const reason = "; not direct: the host backend has no GPU kernels"
		if r.Device().Backend == "host" && (path != "window" || !strings.Contains(why, reason)) {
			r.failf("took the %s path: %s", path, why)
		}
		if !strings.Contains(why, path+" path") {
			r.failf("took the %s path, but: %s", path, why)
		}
	})
}
